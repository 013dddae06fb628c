//! Memory of this process that stores of its host may map: they copy the bytes of writes out of it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::fs::SealFlags;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::mapping::{Mapping, Protection, memory_file};
use crate::memory_limit;

/// Bytes of a bounce buffer, and so the most that one request of a call carries.
pub(super) const BOUNCE: usize = 4 << 20;
/// Maximum number of bounce buffers: 64 MiB.
const BUFFERS: usize = 16;
/// Maximum number of areas of callers, each of which takes a descriptor and a place at each store.
const LISTED: usize = 128;

/// The areas that callers of a transport have allocated, by their first address.
#[derive(Default)]
pub(crate) struct Areas {
    listed: RwLock<BTreeMap<usize, Arc<Area>>>,
    next: AtomicU64,
    /// Told when an area is gone.
    gone: Arc<Notify>,
}

/// A memory file, mapped here.
pub(crate) struct Area {
    /// Tells it from every other area of the transport, also from those that are gone.
    pub(super) number: u64,
    mapping: Mapping,
    file: OwnedFd,
    gone: Arc<Notify>,
}

impl Drop for Area {
    fn drop(&mut self) {
        self.gone.notify_waiters();
    }
}

/// An area that is found by its bytes until it is dropped.
pub(crate) struct ListedArea {
    area: Arc<Area>,
    areas: Arc<Areas>,
}

impl Areas {
    /// Allocates an area of zeros. Others may read it, and can't change it.
    fn allocate(&self, len: usize) -> io::Result<Arc<Area>> {
        let file = memory_file("mc-client", len as u64).map_err(|(_, error)| error)?;
        let mapping = Mapping::new(&file, len as u64, Protection::Write)?;
        // A page that only a store reads would be taken from the store's memory, so a store takes no file without all its pages.
        mapping.populate(&file, 0..len as u64).map_err(|(_, error)| error)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Area { number, mapping, file, gone: self.gone.clone() }))
    }

    /// Allocates an area for the caller's bytes.
    pub(crate) fn allocate_listed(self: &Arc<Self>, len: usize) -> io::Result<ListedArea> {
        // Taking the last of the machine's memory would get some process killed.
        if memory_limit::available().is_some_and(|available| available.bytes < len as u64) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.listed.read().len() >= LISTED {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let area = self.allocate(len)?;
        self.listed.write().insert(area.base().as_ptr() as usize, area.clone());
        Ok(ListedArea { area, areas: self.clone() })
    }

    /// Returns what is told when an area is gone.
    pub(super) fn gone(&self) -> Arc<Notify> {
        self.gone.clone()
    }

    /// Finds the area that has these bytes, and their place in it.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<(Arc<Area>, u64)> {
        let address = bytes.as_ptr() as usize;
        let listed = self.listed.read();
        let (base, area) = listed.range(..=address).next_back()?;
        let at = (address - base) as u64;
        area.mapping.contains(at, bytes.len() as u64).then(|| (area.clone(), at))
    }
}

impl Area {
    /// Address of its first byte.
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    pub(super) fn len(&self) -> u64 {
        self.mapping.len()
    }
}

impl AsFd for Area {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl ListedArea {
    /// Address of its first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.area.base()
    }
}

impl Drop for ListedArea {
    fn drop(&mut self) {
        self.areas.listed.write().remove(&(self.area.base().as_ptr() as usize));
    }
}

impl fmt::Debug for Areas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Areas").field("listed", &self.listed.read().len()).finish_non_exhaustive()
    }
}

/// Bounce buffers: areas through which the bytes of other memory are copied. They are kept once they were needed.
pub(super) struct BounceBuffers {
    free: Mutex<Vec<Arc<Area>>>,
    permits: Arc<Semaphore>,
}

/// A bounce buffer, in use by one request.
///
/// A buffer that is dropped without [`give_back`](Self::give_back) is not used again: a store may not have copied its bytes
/// yet, and would copy those of another write to the same range. Its memory is freed when no store maps it any more.
pub(super) struct BounceBuffer<'a> {
    area: Arc<Area>,
    buffers: &'a BounceBuffers,
    _permit: OwnedSemaphorePermit,
}

impl Default for BounceBuffers {
    fn default() -> Self {
        Self { free: Mutex::default(), permits: Arc::new(Semaphore::new(BUFFERS)) }
    }
}

impl BounceBuffers {
    /// Takes a buffer; `None` if all are taken, or there is no memory.
    pub(super) fn take(&self, areas: &Areas) -> Option<BounceBuffer<'_>> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        // The last one, which is most likely in the processor's cache.
        let free = self.free.lock().pop();
        let area = free.or_else(|| areas.allocate(BOUNCE).ok())?;
        Some(BounceBuffer { area, buffers: self, _permit: permit })
    }
}

impl BounceBuffer<'_> {
    pub(super) fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Copies bytes in.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        self.area.mapping.write(at, bytes);
    }

    /// Gives it back, when every store has answered all requests that name it.
    pub(super) fn give_back(self) {
        self.buffers.free.lock().push(self.area.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_in_the_area_that_has_all_of_them() {
        let areas = Arc::new(Areas::default());
        let (one, two) = (areas.allocate_listed(10_000).unwrap(), areas.allocate_listed(10_000).unwrap());
        let bytes = |area: &ListedArea, at: usize, len| {
            // SAFETY: inside the mapping, or only an address that is not followed.
            unsafe { std::slice::from_raw_parts(area.base().as_ptr().add(at), len) }
        };
        let found = |bytes: &[u8]| areas.find(bytes).map(|(area, at)| (area.number, at));
        assert_eq!(found(bytes(&one, 0, 10_000)), Some((0, 0)));
        assert_eq!(found(bytes(&two, 9_990, 10)), Some((1, 9_990)));
        assert_eq!(found(bytes(&two, 9_990, 11)), None, "beyond its end");
        assert_eq!(found(&[1, 2, 3]), None);
        drop(one);
        assert_eq!(areas.listed.read().len(), 1);
    }

    #[test]
    fn a_bounce_buffer_is_used_again_only_if_it_is_given_back() {
        let (areas, buffers) = (Areas::default(), BounceBuffers::default());
        buffers.take(&areas).unwrap().give_back();
        let first = buffers.take(&areas).unwrap();
        assert_eq!(first.area().number, 0);
        drop(first);
        let mut taken: Vec<_> = (0..BUFFERS).map(|_| buffers.take(&areas).unwrap()).collect();
        assert!(taken.iter().all(|buffer| buffer.area().number > 0));
        assert!(buffers.take(&areas).is_none(), "all are taken");
        taken.pop().unwrap().give_back();
        assert!(buffers.take(&areas).is_some());
    }
}
