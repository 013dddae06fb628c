use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[path = "../faulty/page.rs"]
pub(crate) mod page;

/// Kind of syncs that report success without making anything durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Syncs of files.
    Files,
    /// Syncs of folders, which make the names in them durable.
    Folders,
}

/// An error that the disk reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// `EIO`: the disk is broken.
    Io,
    /// `ENOSPC`: the disk is full.
    Full,
}

/// Makes the disk, the clocks and the connections of one process misbehave, from outside and while it runs. The process
/// is the real executable, with the library of `faulty/` loaded in front of the C library.
#[derive(Debug)]
pub struct Faulty {
    page: File,
    path: PathBuf,
}

impl Faulty {
    /// Makes the control of a process without any fault yet. `path` is the file to create for it.
    pub fn new(path: &Path) -> Self {
        let page = File::options().create_new(true).read(true).write(true).open(path).expect("a new file");
        page.set_len(page::BYTES as u64).expect("room for a page");
        Self { page, path: path.to_owned() }
    }

    /// Returns the environment for the start of the process.
    pub fn env(&self) -> [(String, String); 2] {
        let path = self.path.to_str().expect("a temporary folder with a plain name");
        [("FAULTY_PAGE", path), ("LD_PRELOAD", env!("FAULTY_LIBRARY"))]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    }

    /// Returns the environment of [`Self::env`] for a process that notes its changes of files in a journal at `path`.
    /// [`crate::Power`] creates the journal, on the device of the data.
    pub fn journal_env(&self, path: &Path) -> [(String, String); 3] {
        let [page, library] = self.env();
        let path = path.to_str().expect("a temporary folder with a plain name").to_owned();
        [page, library, ("FAULTY_JOURNAL".to_owned(), path)]
    }

    /// Makes a process with a journal end instead of making the `n`-th call from now on that changes or syncs a file.
    /// With `at_a_sync`, it ends at the first sync from that call on.
    pub fn end_at_call(&self, n: u64, at_a_sync: bool) {
        self.set(page::LAST_IS_A_SYNC, u64::from(at_a_sync));
        self.set(page::LAST_CALL, self.calls() + n.max(1));
    }

    /// Cancels [`Self::end_at_call`].
    pub fn end_at_no_call(&self) {
        self.set(page::LAST_CALL, 0);
    }

    /// Returns the number of calls so far that changed or synced a file, for a process with a journal.
    pub fn calls(&self) -> u64 {
        self.get(page::CALLS)
    }

    /// Makes syncs of a process with a journal lie from now on: all of that kind whose path has `part` in it.
    pub fn lie(&self, lie: Lie, part: &str) {
        assert!(part.len() < 8 * page::LIE_PATH_WORDS, "{part} does not fit");
        let mut bytes = [0; 8 * page::LIE_PATH_WORDS];
        bytes[..part.len()].copy_from_slice(part.as_bytes());
        for (n, word) in bytes.chunks_exact(8).enumerate() {
            self.set(page::LIE_PATH + n, u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        self.set(if lie == Lie::Files { page::LIE_ON_FILES } else { page::LIE_ON_FOLDERS }, 1);
    }

    /// Makes each sync of a file take longer by `by`.
    pub fn slow_syncs(&self, by: Duration) {
        self.set(page::SYNC_DELAY_MS, u64::try_from(by.as_millis()).expect("a sensible delay"));
    }

    /// Blocks all syncs of files while `stuck`.
    pub fn stick_syncs(&self, stuck: bool) {
        self.set(page::SYNC_STUCK, u64::from(stuck));
    }

    /// Makes syncs of files fail with `error`, or succeed again.
    pub fn fail_syncs(&self, error: Option<DiskError>) {
        self.set(page::SYNC_ERRNO, errno(error));
    }

    /// Blocks all name look-ups while `stuck`.
    pub fn stick_lookups(&self, stuck: bool) {
        self.set(page::LOOKUP_STUCK, u64::from(stuck));
    }

    /// Makes writes to files fail with `error`, or succeed again.
    pub fn fail_writes(&self, error: Option<DiskError>) {
        self.set(page::WRITE_ERRNO, errno(error));
    }

    /// Shifts the wall clock by so many seconds.
    pub fn wall_clock(&self, offset_s: i64) {
        self.set(page::WALL_OFFSET_S, offset_s.cast_unsigned());
    }

    /// Makes the monotonic clock faster by so many millionths, from the next start of the process on.
    pub fn clock_rate(&self, ppm: i64) {
        self.set(page::CLOCK_RATE_PPM, ppm.cast_unsigned());
    }

    /// Redirects connections from the first port of each pair to the second.
    pub fn routes(&self, routes: &[(u16, u16)]) {
        assert!(routes.len() < page::MAX_ROUTES, "{} routes do not fit", routes.len());
        for (n, (from, to)) in routes.iter().enumerate() {
            self.set(page::ROUTES + 2 * n + 1, u64::from(*to));
            self.set(page::ROUTES + 2 * n, u64::from(*from));
        }
    }

    /// Returns how often the process has met a fault of its disk or its look-ups, or has read a shifted wall clock.
    pub fn struck(&self) -> u64 {
        self.get(page::STRUCK)
    }

    fn get(&self, word: usize) -> u64 {
        let mut value = [0; 8];
        self.page.read_exact_at(&mut value, (word * 8) as u64).expect("a page that can be read");
        u64::from_le_bytes(value)
    }

    fn set(&self, word: usize, value: u64) {
        self.page.write_all_at(&value.to_le_bytes(), (word * 8) as u64).expect("a page that can be written");
    }
}

fn errno(error: Option<DiskError>) -> u64 {
    let errno = match error {
        None => 0,
        Some(DiskError::Io) => rustix::io::Errno::IO.raw_os_error(),
        Some(DiskError::Full) => rustix::io::Errno::NOSPC.raw_os_error(),
    };
    u64::from(errno.unsigned_abs())
}
