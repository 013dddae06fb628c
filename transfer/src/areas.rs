//! Memory of this process that stores take the bytes of writes from, and put those of reads into: stores of its host map it,
//! and the devices of others reach it by RDMA.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_types::Access;
use parking_lot::{Mutex, RwLock};
use rustix::fs::SealFlags;
use tokio::sync::Notify;

use crate::WriteBuffer;
use crate::checksum::RunningChecksum;
use crate::mapping::{Mapping, Protection, memory_file};
use crate::memory_limit;
use crate::rdma::{Exposed, Rdma};

/// Maximum number of areas of callers, each of which takes a descriptor and a place at each store of this host.
const LISTED: usize = 128;
/// Fewest bytes that stores reach where they are. To copy fewer costs less than a request for them.
pub(crate) const WORTH_IT: usize = 16 << 10;

/// The areas that callers of a transport have allocated, by their first address.
#[derive(Default)]
pub(crate) struct Areas {
    listed: RwLock<BTreeMap<usize, Arc<Area>>>,
    /// Devices at which areas are registered.
    rdma: Option<Arc<Rdma>>,
    next: AtomicU64,
    /// Told when an area is gone.
    gone: Arc<Notify>,
}

/// A memory file, mapped here.
pub(crate) struct Area {
    /// Tells it from every other area of the transport, also from those that are gone.
    pub(crate) number: u64,
    /// For devices of stores that read from it.
    for_writes: Option<Exposed>,
    /// For those that also write to it.
    for_reads: Mutex<ForReads>,
    mapping: Arc<Mapping>,
    file: OwnedFd,
    gone: Arc<Notify>,
}

/// Registration of an area for loans.
enum ForReads {
    /// No part was lent since the start, or since a request for a part did not end well.
    Not,
    At(Arc<Exposed>),
    Failed,
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

/// Part of an area that devices of stores may write to while they are asked to.
pub(crate) struct Loan {
    area: Arc<Area>,
    exposed: Arc<Exposed>,
    /// Addresses at which something of a store may come in.
    held: Mutex<Vec<Range<usize>>>,
}

/// Bytes of a loan that a store was asked to write to. They are held until nothing of it can come in any more.
pub(crate) struct Hold {
    loan: Arc<Loan>,
    bytes: Range<usize>,
}

/// Bytes that the devices of stores reach.
#[derive(Clone)]
pub(crate) struct Reached {
    area: Arc<Area>,
    at: u64,
    /// `None` if they only read them.
    hold: Option<Arc<Hold>>,
}

impl Areas {
    /// Creates an empty list. What is allocated is registered at the devices.
    pub(crate) fn new(rdma: Option<Arc<Rdma>>) -> Self {
        Self { rdma, ..Self::default() }
    }

    /// Allocates an area of zeros. Others may read it, and can't change it.
    pub(crate) fn allocate(&self, len: usize) -> io::Result<Arc<Area>> {
        self.allocate_for(len, None)
    }

    fn allocate_for(&self, len: usize, rdma: Option<&Rdma>) -> io::Result<Arc<Area>> {
        let file = memory_file("mc-client", len as u64).map_err(|(_, error)| error)?;
        let mapping = Arc::new(Mapping::new(&file, len as u64, Protection::Write)?);
        // A page that only a store reads would be taken from the store's memory, so a store takes no file without all its pages.
        mapping.populate(&file, 0..len as u64).map_err(|(_, error)| error)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        let for_writes = rdma.and_then(|rdma| expose(rdma, &mapping, Access::Write));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (for_reads, gone) = (Mutex::new(ForReads::Not), self.gone.clone());
        Ok(Arc::new(Area { number, for_writes, for_reads, mapping, file, gone }))
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
        let area = self.allocate_for(len, self.rdma.as_deref())?;
        self.listed.write().insert(area.base().as_ptr() as usize, area.clone());
        Ok(ListedArea { area, areas: self.clone() })
    }

    /// Returns what is told when an area is gone.
    pub(crate) fn gone(&self) -> Arc<Notify> {
        self.gone.clone()
    }

    /// Finds the area that has these bytes, and their place in it.
    pub(crate) fn find(&self, bytes: WriteBuffer<'_>) -> Option<(Arc<Area>, u64)> {
        let address = bytes.as_ptr() as usize;
        let listed = self.listed.read();
        let (base, area) = listed.range(..=address).next_back()?;
        let at = (address - base) as u64;
        area.mapping.contains(at, bytes.len() as u64).then(|| (area.clone(), at))
    }

    /// Finds bytes of an area that devices of stores may read.
    pub(crate) fn reach(&self, bytes: WriteBuffer<'_>) -> Option<Reached> {
        let (area, at) = self.find(bytes).filter(|_| bytes.len() >= WORTH_IT)?;
        area.for_writes.is_some().then_some(Reached { area, at, hold: None })
    }
}

/// Registers an area; `None` if that fails: then its bytes are copied.
fn expose(rdma: &Rdma, mapping: &Arc<Mapping>, access: Access) -> Option<Exposed> {
    let exposed = Exposed::beside_buffers(rdma, mapping, access);
    exposed.inspect_err(|why| tracing::warn!("{why}: its bytes are copied through buffers")).ok()
}

impl Reached {
    /// Key and address, for the device at the other end of `way`; each area is registered at every device.
    pub(crate) fn place(&self, way: usize) -> Option<(u32, u64)> {
        let exposed = match &self.hold {
            None => self.area.for_writes.as_ref()?,
            Some(hold) => &hold.loan.exposed,
        };
        Some((exposed.key(way)?, self.area.base().as_ptr() as u64 + self.at))
    }

    /// Sees to it that the key, which a store may still have packets with, ends with the loans that it was made for.
    pub(crate) fn retire(&self) {
        let Some(hold) = &self.hold else { return };
        let mut for_reads = self.area.for_reads.lock();
        if matches!(&*for_reads, ForReads::At(now) if Arc::ptr_eq(now, &hold.loan.exposed)) {
            *for_reads = ForReads::Not;
        }
    }
}

impl Area {
    /// Address of its first byte.
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    pub(crate) fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Copies bytes in, and adds the copy to a checksum.
    ///
    /// # Safety
    /// Nobody else may write there until the call has returned.
    pub(crate) unsafe fn write(&self, at: u64, bytes: WriteBuffer<'_>, sum: &mut RunningChecksum) {
        self.mapping.write(at, bytes);
        // SAFETY: inside of the mapping, where other processes only read, and the caller vouches for this one.
        sum.update(unsafe { std::slice::from_raw_parts(self.mapping.at(at), bytes.len()) });
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

    /// Whether [`Self::lend`] registers nothing.
    pub(crate) fn is_lent_at_once(&self) -> bool {
        self.areas.rdma.is_none() || !matches!(*self.area.for_reads.lock(), ForReads::Not)
    }

    /// Lets devices of stores write to a part of `len` bytes. The first call registers the area: some GiB take a second.
    /// `None` if there are no devices, they don't reach it, or it is not worth it.
    pub(crate) fn lend(&self, len: usize) -> Option<Arc<Loan>> {
        let rdma = self.areas.rdma.as_ref().filter(|_| len >= WORTH_IT)?;
        let mut for_reads = self.area.for_reads.lock();
        if matches!(*for_reads, ForReads::Not) {
            let exposed = expose(rdma, &self.area.mapping, Access::Read);
            *for_reads = exposed.map_or(ForReads::Failed, |exposed| ForReads::At(Arc::new(exposed)));
        }
        let ForReads::At(exposed) = &*for_reads else { return None };
        Some(Arc::new(Loan { area: self.area.clone(), exposed: exposed.clone(), held: Mutex::default() }))
    }
}

impl Loan {
    /// Lets a store write to bytes, which must lie inside; `None` if that is not worth it.
    pub(crate) fn reach(self: &Arc<Self>, base: NonNull<u8>, len: usize) -> Option<Reached> {
        if len < WORTH_IT {
            return None;
        }
        let address = base.as_ptr() as usize;
        let bytes = address..address + len;
        self.held.lock().push(bytes.clone());
        let hold = Some(Arc::new(Hold { loan: self.clone(), bytes }));
        let at = (address - self.area.base().as_ptr() as usize) as u64;
        Some(Reached { area: self.area.clone(), at, hold })
    }

    /// Whether nothing of a store can come in there.
    pub(crate) fn is_free(&self, base: NonNull<u8>, len: usize) -> bool {
        let start = base.as_ptr() as usize;
        self.held.lock().iter().all(|held| held.end <= start || start + len <= held.start)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.loan.held.lock();
        if let Some(at) = held.iter().position(|held| *held == self.bytes) {
            held.swap_remove(at);
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("held", &self.held.lock().len()).finish_non_exhaustive()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawBytes;

    #[test]
    fn bytes_are_found_in_the_area_that_has_all_of_them() {
        let areas = Arc::new(Areas::default());
        let (one, two) = (areas.allocate_listed(10_000).unwrap(), areas.allocate_listed(10_000).unwrap());
        let bytes = |area: &ListedArea, at: usize, len| {
            // SAFETY: inside the mapping, or only an address that is not followed.
            WriteBuffer::from(unsafe { RawBytes::new(area.base().add(at), len) })
        };
        let found = |bytes: WriteBuffer<'_>| areas.find(bytes).map(|(area, at)| (area.number, at));
        assert_eq!(found(bytes(&one, 0, 10_000)), Some((0, 0)));
        assert_eq!(found(bytes(&two, 9_990, 10)), Some((1, 9_990)));
        assert_eq!(found(bytes(&two, 9_990, 11)), None, "beyond its end");
        assert_eq!(found((&[1, 2, 3]).into()), None);
        drop(one);
        assert_eq!(areas.listed.read().len(), 1);
    }
}
