//! Notes each change of a file and each sync, so that a test can tell what a loss of power could have left, and ends the
//! process at a call of the test's choice.
//!
//! The notes go to the file that `FAULTY_JOURNAL` names, in the form that `page::record` gives. Names are not noted one
//! by one, because some callers rename past the C library: the sync of a folder notes the names that it covers.
//!
//! One lock is held from before a file is changed until that is noted, and where the process is ended. So the notes have
//! the order of the changes, and a process that was ended here has noted all of them.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::page::record;
use super::{LAST_STANDARD_FD, O_CLOEXEC, S_IFMT, S_IFREG, abort, getenv, open, page, stat, word};

const O_WRONLY: c_int = 1;
const O_APPEND: c_int = 0o2_000;
const S_IFDIR: u32 = 0o040_000;
const SEEK_SET: c_int = 0;
const SEEK_CUR: c_int = 1;
const SIGKILL: c_int = 9;
const SYS_GETDENTS64: c_long = if cfg!(target_arch = "aarch64") { 61 } else { 217 };

type Write = extern "C" fn(c_int, *const c_void, usize) -> isize;

/// The C library's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Iovec {
    pub(super) from: *const c_void,
    pub(super) len: usize,
}

unsafe extern "C" {
    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn getpid() -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn pause() -> c_int;
    fn readlink(path: *const c_char, into: *mut c_char, len: usize) -> isize;
    fn syscall(number: c_long, ...) -> c_long;
}

static LOCK: Mutex<()> = Mutex::new(());

/// Where the notes go.
struct Journal {
    fd: c_int,
    /// The device that it is on. Files elsewhere are not noted: their inodes could have the same numbers.
    device: u64,
}

/// A file or folder of the journal's device.
struct Inode {
    number: u64,
    is_folder: bool,
}

/// Holds the lock.
struct Notes<'a> {
    journal: &'a Journal,
    _lock: MutexGuard<'static, ()>,
}

/// `None` when the process was started without a journal.
fn journal() -> Option<&'static Journal> {
    static JOURNAL: OnceLock<Option<Journal>> = OnceLock::new();
    let opened = JOURNAL.get_or_init(|| {
        let path = unsafe { getenv(c"FAULTY_JOURNAL".as_ptr()) };
        if path.is_null() {
            return None;
        }
        let fd = unsafe { open(path, O_WRONLY | O_APPEND | O_CLOEXEC) };
        match stat(fd) {
            Some((device, ..)) => Some(Journal { fd, device }),
            None => unsafe { abort() },
        }
    });
    opened.as_ref()
}

/// The lock, and the inode of a descriptor; `None` where nothing is to be noted.
fn begin(fd: c_int, is_sync: bool) -> Option<(Notes<'static>, Inode)> {
    let journal = journal()?;
    let (device, number, mode) = stat(fd).filter(|_| fd > LAST_STANDARD_FD)?;
    let is_folder = mode & S_IFMT == S_IFDIR;
    if device != journal.device || !(is_folder || mode & S_IFMT == S_IFREG) {
        return None;
    }
    Some((Notes::take(journal, is_sync), Inode { number, is_folder }))
}

impl Notes<'_> {
    /// Ends the process instead if this is its last call.
    fn take(journal: &'static Journal, is_sync: bool) -> Self {
        let notes = Self { journal, _lock: LOCK.lock().unwrap_or_else(PoisonError::into_inner) };
        let page = page();
        let calls = page.map_or(0, |page| page[page::CALLS].fetch_add(1, Ordering::Relaxed) + 1);
        let last = word(page::LAST_CALL);
        if last != 0 && calls >= last && (is_sync || word(page::LAST_IS_A_SYNC) == 0) {
            unsafe { kill(getpid(), SIGKILL) };
            loop {
                unsafe { pause() };
            }
        }
        notes
    }

    fn note(&self, kind: u64, inode: u64, value: u64, bytes: usize, pieces: &[Iovec]) {
        let header = [kind, inode, value, bytes as u64].map(u64::to_le_bytes);
        self.append(header.as_ptr().cast(), size_of_val(&header));
        let mut left = bytes;
        for piece in pieces {
            self.append(piece.from, piece.len.min(left));
            left -= piece.len.min(left);
        }
    }

    fn append(&self, mut from: *const c_void, mut len: usize) {
        let write = super::next!(c"write" as Write);
        while len > 0 {
            let written = write(self.journal.fd, from, len);
            if written <= 0 {
                unsafe { abort() };
            }
            len -= written as usize;
            from = unsafe { from.byte_add(written as usize) };
        }
    }

    /// The names in a folder, as the kernel lists them.
    fn note_names(&self, fd: c_int, inode: u64) {
        let mut names = [0u64; 1 << 10];
        unsafe { lseek(fd, 0, SEEK_SET) };
        loop {
            let bytes = unsafe { syscall(SYS_GETDENTS64, fd, names.as_mut_ptr(), size_of_val(&names)) };
            match usize::try_from(bytes) {
                Ok(0) => break,
                Ok(bytes) => {
                    let piece = Iovec { from: names.as_ptr().cast(), len: bytes };
                    self.note(record::NAMES, inode, 0, bytes, &[piece]);
                }
                Err(_) => unsafe { abort() },
            }
        }
        unsafe { lseek(fd, 0, SEEK_SET) };
    }
}

/// Writes these pieces, at `at` or where the file is.
pub(super) fn write(fd: c_int, pieces: &[Iovec], at: Option<i64>, real: impl FnOnce() -> isize) -> isize {
    let Some((notes, inode)) = begin(fd, false) else { return real() };
    let written = real();
    if let Ok(bytes @ 1..) = usize::try_from(written) {
        let at = at.unwrap_or_else(|| unsafe { lseek(fd, 0, SEEK_CUR) } - written as i64);
        notes.note(record::WRITE, inode.number, at as u64, bytes, pieces);
    }
    written
}

/// Gives a file another length.
pub(super) fn set_len(fd: c_int, len: i64, real: impl FnOnce() -> c_int) -> c_int {
    let Some((notes, inode)) = begin(fd, false) else { return real() };
    let done = real();
    if done == 0 {
        notes.note(record::LEN, inode.number, len as u64, 0, &[]);
    }
    done
}

/// Opens a file that is made if it is not there, or emptied if it is.
pub(super) fn open_new(path: *const c_char, empties: bool, real: impl FnOnce() -> c_int) -> c_int {
    let Some(journal) = journal() else { return real() };
    let notes = Notes::take(journal, false);
    let was_there = unsafe { access(path, 0) } == 0;
    let fd = real();
    match stat(fd) {
        Some((device, inode, mode)) if device == journal.device && mode & S_IFMT == S_IFREG => {
            if !was_there {
                notes.note(record::CREATED, inode, 0, 0, &[]);
            } else if empties {
                notes.note(record::LEN, inode, 0, 0, &[]);
            }
        }
        _ => {}
    }
    fd
}

/// Makes a folder.
pub(super) fn make_folder(path: *const c_char, real: impl FnOnce() -> c_int) -> c_int {
    let Some(journal) = journal() else { return real() };
    let notes = Notes::take(journal, false);
    let made = real();
    if made == 0 {
        let fd = unsafe { open(path, O_CLOEXEC) };
        if let Some((device, inode, _)) = stat(fd)
            && device == journal.device
        {
            notes.note(record::FOLDER, inode, 0, 0, &[]);
        }
        unsafe { close(fd) };
    }
    made
}

/// Returns whether the path of a file or folder has the bytes in it that the page names, if it names any.
fn is_below_the_lie(fd: c_int) -> bool {
    let mut wanted = [0; 8 * page::LIE_PATH_WORDS];
    for (n, bytes) in wanted.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(page::LIE_PATH + n).to_le_bytes());
    }
    let wanted = wanted.split(|byte| *byte == 0).next().unwrap_or_default();
    if wanted.is_empty() {
        return true;
    }
    // "/proc/self/fd/" and the number, its digits from the last to the first, without an allocation.
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let digits = fd.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = fd;
    for digit in link[14..14 + digits].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut path = [0u8; 4096];
    let len = unsafe { readlink(link.as_ptr().cast(), path.as_mut_ptr().cast(), path.len()) };
    let path = usize::try_from(len).map_or(&[][..], |len| &path[..len]);
    path.windows(wanted.len()).any(|part| part == wanted)
}

/// Makes a file, or the names in a folder, durable; or says so and does not, as the page asks.
pub(super) fn sync(fd: c_int, real: impl FnOnce() -> c_int) -> c_int {
    static SYNCS: AtomicU64 = AtomicU64::new(0);
    let Some((notes, inode)) = begin(fd, true) else { return real() };
    let lies = word(if inode.is_folder { page::LIE_ON_FOLDERS } else { page::LIE_ON_FILES }) != 0;
    if lies && is_below_the_lie(fd) {
        return 0;
    }
    let sync = SYNCS.fetch_add(1, Ordering::Relaxed);
    if inode.is_folder {
        notes.note_names(fd, inode.number);
    }
    notes.note(record::SYNCING, inode.number, sync, 0, &[]);
    // Others go on meanwhile.
    drop(notes);
    let done = real();
    if let Some((notes, inode)) = begin(fd, false).filter(|_| done == 0) {
        notes.note(record::SYNCED, inode.number, sync, 0, &[]);
    }
    done
}
