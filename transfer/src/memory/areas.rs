//! Memory of this process that is found by its addresses: areas that it shares with stores of its host, and memory of other owners.
//! The devices of other stores reach both by RDMA.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mc_types::Access;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::area::Area;
use super::error::RegisterError;
use super::exposures::{AllExposures, Exposures};
use super::limit;
use super::rdma::Rdma;
use super::write_buffer::WriteBuffer;

/// Maximum number of areas of callers, each of which takes a descriptor and a place at each store of this host.
const LISTED: usize = 128;
/// The memory that callers have allocated or registered, by its first address.
#[derive(Default)]
pub(crate) struct Areas {
    listed: RwLock<Listed>,
    /// Where it is registered with devices.
    exposures: Arc<AllExposures>,
    /// RDMA devices that the transports of this memory have opened.
    pub(crate) opened: Mutex<Vec<Weak<Rdma>>>,
    next: AtomicU64,
    /// Notified when an area is dropped.
    gone: Arc<Notify>,
}

#[derive(Default)]
struct Listed {
    by_address: BTreeMap<usize, Arc<Area>>,
    /// Number of areas that have a memory file.
    files: usize,
}

/// An area that is found by its bytes until it is dropped.
pub(crate) struct ListedArea {
    area: Arc<Area>,
    areas: Arc<Areas>,
}

impl Areas {
    /// [`Area::allocate`]s an area that is not found by its bytes.
    pub(crate) fn allocate(&self, len: usize) -> io::Result<Arc<Area>> {
        Ok(Arc::new(Area::allocate(self.next_number(), len, self.gone.clone())?))
    }

    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Allocates an area for the caller's bytes, and registers it for the bytes of writes.
    pub(crate) fn allocate_listed(self: &Arc<Self>, len: usize) -> io::Result<ListedArea> {
        // Taking the last of the machine's memory would get some process killed.
        if limit::available().is_some_and(|available| available.bytes < len as u64) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.listed.read().files >= LISTED {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let area = self.allocate(len)?;
        self.expose(&area, Access::Write);
        let mut listed = self.listed.write();
        listed.by_address.insert(area.base().as_ptr() as usize, area.clone());
        listed.files += 1;
        Ok(ListedArea { area, areas: self.clone() })
    }

    /// Adds memory of somebody else, and registers it for the bytes of writes.
    ///
    /// # Safety
    /// It must stay mapped until [`Self::unregister`] has removed it, or the value and all users of it are gone.
    pub(crate) unsafe fn register(&self, base: *mut u8, len: usize) -> Result<(), RegisterError> {
        let Some(base) = NonNull::new(base) else { return Err(RegisterError::Null) };
        let address = base.as_ptr() as usize;
        let end = address.checked_add(len).filter(|end| len > 0 && *end <= isize::MAX as usize);
        let end = end.ok_or(RegisterError::Length { address, len })?;
        let area = Arc::new(Area::foreign(self.next_number(), base, len, self.gone.clone()));
        {
            let mut listed = self.listed.write();
            if let Some((_, other)) = listed.by_address.range(..end).next_back()
                && other.addresses().end > address
            {
                let other = other.addresses();
                return Err(RegisterError::Overlap { asked: address..end, there: other });
            }
            listed.by_address.insert(address, area.clone());
        }
        self.expose(&area, Access::Write);
        Ok(())
    }

    /// Removes memory of somebody else, and ends its registrations.
    pub(crate) fn unregister(&self, address: usize) -> Result<(), RegisterError> {
        // Dropped without the lock: the last holder ends registrations.
        let users: Vec<Option<Arc<Exposures>>>;
        let area = {
            let mut listed = self.listed.write();
            let area = listed.by_address.get(&address).filter(|area| area.file().is_none());
            let area = area.ok_or(RegisterError::Unknown { address })?;
            // A registry that is being dropped (`None`) removes the registrations elsewhere.
            users = self.exposures.all();
            // Calls find it under this lock only, so nobody takes it any more.
            if Arc::strong_count(area) > 1 || users.iter().any(Option::is_none) {
                return Err(RegisterError::InUse { address, len: area.len() });
            }
            listed.by_address.remove(&address)
        };
        // The registrations of an area that no call has end here.
        area.iter().for_each(|area| users.iter().flatten().for_each(|user| user.forget(area.number)));
        Ok(())
    }

    /// Returns the notification that an area was dropped.
    pub(crate) fn gone(&self) -> Arc<Notify> {
        self.gone.clone()
    }

    /// Finds the area that contains these bytes, and their offset in it.
    pub(crate) fn find(&self, address: *const u8, len: usize) -> Option<(Arc<Area>, u64)> {
        let address = address as usize;
        let listed = self.listed.read();
        let (base, area) = listed.by_address.range(..=address).next_back()?;
        let at = address - base;
        at.checked_add(len).is_some_and(|end| end <= area.len()).then(|| (area.clone(), at as u64))
    }

    /// Finds bytes that stores of this host can copy by themselves.
    pub(crate) fn find_shared(&self, bytes: WriteBuffer<'_>) -> Option<(Arc<Area>, u64)> {
        self.find(bytes.as_ptr(), bytes.len()).filter(|(area, _)| area.file().is_some())
    }

    /// Returns the registrations at `rdma`, which all its users share.
    pub(crate) fn exposures(&self, rdma: &Arc<Rdma>) -> Arc<Exposures> {
        self.exposures.at(rdma)
    }

    fn users(&self) -> Vec<Arc<Exposures>> {
        self.exposures.all().into_iter().flatten().collect()
    }

    /// Registers an area with the devices of all users.
    fn expose(&self, area: &Arc<Area>, transfers: Access) {
        self.users().iter().for_each(|user| user.expose(area, transfers));
    }

    fn forget(&self, number: u64) {
        self.users().iter().for_each(|user| user.forget(number));
    }
}

impl ListedArea {
    pub(crate) fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Whether [`Self::lend`] returns at once because nothing has to be registered.
    pub(crate) fn is_lent_at_once(&self) -> bool {
        self.areas.users().iter().all(|user| user.knows(&self.area, Access::Read))
    }

    /// Lets devices of stores write to it. The first call registers the area: some GiB take a second.
    pub(crate) fn lend(&self) {
        self.areas.expose(&self.area, Access::Read);
    }
}

impl Drop for ListedArea {
    fn drop(&mut self) {
        let mut listed = self.areas.listed.write();
        listed.by_address.remove(&(self.area.base().as_ptr() as usize));
        listed.files -= 1;
        drop(listed);
        self.areas.forget(self.area.number);
    }
}

impl fmt::Debug for Areas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Areas").field("listed", &self.listed.read().by_address.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_in_the_area_that_has_all_of_them() {
        let areas = Arc::new(Areas::default());
        let (one, two) = (areas.allocate_listed(10_000).unwrap(), areas.allocate_listed(10_000).unwrap());
        let at = |area: &ListedArea, at: usize| area.area.base().as_ptr().wrapping_add(at).cast_const();
        let found = |address, len| areas.find(address, len).map(|(area, at)| (area.number, at));
        assert_eq!(found(at(&one, 0), 10_000), Some((0, 0)));
        assert_eq!(found(at(&two, 9_990), 10), Some((1, 9_990)));
        assert_eq!(found(at(&two, 9_990), 11), None, "beyond its end");
        assert_eq!(found(at(&two, 9_990), usize::MAX), None);
        assert_eq!(found([1, 2, 3].as_ptr(), 3), None);
        drop(one);
        assert_eq!((areas.listed.read().by_address.len(), areas.listed.read().files), (1, 1));
    }

    #[test]
    fn memory_of_others_is_found_until_it_is_unregistered_and_never_twice() {
        let areas = Arc::new(Areas::default());
        let ours = areas.allocate_listed(20_000).unwrap();
        let memory = vec![0_u8; 4_000];
        let base = memory.as_ptr().cast_mut();
        let at = |at: usize| base.wrapping_add(at);
        // SAFETY: mapped until the end, and nobody uses it.
        let register = |from: *mut u8, len| unsafe { areas.register(from, len) };
        register(at(1_000), 2_000).unwrap();
        let (start, end) = (at(1_000) as usize, at(3_000) as usize);
        for (from, len) in [(0, 1_001), (2_999, 1), (1_500, 10), (0, 4_000), (1_000, 2_000)] {
            let refused = register(at(from), len).unwrap_err();
            let asked = at(from) as usize..at(from + len) as usize;
            assert_eq!(refused, RegisterError::Overlap { asked, there: start..end });
        }
        assert!(matches!(register(ours.area.base().as_ptr(), 1), Err(RegisterError::Overlap { .. })));
        register(at(0), 1_000).unwrap();
        register(at(3_000), 1_000).unwrap();
        assert_eq!(register(std::ptr::null_mut(), 5), Err(RegisterError::Null));
        assert!(matches!(register(at(500), 0), Err(RegisterError::Length { len: 0, .. })));
        assert!(matches!(register(at(500), usize::MAX), Err(RegisterError::Length { .. })));

        let found = |from: usize, len| areas.find(at(from), len).is_some();
        assert!(found(1_000, 2_000) && found(2_999, 1) && !found(2_999, 2), "each range by itself");
        let bytes = WriteBuffer::from(&memory[1_000..2_000]);
        assert!(areas.find_shared(bytes).is_none(), "stores of this host can't map it");
        let (in_use, _) = areas.find(at(1_000), 10).unwrap();
        assert_eq!(areas.unregister(start), Err(RegisterError::InUse { address: start, len: 2_000 }));
        drop(in_use);
        areas.exposures.0.lock().push(Weak::new());
        let in_use = RegisterError::InUse { address: start, len: 2_000 };
        assert_eq!(areas.unregister(start), Err(in_use), "a registration is being dropped");
        areas.exposures.0.lock().clear();
        areas.unregister(start).unwrap();
        assert_eq!(areas.unregister(start), Err(RegisterError::Unknown { address: start }));
        let address = ours.area.base().as_ptr() as usize;
        assert_eq!(
            areas.unregister(address),
            Err(RegisterError::Unknown { address }),
            "it is no foreign memory"
        );
        assert!(!found(1_000, 10) && found(0, 10));
        register(at(1_500), 1).unwrap();
    }

    #[test]
    fn bytes_are_held_once() {
        let areas = Arc::new(Areas::default());
        let area = areas.allocate_listed(100).unwrap();
        let area = area.area();
        let at = |at: usize| NonNull::new(area.base().as_ptr().wrapping_add(at)).unwrap();
        assert!(area.hold(at(10), 10) && area.hold(at(20), 10));
        assert!(!area.hold(at(15), 10) && !area.hold(at(0), 11) && !area.hold(at(29), 1));
        assert!(area.is_free(at(0), 10) && area.is_free(at(30), 70) && !area.is_free(at(0), 100));
        area.let_go(at(10));
        assert!(area.hold(at(0), 20));
    }
}
