//! Registrations of memory of this process with its RDMA devices.

use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use mc_types::Access;
use parking_lot::Mutex;

use super::areas::{Area, Areas, WORTH_IT};
use super::read_buffer::{Filled, ReadBuffer};
use super::write_buffer::WriteBuffer;
use crate::rdma::{Exposed, Rdma};

/// The registrations of areas with the same devices. They end with the last transport that uses them, and each with its area.
pub(crate) struct Exposures {
    areas: Arc<Areas>,
    rdma: Arc<Rdma>,
    /// By the number of the area, and what devices of stores do there.
    of_areas: Mutex<HashMap<(u64, IsWritten), State>>,
}

/// Whether devices of stores also write: an area that was in no read is registered for their reads alone.
type IsWritten = bool;

enum State {
    /// A call registers it.
    Begun,
    At(Arc<Exposed>),
    Failed,
}

/// Bytes that the devices of stores reach.
#[derive(Clone)]
pub(crate) struct Reached {
    exposures: Arc<Exposures>,
    /// Before the area: its owner may free the memory as soon as nobody has that, and a device must not have access to it then.
    exposed: Arc<Exposed>,
    area: Arc<Area>,
    at: u64,
    len: u64,
    /// `None` if they only read them.
    hold: Option<Arc<Hold>>,
}

/// Bytes that a store was asked to write to. They are held until nothing of it can come in any more.
struct Hold {
    area: Arc<Area>,
    base: NonNull<u8>,
    is_raw: bool,
}

// SAFETY: an address, which is not followed.
#[allow(unsafe_code)]
unsafe impl Send for Hold {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Hold {}

impl Drop for Hold {
    fn drop(&mut self) {
        self.area.let_go(self.base);
    }
}

impl Exposures {
    pub(crate) fn new(areas: Arc<Areas>, rdma: Arc<Rdma>) -> Self {
        Self { areas, rdma, of_areas: Mutex::default() }
    }

    pub(crate) fn rdma(&self) -> &Arc<Rdma> {
        &self.rdma
    }

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

    fn begin(&self, area: &Area, transfers: Access) -> bool {
        let mut of_areas = self.of_areas.lock();
        let is_new = !of_areas.contains_key(&key(area, transfers));
        if is_new {
            of_areas.insert(key(area, transfers), State::Begun);
        }
        is_new
    }

    fn go_on(&self, area: &Area, transfers: Access) {
        let exposed = Exposed::beside_buffers(&self.rdma, &area.exposable(), transfers);
        let exposed =
            exposed.inspect_err(|why| tracing::warn!("{why}: its bytes are copied through buffers"));
        let state = exposed.map_or(State::Failed, |exposed| State::At(Arc::new(exposed)));
        // It is gone if the area was forgotten meanwhile.
        if let Some(begun) = self.of_areas.lock().get_mut(&key(area, transfers)) {
            *begun = state;
        }
    }

    /// Returns the registration of an area; `None` if there is none yet. Then it is begun in the background, and keeps the area in use.
    fn exposed(self: &Arc<Self>, area: &Arc<Area>, transfers: Access) -> Option<Arc<Exposed>> {
        match self.of_areas.lock().get(&key(area, transfers)) {
            Some(State::At(exposed)) => return Some(exposed.clone()),
            Some(State::Begun | State::Failed) => return None,
            None => {}
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        if self.begin(area, transfers) {
            let (exposures, area) = (self.clone(), area.clone());
            drop(runtime.spawn_blocking(move || exposures.go_on(&area, transfers)));
        }
        None
    }

    /// Finds bytes that devices of stores may read.
    pub(crate) fn reach_write(self: &Arc<Self>, bytes: WriteBuffer<'_>) -> Option<Reached> {
        if bytes.len() < WORTH_IT {
            return None;
        }
        let (area, at) = self.areas.find(bytes.as_ptr(), bytes.len())?;
        let exposed = self.exposed(&area, Access::Write)?;
        Reached { exposures: self.clone(), area, exposed, at, len: bytes.len() as u64, hold: None }.anywhere()
    }

    /// Lets devices of stores write to the memory of a read as long as the result exists. `None` if they don't reach it, or
    /// another read has some of it.
    pub(crate) fn reach_read(self: &Arc<Self>, buffer: &ReadBuffer<'_>) -> Option<Reached> {
        let is_raw = match buffer.filled() {
            Filled::Borrowed | Filled::Device(_) => return None,
            Filled::Lent(_) => false,
            Filled::Raw => true,
        };
        let (base, len) = (buffer.base(), buffer.len());
        if len < WORTH_IT {
            return None;
        }
        let (area, at) = self.areas.find(base.as_ptr(), len)?;
        let exposed = self.exposed(&area, Access::Read)?;
        if !area.hold(base, len) {
            return None;
        }
        let hold = Some(Arc::new(Hold { area: area.clone(), base, is_raw }));
        Reached { exposures: self.clone(), area, exposed, at, len: len as u64, hold }.anywhere()
    }
}

impl Drop for Exposures {
    fn drop(&mut self) {
        self.of_areas.get_mut().clear();
        // Memory can't be unregistered before.
        self.areas.ended(self);
    }
}

fn key(area: &Area, transfers: Access) -> (u64, IsWritten) {
    (area.number, transfers == Access::Read)
}

impl Reached {
    /// Itself, if it is registered as a whole.
    fn anywhere(self) -> Option<Self> {
        self.exposed.covers(self.at, self.len).then_some(self)
    }

    /// Key and address, for the device at the other end of `way`; each area is registered at every device.
    pub(crate) fn place(&self, way: usize) -> Option<(u32, u64)> {
        Some((self.exposed.key(way, self.at)?, self.area.base().as_ptr() as u64 + self.at))
    }

    /// Ends the registration for writes of devices, after a request that did not end well: a store may still have packets with its key.
    pub(crate) fn retire(&self) {
        if self.hold.is_some() {
            let mut of_areas = self.exposures.of_areas.lock();
            let key = key(&self.area, Access::Read);
            if matches!(of_areas.get(&key), Some(State::At(now)) if Arc::ptr_eq(now, &self.exposed)) {
                of_areas.remove(&key);
            }
        }
    }

    /// Whether its memory is the caller's as soon as its call ends, although devices write there.
    pub(crate) fn is_raw(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.is_raw)
    }
}

impl fmt::Debug for Exposures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposures").field("areas", &self.of_areas.lock().len()).finish_non_exhaustive()
    }
}
