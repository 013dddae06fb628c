//! The memory that a store lends.
//!
//! Invariants behind every `unsafe` block below:
//! - The mapping is one of all of a memfd, made in `allocate` and kept for life, or of a file that outlives the process.
//! - The memfd is sealed against shrinking and every page of it was faulted in: no access can fault. The file belongs to this store,
//!   which is told apart by its lock, and has all its pages: nobody shrinks it.
//! - Clients write this memory at any time, so no Rust reference to it is ever formed; only the kernel reads and
//!   writes it, through `recvmsg`, `send` and `pread`, network cards at which it is registered, `memcpy` of the C library, and a
//!   volatile access for fault injection.
//!
//! Clients of this host may get the memfd to read from, with the [stamps](super::stamps) of its blocks. It is sealed against
//! every way in which they could change it: writes, holes, writable mappings, and another size. The mapping of this process
//! was made before.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use mc_types::{ByteSize, SegmentNumber};
use parking_lot::Mutex;
use rustix::fs::SealFlags;
use smallvec::SmallVec;

use super::error::LostMemory;
use super::limit::{self, Available};
use super::mapping::{Mapping, Protection, memory_file};
use super::page::Page;
use super::rdma::Rdma;
use super::rdma_devices::NoRdma;
use super::read_buffer::ReadBuffer;
use super::registered::Registered;
use super::stamps::{Stamps, stamps_len};
use super::write_buffer::WriteBuffer;
use crate::fence::fence_limit;

/// Step in which memory is faulted in, in bytes. After each step, progress is reported and limits are checked again.
const SLICE: u64 = 256 << 20;
/// Bytes left free for other processes: a segment that took the last page would get some process killed. The memory in
/// which the store remembers writes comes on top.
const RESERVE: u64 = 64 << 20;

/// A piece of memory that a store lends: shared, backed by a memfd, all of it faulted in.
pub struct Segment {
    number: SegmentNumber,
    /// Its registrations with network cards. They go before the mapping.
    registered: OnceLock<Registered>,
    mapping: Mapping,
    file: OwnedFd,
    sharing: Sharing,
}

/// The files that other processes use or find, beside the segment itself.
enum Sharing {
    /// A memfd, and its stamps. It is shareable if it is sealed against writes of others.
    Memfd { shareable: bool, stamps: Mutex<CurrentStamps> },
    /// A file that outlives this process: only the page that says what it holds.
    Kept(Arc<Page>),
}

/// Memory for a segment to allocate.
pub(super) struct Backing {
    pub(super) file: OwnedFd,
    /// The page beside memory that outlives this process.
    pub(super) page: Option<Arc<Page>>,
    /// Whether its pages are not those that other memory is made of.
    pub(super) has_own_pages: bool,
}

/// The stamps for the newest fence.
struct CurrentStamps {
    /// `None` where the system can't share them.
    stamps: Option<Arc<Stamps>>,
    /// Whether a fence uses them.
    taken: bool,
}

impl CurrentStamps {
    /// Ends stamps that a fence uses, and allocates new ones.
    fn renew(&mut self, segment: SegmentNumber, len: u64) {
        if std::mem::take(&mut self.taken) {
            if let Some(old) = self.stamps.take() {
                old.end();
            }
            self.stamps = Stamps::new(segment, len).map(Arc::new);
        }
    }
}

/// Why a segment could not be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// The size is 0 bytes, or more than can be addressed.
    #[error(
        "a segment of {asked} is not possible: ask for at least one byte and less than the address space"
    )]
    Size {
        /// The size that was asked for.
        asked: ByteSize,
    },
    /// The segment does not fit, or no longer fits while it is allocated.
    #[error(
        "a segment of {asked} does not fit: {missing:#} are still needed and the {limit} leaves {available:#} \
         (of which {reserve:#} stay free): choose a smaller segment or free memory"
    )]
    DoesNotFit {
        /// The size that was asked for.
        asked: ByteSize,
        /// The bytes that are not allocated yet.
        missing: ByteSize,
        /// The bytes that can still be taken.
        available: ByteSize,
        /// The bytes of these that are left free, for the process and its record of writes.
        reserve: ByteSize,
        /// The source of the limit.
        limit: String,
    },
    /// The size is no multiple of the pages that it is to be made of.
    #[error(
        "a segment of {asked} is no multiple of {page}, the size of a page in its directory: choose another size"
    )]
    Pages {
        /// The size that was asked for.
        asked: ByteSize,
        /// Bytes of a page.
        page: ByteSize,
    },
    /// The file system of the segment directory has no room for it.
    #[error(
        "a segment of {asked} does not fit into {path}, which has {available:#} left: give its file system more room, or choose a \
         smaller segment",
        path = path.display()
    )]
    NoRoom {
        /// The size that was asked for.
        asked: ByteSize,
        /// The directory.
        path: PathBuf,
        /// The bytes that its file system has left.
        available: ByteSize,
    },
    /// A system call failed.
    #[error("cannot allocate a segment of {asked}: {step} failed: {source}")]
    System {
        /// The size that was asked for.
        asked: ByteSize,
        /// The attempted step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Segment {
    /// Allocates `len` bytes and faults them in; calls `progress` with the number of bytes that are ready so far. This
    /// takes about a second for every few GiB; call it off the runtime.
    ///
    /// # Errors
    /// [`AllocateError`]. A segment that does not fit in the machine or in its control group is refused before its
    /// memory is taken, because taking it would get a process killed.
    pub fn allocate(
        number: SegmentNumber,
        len: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Arc<Self>, AllocateError> {
        Self::allocate_beside(0, number, len, progress)
    }

    /// [`Self::allocate`] for a process that lends `lent` bytes already: it keeps the record of writes to all of them.
    ///
    /// # Errors
    /// [`AllocateError`].
    pub fn allocate_beside(
        lent: u64,
        number: SegmentNumber,
        len: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Arc<Self>, AllocateError> {
        check_size(lent, len)?;
        let file = memory_file(&format!("mc-segment-{number}"), len).map_err(|(step, error)| {
            AllocateError::System { asked: ByteSize(len), step, source: error.into() }
        })?;
        Self::fill(lent, number, len, Backing { file, page: None, has_own_pages: false }, progress)
    }

    /// Allocates all pages of a file of `len` bytes.
    pub(super) fn fill(
        lent: u64,
        number: SegmentNumber,
        len: u64,
        Backing { file, page, has_own_pages }: Backing,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Arc<Self>, AllocateError> {
        // Huge pages are set apart from the memory that others may take.
        let counted = |missing| if has_own_pages { 0 } else { missing };
        let (reserve, asked) = (reserve(lent.saturating_add(len)), ByteSize(len));
        let failed = |step| move |source| AllocateError::System { asked, step, source };
        let mapping = Mapping::new(&file, len, Protection::Write).map_err(failed("mmap"))?;
        let sharing = page.map_or_else(
            || {
                let stamps = CurrentStamps { stamps: Stamps::new(number, len).map(Arc::new), taken: false };
                Sharing::Memfd { shareable: false, stamps: Mutex::new(stamps) }
            },
            Sharing::Kept,
        );
        let mut segment = Self::of(number, mapping, file, sharing);

        let mut ready = 0;
        while ready < len {
            check_fits(len, counted(len - ready), reserve, limit::available())?;
            let end = len.min(ready + SLICE);
            segment
                .mapping
                .populate(&segment.file, ready..end)
                .map_err(|(step, source)| AllocateError::System { asked, step, source })?;
            ready = end;
            progress(ready);
        }
        if let Sharing::Memfd { shareable, .. } = &mut segment.sharing {
            // Linux before 5.1 does not know the seal.
            let seals = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
            *shareable = rustix::fs::fcntl_add_seals(&segment.file, seals).is_ok();
        }
        Ok(Arc::new(segment))
    }

    /// Maps the file of a segment that another process has left, of `len` bytes without holes.
    pub(super) fn of_file(
        number: SegmentNumber,
        len: u64,
        file: OwnedFd,
        page: Arc<Page>,
    ) -> io::Result<Arc<Self>> {
        let mapping = Mapping::new(&file, len, Protection::Write)?;
        Ok(Arc::new(Self::of(number, mapping, file, Sharing::Kept(page))))
    }

    fn of(number: SegmentNumber, mapping: Mapping, file: OwnedFd, sharing: Sharing) -> Self {
        mapping.withhold_from_children();
        // Only advice: huge pages, where the system allows them for shared memory, save faults and page-table memory.
        // SAFETY: the whole mapping, which is ours.
        unsafe { libc::madvise(mapping.base().as_ptr().cast(), mapping.len() as usize, libc::MADV_HUGEPAGE) };
        Self { number, registered: OnceLock::new(), mapping, file, sharing }
    }

    /// Registers the segment with those devices of this process that lack it. Until then, and where it fails, its bytes go over TCP or
    /// another device. It pins every page, so call it off the runtime.
    ///
    /// # Errors
    /// [`NoRdma`], which names the devices that failed, says what limits them and how to change that. Another call tries again.
    pub fn register(&self, rdma: &Arc<Rdma>) -> Result<(), NoRdma> {
        let registered = self.registered.get_or_init(|| Registered::new(rdma.devices()));
        // SAFETY: mapped until the drop, which takes the registrations away first, and no references: see above.
        unsafe { registered.register(self.base(), self.len()) }
    }

    /// Number of devices of this process that it is registered with.
    #[must_use]
    pub fn registrations(&self) -> usize {
        self.registered.get().map_or(0, Registered::count)
    }

    /// Returns why it is not registered with some devices; `None` where it is, or that was not tried.
    #[must_use]
    pub fn lacks_registration(&self) -> Option<NoRdma> {
        self.registered.get()?.lacks()
    }

    /// Returns the registrations with network cards; `None` before the first attempt.
    pub(crate) fn registered(&self) -> Option<&Registered> {
        self.registered.get()
    }

    /// Number of the segment within its store.
    #[must_use]
    pub fn number(&self) -> SegmentNumber {
        self.number
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Copies bytes out without a grant or fence, for a process that reads its own store's memory and verifies the
    /// checksum. Bytes that are being written come out torn.
    ///
    /// # Errors
    /// When the range is not inside the segment.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.copy_out_into(offset, &mut into.into())
    }

    /// [`Self::copy_out`] into the memory of a read.
    ///
    /// # Errors
    /// When the range is not inside the segment, or a device may write to the memory.
    pub fn copy_out_into(&self, offset: u64, into: &mut ReadBuffer<'_>) -> io::Result<()> {
        self.check(offset, into.len() as u64)?;
        if !into.is_free() {
            return Err(io::Error::other(LostMemory { len: into.len() }));
        }
        let (file, mut done) = (self.file.as_raw_fd(), 0);
        while done < into.len() {
            let from = (offset + done as u64).cast_signed();
            // SAFETY: `done` is inside, and the kernel writes no more than the rest.
            let n = unsafe {
                let to = into.as_mut_ptr().add(done);
                libc::pread(file, to.cast(), into.len() - done, from)
            };
            match usize::try_from(n) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// Flips the bits of one byte past every check, as failing memory would. For fault injection.
    ///
    /// # Errors
    /// When the offset is not inside the segment.
    pub fn corrupt(&self, offset: u64) -> io::Result<()> {
        self.check(offset, 1)?;
        let byte: *mut u8 = self.at(offset).cast();
        // SAFETY: checked to lie inside the mapping.
        unsafe { byte.write_volatile(!byte.read_volatile()) };
        Ok(())
    }

    /// Prepares the segment for another [`DataServer`](crate::DataServer), which otherwise does this as it is created. It blocks
    /// for some milliseconds for each GiB of the segment.
    pub fn renew(&self) {
        if let Sharing::Memfd { stamps, .. } = &self.sharing {
            stamps.lock().renew(self.number, self.len());
        }
    }

    /// Returns stamps for a new fence; `None` where the system can't share them. Those of the fence before, if there is one,
    /// end. The first ones were allocated with the segment, others by [`Self::renew`].
    pub(crate) fn new_stamps(&self) -> Option<Arc<Stamps>> {
        let Sharing::Memfd { stamps, .. } = &self.sharing else { return None };
        let mut current = stamps.lock();
        current.renew(self.number, self.len());
        current.taken = true;
        current.stamps.clone()
    }

    /// Returns the device and the inode of its file.
    pub(super) fn file_id(&self) -> io::Result<(u64, u64)> {
        let status = rustix::fs::fstat(&self.file)?;
        Ok((status.st_dev, status.st_ino))
    }

    /// Notes the order of a write that was admitted, before its first byte.
    pub(crate) fn note_order(&self, order: u64) {
        if let Sharing::Kept(page) = &self.sharing {
            page.note_order(order);
        }
    }

    /// Address of its first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// Returns the descriptor for a process that may read all of it; `None` where the system cannot seal it, and for memory that
    /// outlives this process.
    pub(crate) fn shared(&self) -> Option<BorrowedFd<'_>> {
        matches!(self.sharing, Sharing::Memfd { shareable: true, .. }).then(|| self.file.as_fd())
    }

    /// Receives once from `socket` without blocking, into these pieces of segments (offset, length) in order.
    pub(crate) fn recv<'a>(
        socket: BorrowedFd<'_>,
        pieces: impl ExactSizeIterator<Item = (&'a Self, u64, u64)>,
    ) -> io::Result<usize> {
        let mut parts: SmallVec<[libc::iovec; 4]> = SmallVec::with_capacity(pieces.len());
        for (segment, offset, len) in pieces {
            segment.check(offset, len)?;
            parts.push(libc::iovec { iov_base: segment.at(offset), iov_len: len as usize });
        }
        // SAFETY: a header of zeros names no address, no control bytes and no parts.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: each part was checked to lie inside its mapping, which the borrow of its segment keeps alive. The
        // kernel writes at most the part's length there.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Copies bytes in from a mapping of another process's memory.
    ///
    /// # Panics
    /// When they are not inside of both.
    pub(crate) fn copy_in(&self, offset: u64, from: &Mapping, at: u64, len: u64) {
        assert!(self.contains(offset, len) && from.contains(at, len), "{len} bytes from {at} to {offset}");
        // SAFETY: both were checked to be inside of mappings, which are apart: a process maps each file on its own. The C
        // library does the copy, and no references to either are formed.
        unsafe { libc::memcpy(self.at(offset), from.at(at).cast(), len as usize) };
    }

    /// Copies bytes of this process in.
    ///
    /// # Panics
    /// When they would not be inside.
    pub(crate) fn write(&self, offset: u64, bytes: WriteBuffer<'_>) {
        self.mapping.write(offset, bytes);
    }

    /// Copies bytes out. Those that others write meanwhile come out torn.
    ///
    /// # Panics
    /// When they are not inside.
    pub(crate) fn read_into(&self, offset: u64, into: &mut ReadBuffer<'_>) {
        into.fill_from(&self.mapping, offset);
    }

    /// Sends once from the segment to `socket` without blocking; the kernel has copied the bytes when it returns.
    /// `sendfile` would save that copy and break the fence: the pages would leave after the check that follows.
    ///
    /// The kernel is told to fill its packets, because more bytes (the trailer) always follow these.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<usize> {
        self.check(offset, len)?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
        // SAFETY: checked to lie inside the mapping; the kernel reads at most `len` bytes there.
        let n = unsafe { libc::send(socket.as_raw_fd(), self.at(offset), len as usize, flags) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Whether the range lies inside the segment.
    pub(crate) fn contains(&self, offset: u64, len: u64) -> bool {
        self.mapping.contains(offset, len)
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.contains(offset, len) {
            return Ok(());
        }
        let reason =
            format!("{len} bytes at {offset} are not inside segment {} of {}", self.number, self.len());
        Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
    }

    fn at(&self, offset: u64) -> *mut c_void {
        self.mapping.at(offset).cast()
    }
}

/// Bytes to leave free in a process that lends `lent` bytes.
fn reserve(lent: u64) -> u64 {
    RESERVE.saturating_add(fence_limit(lent)).saturating_add(stamps_len(lent))
}

/// Refuses a size that is not possible, or does not fit beside `lent` bytes.
fn check_size(lent: u64, len: u64) -> Result<(), AllocateError> {
    if !(1..=isize::MAX as u64).contains(&len) {
        return Err(AllocateError::Size { asked: ByteSize(len) });
    }
    check_fits(len, len, reserve(lent.saturating_add(len)), limit::available())
}

/// Refuses an allocation that would leave less than the reserve.
fn check_fits(
    asked: u64,
    missing: u64,
    reserve: u64,
    available: Option<Available>,
) -> Result<(), AllocateError> {
    match available {
        Some(Available { bytes, limit }) if missing.saturating_add(reserve) > bytes => {
            Err(AllocateError::DoesNotFit {
                asked: ByteSize(asked),
                missing: ByteSize(missing),
                available: ByteSize(bytes),
                reserve: ByteSize(reserve),
                limit,
            })
        }
        _ => Ok(()),
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("number", &self.number).field("len", &ByteSize(self.len())).finish()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FallocateFlags;

    use super::*;

    #[test]
    fn memory_is_zero_ready_and_can_be_corrupted_at_one_byte() {
        let mut told = Vec::new();
        let segment = Segment::allocate(3, 70_001, &mut |ready| told.push(ready)).unwrap();
        assert_eq!((segment.number(), segment.len(), told), (3, 70_001, vec![70_001]));
        segment.corrupt(70_000).unwrap();
        let mut bytes = [9; 3];
        segment.copy_out(69_998, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 255]);
        assert!(segment.copy_out(69_999, &mut bytes).is_err(), "past the end");
        assert!(segment.corrupt(70_001).is_err());
        assert!(segment.copy_out(u64::MAX, &mut bytes).is_err(), "an offset that overflows");
    }

    #[test]
    fn whoever_has_the_descriptor_can_read_and_change_nothing() {
        let segment = Segment::allocate(0, 70_000, &mut |_| {}).unwrap();
        let theirs = segment.shared().expect("a kernel of 5.1 or later").try_clone_to_owned().unwrap();
        let mut byte = [9];
        assert_eq!(rustix::io::pread(&theirs, &mut byte, 69_999), Ok(1));
        let denied = Err(rustix::io::Errno::PERM);
        assert_eq!(rustix::io::pwrite(&theirs, &[1], 0), denied);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&theirs, hole, 0, 4096).map(|()| 0), denied);
        assert_eq!(rustix::fs::ftruncate(&theirs, 1).map(|()| 0), denied);
        assert_eq!(rustix::fs::fcntl_add_seals(&theirs, SealFlags::WRITE).map(|()| 0), denied);
        assert!(Mapping::new(&theirs, 70_000, Protection::Write).is_err());
        segment.corrupt(5).unwrap();
        assert_eq!((rustix::io::pread(&theirs, &mut byte, 5), byte), (Ok(1), [255]), "its owner goes on");
    }

    #[test]
    fn every_page_is_resident_after_allocation() {
        let segment = Segment::allocate(0, 8 << 20, &mut |_| {}).unwrap();
        let mut resident = vec![0u8; (8 << 20) / 4096];
        // SAFETY: the whole mapping, and one byte of answer for each of its pages.
        let asked = unsafe { libc::mincore(segment.at(0), 8 << 20, resident.as_mut_ptr()) };
        assert_eq!(asked, 0);
        assert!(resident.iter().all(|page| page & 1 == 1));
    }

    #[test]
    fn a_segment_that_does_not_fit_is_an_error_that_names_the_limit() {
        let error = Segment::allocate(0, 1 << 50, &mut |_| panic!("nothing may be taken")).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, AllocateError::DoesNotFit { .. }), "{text}");
        assert!(text.contains("1024TiB") && text.contains("smaller segment"), "{text}");
        assert!(matches!(Segment::allocate(0, 0, &mut |_| {}), Err(AllocateError::Size { .. })));
        assert!(matches!(Segment::allocate(0, u64::MAX, &mut |_| {}), Err(AllocateError::Size { .. })));
    }

    #[test]
    fn memory_that_vanishes_on_the_way_is_noticed() {
        let left = Some(Available { bytes: 612 << 20, limit: "limit".to_owned() });
        assert!(check_fits(1 << 30, 33 << 20, reserve(1 << 30), left.clone()).is_ok());
        assert!(check_fits(1 << 30, 35 << 20, reserve(1 << 30), left).is_err());
        assert!(
            check_fits(1 << 30, 1 << 30, reserve(1 << 30), None).is_ok(),
            "a system that tells nothing is taken at its word"
        );
    }
}
