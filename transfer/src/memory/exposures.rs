//! Registrations of memory of this process with its RDMA devices.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use mc_types::Access;
use parking_lot::Mutex;

use super::area::Area;
use super::exposed::Exposed;
use super::rdma::Rdma;
use super::staging::MOST_BYTES;

/// The registrations of areas with the same devices. They end with the last transport that uses them, and each with its area.
pub(crate) struct Exposures {
    all: Arc<AllExposures>,
    rdma: Arc<Rdma>,
    /// Registration of each area, by the area's number and by whether devices of stores also write to it.
    of_areas: Mutex<HashMap<(u64, IsWritten), Registration>>,
}

/// Whether devices of stores also write to the area. An area that no read has used is registered for their reads alone.
type IsWritten = bool;

enum Registration {
    /// A call is registering the area.
    Begun,
    At(Arc<Exposed>),
    Failed,
}

/// The registrations of the same areas with all devices. Each removes itself when its registrations have ended.
#[derive(Default)]
pub(super) struct AllExposures(pub(super) Mutex<Vec<Weak<Exposures>>>);

impl AllExposures {
    /// Returns the registrations at `rdma`, which all its users share.
    pub(super) fn at(self: &Arc<Self>, rdma: &Arc<Rdma>) -> Arc<Exposures> {
        let mut users = self.0.lock();
        let all: Vec<_> = users.iter().filter_map(Weak::upgrade).collect();
        let there = all.iter().find(|user| Arc::ptr_eq(&user.rdma, rdma)).cloned();
        let exposures = there.unwrap_or_else(|| {
            let new = Exposures { all: self.clone(), rdma: rdma.clone(), of_areas: Mutex::default() };
            let new = Arc::new(new);
            users.push(Arc::downgrade(&new));
            new
        });
        // Release the lock before `all` is dropped: an entry whose other handles are gone ends with it, and removes
        // itself from this list.
        drop(users);
        exposures
    }

    /// Returns all; `None` for those that are being dropped, whose registrations may not have ended.
    pub(super) fn all(&self) -> Vec<Option<Arc<Exposures>>> {
        self.0.lock().iter().map(Weak::upgrade).collect()
    }

    /// Removes registrations that have ended.
    fn ended(&self, user: &Exposures) {
        self.0.lock().retain(|other| !std::ptr::eq(other.as_ptr(), user));
    }
}

impl Exposures {
    /// Registers an area, unless that was tried before: some GiB take a second. If it fails, its bytes are copied.
    pub(crate) fn expose(&self, area: &Arc<Area>, transfers: Access) {
        if self.begin(area, transfers) {
            self.go_on(area, transfers);
        }
    }

    /// Whether [`Self::expose`] has nothing to do.
    pub(crate) fn knows(&self, area: &Area, transfers: Access) -> bool {
        self.of_areas.lock().contains_key(&key(area, transfers))
    }

    /// Ends the registrations of an area.
    pub(crate) fn forget(&self, number: u64) {
        let ended = [false, true].map(|is_written| self.of_areas.lock().remove(&(number, is_written)));
        // Outside of the lock: it takes a while.
        drop(ended);
    }

    /// Ends a registration for writes of devices, unless another one took its place.
    pub(super) fn retire(&self, area: &Area, exposed: &Arc<Exposed>) {
        let mut of_areas = self.of_areas.lock();
        let key = key(area, Access::Read);
        if matches!(of_areas.get(&key), Some(Registration::At(now)) if Arc::ptr_eq(now, exposed)) {
            of_areas.remove(&key);
        }
    }

    fn begin(&self, area: &Area, transfers: Access) -> bool {
        let mut of_areas = self.of_areas.lock();
        let is_new = !of_areas.contains_key(&key(area, transfers));
        if is_new {
            of_areas.insert(key(area, transfers), Registration::Begun);
        }
        is_new
    }

    fn go_on(&self, area: &Area, transfers: Access) {
        let exposed = Exposed::beside_buffers(self.rdma.devices(), &area.exposable(), transfers, MOST_BYTES);
        let exposed =
            exposed.inspect_err(|why| tracing::warn!("{why}: its bytes are copied through buffers"));
        let state = exposed.map_or(Registration::Failed, |exposed| Registration::At(Arc::new(exposed)));
        // There is no entry if the area was forgotten during the registration.
        if let Some(begun) = self.of_areas.lock().get_mut(&key(area, transfers)) {
            *begun = state;
        }
    }

    /// Returns the registration of an area; `None` if there is none yet. Then it is begun in the background, and keeps the area in use.
    pub(super) fn exposed(self: &Arc<Self>, area: &Arc<Area>, transfers: Access) -> Option<Arc<Exposed>> {
        match self.of_areas.lock().get(&key(area, transfers)) {
            Some(Registration::At(exposed)) => return Some(exposed.clone()),
            Some(Registration::Begun | Registration::Failed) => return None,
            None => {}
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        if self.begin(area, transfers) {
            let (exposures, area) = (self.clone(), area.clone());
            drop(runtime.spawn_blocking(move || exposures.go_on(&area, transfers)));
        }
        None
    }
}

impl Drop for Exposures {
    fn drop(&mut self) {
        self.of_areas.get_mut().clear();
        // Memory can't be unregistered before.
        self.all.ended(self);
    }
}

fn key(area: &Area, transfers: Access) -> (u64, IsWritten) {
    (area.number, transfers == Access::Read)
}

impl fmt::Debug for Exposures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposures").field("areas", &self.of_areas.lock().len()).finish_non_exhaustive()
    }
}
