//! Bytes of a call that the devices of stores reach where they are.

use std::ptr::NonNull;
use std::sync::Arc;

use mc_types::Access;

use super::area::{Area, MIN_IN_PLACE};
use super::areas::Areas;
use super::exposed::Exposed;
use super::exposures::Exposures;
use super::read_buffer::{Filled, ReadBuffer};
use super::write_buffer::WriteBuffer;

/// Bytes that the devices of stores reach.
#[derive(Clone)]
pub(crate) struct Reached {
    exposures: Arc<Exposures>,
    /// Before the area: its owner may free the memory as soon as nobody has that, and a device must not have access to it then.
    exposed: Arc<Exposed>,
    area: Arc<Area>,
    at: u64,
    len: u64,
    /// `None` if the devices of stores only read the bytes.
    hold: Option<Arc<Hold>>,
}

/// Bytes that a store was asked to write to. They stay held until no write of that store can arrive any more.
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

impl Reached {
    /// Finds bytes that devices of stores may read.
    pub(crate) fn of_write(
        areas: &Areas,
        exposures: &Arc<Exposures>,
        bytes: WriteBuffer<'_>,
    ) -> Option<Self> {
        if bytes.len() < MIN_IN_PLACE {
            return None;
        }
        let (area, at) = areas.find(bytes.as_ptr(), bytes.len())?;
        let exposed = exposures.exposed(&area, Access::Write)?;
        Self { exposures: exposures.clone(), area, exposed, at, len: bytes.len() as u64, hold: None }
            .anywhere()
    }

    /// Lets devices of stores write to the memory of a read as long as the result exists. `None` if they don't reach it, or
    /// another read has some of it.
    pub(crate) fn of_read(
        areas: &Areas,
        exposures: &Arc<Exposures>,
        buffer: &ReadBuffer<'_>,
    ) -> Option<Self> {
        let is_raw = match buffer.filled() {
            Filled::Borrowed | Filled::Device(_) => return None,
            Filled::Lent(_) => false,
            Filled::Raw => true,
        };
        let (base, len) = (buffer.base(), buffer.len());
        if len < MIN_IN_PLACE {
            return None;
        }
        let (area, at) = areas.find(base.as_ptr(), len)?;
        let exposed = exposures.exposed(&area, Access::Read)?;
        if !area.hold(base, len) {
            return None;
        }
        let hold = Some(Arc::new(Hold { area: area.clone(), base, is_raw }));
        Self { exposures: exposures.clone(), area, exposed, at, len: len as u64, hold }.anywhere()
    }

    /// Returns the bytes if one registration covers all of them.
    fn anywhere(self) -> Option<Self> {
        self.exposed.covers(self.at, self.len).then_some(self)
    }

    /// Key and address, for the device at the other end from `device`; each area is registered at every device.
    pub(crate) fn place(&self, device: usize) -> Option<(u32, u64)> {
        Some((self.exposed.key(device, self.at)?, self.area.base().as_ptr() as u64 + self.at))
    }

    /// Ends the registration for writes of devices, after a request that did not end well: a store may still have packets with its key.
    pub(crate) fn retire(&self) {
        if self.hold.is_some() {
            self.exposures.retire(&self.area, &self.exposed);
        }
    }

    /// Whether its memory is the caller's as soon as its call ends, although devices write there.
    pub(crate) fn is_raw(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.is_raw)
    }
}
