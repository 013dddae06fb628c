//! An area: memory that is found by its addresses.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::SealFlags;
use tokio::sync::Notify;

use super::exposed::Exposable;
use super::mapping::{Mapping, Protection, memory_file};
use super::write_buffer::WriteBuffer;
use crate::checksum::RunningChecksum;

/// Fewest bytes that stores reach where they are. To copy fewer costs less than a request for them.
pub(crate) const MIN_IN_PLACE: usize = 16 << 10;

/// Memory that is found by its addresses.
pub(crate) struct Area {
    /// Number of the area. No two areas of this process ever share one, so it also identifies an area that was dropped.
    pub(crate) number: u64,
    memory: Memory,
    /// Address ranges into which a store may still write: the end of each range, keyed by its start. They don't
    /// overlap.
    held: Mutex<BTreeMap<usize, usize>>,
    gone: Arc<Notify>,
}

enum Memory {
    /// A memory file, mapped here.
    Shared(Arc<Mapping>, OwnedFd),
    /// Memory of somebody else.
    Foreign(NonNull<u8>, usize),
}

// SAFETY: addresses, which are used as the owner of the value says.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Area {
    fn drop(&mut self) {
        self.gone.notify_waiters();
    }
}

impl Area {
    /// Allocates an area of zeros. Others may read it, and can't change it. `gone` is told when it is gone.
    pub(super) fn allocate(number: u64, len: usize, gone: Arc<Notify>) -> io::Result<Self> {
        let file = memory_file("mc-client", len as u64).map_err(|(_, error)| error)?;
        let mapping = Arc::new(Mapping::new(&file, len as u64, Protection::Write)?);
        // A page that only a store reads would be taken from the store's memory, so a store takes no file without all its pages.
        mapping.populate(&file, 0..len as u64).map_err(|(_, error)| error)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(Self::new(number, Memory::Shared(mapping, file), gone))
    }

    /// An area of memory of somebody else.
    pub(super) fn foreign(number: u64, base: NonNull<u8>, len: usize, gone: Arc<Notify>) -> Self {
        Self::new(number, Memory::Foreign(base, len), gone)
    }

    fn new(number: u64, memory: Memory, gone: Arc<Notify>) -> Self {
        Self { number, memory, held: Mutex::default(), gone }
    }

    /// Address of its first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Shared(mapping, _) => mapping.base(),
            Memory::Foreign(base, _) => *base,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.memory {
            Memory::Shared(mapping, _) => mapping.len() as usize,
            Memory::Foreign(_, len) => *len,
        }
    }

    pub(super) fn addresses(&self) -> Range<usize> {
        let base = self.base().as_ptr() as usize;
        base..base + self.len()
    }

    /// The file that stores of this host map; `None` if the memory is somebody else's.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.memory {
            Memory::Shared(_, file) => Some(file.as_fd()),
            Memory::Foreign(..) => None,
        }
    }

    /// The memory, for devices.
    pub(crate) fn exposable(&self) -> Exposable<'_> {
        match &self.memory {
            Memory::Shared(mapping, _) => Exposable::Shared(mapping),
            Memory::Foreign(base, len) => Exposable::Foreign(*base, *len),
        }
    }

    /// Copies bytes in, and adds the copy to a checksum.
    ///
    /// # Safety
    /// The area must have a file, and nobody else may write there until the call has returned.
    pub(crate) unsafe fn write(&self, at: u64, bytes: WriteBuffer<'_>, sum: &mut RunningChecksum) {
        if let Memory::Shared(mapping, _) = &self.memory {
            mapping.write(at, bytes);
            // SAFETY: inside of the mapping, where other processes only read, and the caller vouches for this one.
            sum.update(unsafe { std::slice::from_raw_parts(mapping.at(at), bytes.len()) });
        }
    }

    /// Marks a range as one into which a store may write. Returns false if part of it is marked already.
    pub(crate) fn hold(&self, base: NonNull<u8>, len: usize) -> bool {
        let (start, mut held) = (base.as_ptr() as usize, self.held.lock());
        let is_free = is_free(&held, start, len);
        if is_free {
            held.insert(start, start + len);
        }
        is_free
    }

    pub(crate) fn let_go(&self, base: NonNull<u8>) {
        self.held.lock().remove(&(base.as_ptr() as usize));
    }

    /// Whether no store can write into the range any more.
    pub(crate) fn is_free(&self, base: NonNull<u8>, len: usize) -> bool {
        is_free(&self.held.lock(), base.as_ptr() as usize, len)
    }
}

fn is_free(held: &BTreeMap<usize, usize>, start: usize, len: usize) -> bool {
    held.range(..start + len).next_back().is_none_or(|(_, end)| *end <= start)
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area").field("number", &self.number).field("len", &self.len()).finish_non_exhaustive()
    }
}
