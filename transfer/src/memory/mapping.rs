//! Memory files (memfds), and shared mappings of them.
//!
//! A file of another process is mapped only if its size is sealed: an access past the end of a file kills the process. Reading a
//! hole allocates a page, so such a mapping can cost memory, but no access faults.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};

use mc_verbs::Memory;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};

use super::write_buffer::WriteBuffer;

/// Type of the file system that memfds live on. File systems whose pages may be missing (hugetlbfs) or come from
/// elsewhere have other types.
pub(super) const TMPFS_MAGIC: i64 = 0x0102_1994;
pub(super) const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
/// Smallest page of any supported processor, in bytes.
const PAGE: usize = 4 << 10;

/// Creates a memory file of `len` bytes whose size is sealed.
pub(crate) fn memory_file(name: &str, len: u64) -> Result<OwnedFd, (&'static str, rustix::io::Errno)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(|error| ("memfd_create", error))?;
    rustix::fs::ftruncate(&file, len).map_err(|error| ("ftruncate", error))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)
        .map_err(|error| ("sealing", error))?;
    Ok(file)
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Returns the seals of a file of another process.
fn seals(file: impl AsFd) -> io::Result<SealFlags> {
    rustix::fs::fcntl_get_seals(file).map_err(|error| refused(format!("it is not a memfd: {error}")))
}

/// Access of this process to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    Read,
    Write,
}

/// A shared mapping of all of a memory file. It forms no references, because other processes may write there.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    protection: Protection,
}

// SAFETY: the mapping lives as long as the value. Access to its bytes is up to those who ask for the address.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file of this process's own, which has `len` bytes.
    pub(crate) fn new(file: impl AsFd, len: u64, protection: Protection) -> io::Result<Self> {
        let len = usize::try_from(len).ok().filter(|len| (1..=isize::MAX as usize).contains(len));
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let permitted = match protection {
            Protection::Read => libc::PROT_READ,
            Protection::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        let (flags, file) = (libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_fd().as_raw_fd());
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, permitted, flags, file, 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { base, len, protection }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps a file that another process made and that should have `len` bytes, to be read.
    ///
    /// The seals are looked at first. Without the seal against shrinking, the file's maker can cut it off after its
    /// size was looked at and seal it then, and an access to the mapping would end this process. Files without seals,
    /// such as those of a file system in user space, are not queried further, because the file system might never
    /// answer.
    pub(crate) fn of_another(file: impl AsFd, len: u64) -> io::Result<Self> {
        let seals = seals(&file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(refused("it is not sealed against shrinking"));
        }
        let there = rustix::fs::fstat(&file)?.st_size;
        if u64::try_from(there) != Ok(len) || len == 0 {
            return Err(refused(format!("it has {there} bytes, and not {len}")));
        }
        let kind = rustix::fs::fstatfs(&file)?.f_type;
        if kind != TMPFS_MAGIC {
            return Err(refused(format!("it is not a memfd of plain pages (file system {kind:#x})")));
        }
        let mapping = Self::new(file, len, Protection::Read)?;
        mapping.withhold_from_children();
        Ok(mapping)
    }

    /// Maps a file of a client, to be read. Beyond the rules of [`Self::of_another`], only its maker can write to it, and it has
    /// no holes: this process would pay for their pages.
    ///
    /// The seal against writes is looked at before the holes: it also refuses to make further ones.
    pub(crate) fn of_client(file: impl AsFd, len: u64) -> io::Result<Self> {
        if !seals(&file)?.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE) {
            return Err(refused("it is not sealed against writes"));
        }
        // Moves the offset of the file, which the client shares and a mapping does not use.
        let whole = rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap_or(0);
        if whole < len {
            return Err(refused(format!("it has a hole at {whole}")));
        }
        Self::of_another(file, len)
    }

    /// Leaves the mapping out of processes that are forked from this one: a child would keep the memory of a store after the
    /// store has ended, and the next one would not fit. A child that accesses it dies, so this is not for memory that callers see.
    pub(crate) fn withhold_from_children(&self) {
        self.advise(libc::MADV_DONTFORK);
    }

    /// Undoes [`Self::withhold_from_children`], which libibverbs does to registered memory on some systems. For a shared mapping that
    /// is not needed: this process and a device go on with the same pages after a fork.
    pub(crate) fn leave_to_children(&self) {
        self.advise(libc::MADV_DOFORK);
    }

    /// Gives advice on all of it. If that fails, only memory is kept for longer.
    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the whole mapping, whose content the advice leaves as it is.
        if unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) } != 0 {
            tracing::debug!(advice, error = %io::Error::last_os_error(), "the system does not take advice on memory");
        }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether the range lies inside.
    pub(crate) fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Address of a byte.
    ///
    /// # Panics
    /// When it is not inside.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        assert!(self.contains(offset, 0), "{offset} of {}", self.len);
        // SAFETY: at most the length, which fits isize.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    /// Allocates the pages of a range of a file of this process's own, and maps them here. Its start is a multiple of a page.
    pub(crate) fn populate(
        &self,
        file: impl AsFd,
        range: Range<u64>,
    ) -> Result<(), (&'static str, io::Error)> {
        assert!(range.end <= self.len(), "{range:?} of {}", self.len);
        let len = range.end - range.start;
        // SAFETY: inside the mapping.
        let done =
            unsafe { libc::madvise(self.at(range.start).cast(), len as usize, libc::MADV_POPULATE_WRITE) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(("populating", error));
        }
        // Linux before 5.14: the file gets its pages now, which can no longer fail for want of memory afterwards.
        rustix::fs::fallocate(file, FallocateFlags::empty(), range.start, len)
            .map_err(|error| ("fallocate", error.into()))?;
        // A page counts as a hole until its first access.
        for page in (range.start..range.end).step_by(PAGE) {
            let byte = self.at(page).cast::<u8>();
            // SAFETY: inside the mapping, and nobody else has the memory yet.
            unsafe { byte.write_volatile(byte.read_volatile()) };
        }
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they would not be inside, or the mapping is to be read only.
    pub(crate) fn write(&self, at: u64, bytes: WriteBuffer<'_>) {
        assert!(self.contains(at, bytes.len() as u64), "{} bytes to {at} of {}", bytes.len(), self.len);
        assert_eq!(self.protection, Protection::Write);
        // SAFETY: inside the mapping, and apart from `bytes`. No reference to the mapping is formed, because others may use it.
        unsafe { bytes.copy_to(self.at(at)) };
    }
}

// SAFETY: mapped until it is dropped. Nobody uses references to bytes that a store was asked to write to before that has ended:
// buffers have none, and callers get none to such bytes (see `ReadBuffer`).
unsafe impl Memory for Mapping {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.base(), self.len() as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; whoever has its address also keeps the value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};

    use super::*;

    #[test]
    fn a_file_of_another_is_mapped_only_if_it_can_not_shrink() {
        let file = memory_file("theirs", 70_000).unwrap();
        let (ours, theirs) =
            (Mapping::new(&file, 70_000, Protection::Write).unwrap(), Mapping::of_another(&file, 70_000));
        // SAFETY: inside, and nobody else is here.
        unsafe { ours.at(69_999).write(9) };
        let mut bytes = [7; 2];
        crate::ReadBuffer::from(&mut bytes).fill_from(&theirs.unwrap(), 69_998);
        assert_eq!(bytes, [0, 9]);
        assert!(Mapping::of_another(&file, 70_001).is_err(), "another size");
        let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(Mapping::of_another(&open, 4096).is_err(), "not sealed");
        rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK).unwrap();
        assert!(Mapping::of_another(&open, 4096).is_ok());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let len = file.metadata().unwrap().len();
        assert!(Mapping::of_another(&file, len).is_err(), "a file on a disk");
    }

    /// A file as a client hands it over, but for the seal against shrinking.
    fn of_client(len: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("theirs", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, len).unwrap();
        let mapping = Mapping::new(&file, len, Protection::Write).unwrap();
        mapping.populate(&file, 0..len).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).unwrap();
        file
    }

    /// The client cuts the file off and seals it while it is looked at. With a look at the size before the seals, some of these
    /// mappings are of an empty file.
    #[test]
    fn no_file_that_was_cut_off_meanwhile_is_mapped() {
        const TRIES: usize = 10_000;
        let (start, (hand_over, handed)) = (Barrier::new(2), mpsc::channel::<OwnedFd>());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for file in handed {
                    start.wait();
                    rustix::fs::ftruncate(&file, 0).unwrap();
                    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
                }
            });
            for nth in 0..TRIES {
                let file = of_client(4096);
                hand_over.send(file.try_clone().unwrap()).unwrap();
                start.wait();
                (0..nth % 256).for_each(|_| std::hint::spin_loop());
                if let Ok(mapping) = Mapping::of_client(&file, 4096) {
                    panic!("an access to the {} bytes of the mapping would end the process", mapping.len());
                }
            }
            drop(hand_over);
        });
    }

    #[test]
    fn pages_beyond_the_end_do_not_make_up_for_holes() {
        let file = of_client(3 * 4096);
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(Mapping::of_client(&file, 3 * 4096).is_ok());

        let file = rustix::fs::memfd_create("holes", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 64 << 10).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 64 << 10, 1 << 20).unwrap();
        rustix::io::pwrite(&file, &[1; 4096], 0).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SHRINK).unwrap();
        let why = Mapping::of_client(&file, 64 << 10).err().unwrap().to_string();
        assert!(why.contains("hole at 4096"), "{why}");
    }

    #[test]
    fn nothing_outside_is_touched() {
        let mapping = Mapping::new(memory_file("ours", 100).unwrap(), 100, Protection::Read).unwrap();
        assert!(mapping.contains(100, 0) && mapping.contains(0, 100));
        assert!(!mapping.contains(1, 100) && !mapping.contains(u64::MAX, 2));
        assert!(Mapping::new(memory_file("none", 0).unwrap(), 0, Protection::Read).is_err());
    }
}
