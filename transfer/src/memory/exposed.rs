//! Client memory that stores reach by a remote key.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use mc_types::Access;
use mc_verbs::{PinLimit, Region};

use super::mapping::Mapping;
use super::rdma_devices::{Devices, NoRdma};
use super::registered::{Mapped, Pieces, on_threads};

/// Memory that can be exposed.
pub(crate) enum Exposable<'a> {
    /// Memory of this process, which the registration keeps mapped.
    Shared(&'a Arc<Mapping>),
    /// Memory of somebody else, who keeps it mapped until it is unregistered.
    Foreign(NonNull<u8>, usize),
}

// SAFETY: addresses, which devices are told of.
unsafe impl Sync for Exposable<'_> {}

/// Registration of a client's memory at each of its devices, for the devices of stores.
pub(crate) struct Exposed {
    /// By the number of the device; `None` at a device that failed.
    at_devices: Vec<Option<Pieces>>,
}

impl Exposable<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Shared(mapping) => mapping.len(),
            Self::Foreign(_, len) => *len as u64,
        }
    }
}

impl Exposed {
    /// [`Self::new`] for memory of the caller, if the limit of pinned memory then still has room for `buffers` bytes at each device:
    /// without these, other memory could not go by RDMA at all.
    pub(crate) fn beside_buffers(
        devices: &Devices,
        memory: &Exposable<'_>,
        transfers: Access,
        buffers: u64,
    ) -> Result<Self, NoRdma> {
        let (limit, count) = (PinLimit::of_this_process(), devices.opened.len() as u64);
        if limit.is_exceeded_by((memory.len() + buffers).saturating_mul(count)) {
            let len = memory.len();
            return Err(NoRdma(format!("no room for {len} bytes of the caller beside buffers: {limit}")));
        }
        Self::new(devices, memory, transfers)
    }

    /// Registers memory for transfers of one kind, at one device at least. For writes, stores only read it.
    pub(crate) fn new(devices: &Devices, memory: &Exposable<'_>, transfers: Access) -> Result<Self, NoRdma> {
        let access = match transfers {
            Access::Write => mc_verbs::Access::RemoteRead,
            Access::Read => mc_verbs::Access::Remote,
        };
        let tried = on_threads(devices.opened.len(), devices.opened.len(), |nth| {
            let device = &devices.opened[nth];
            match *memory {
                Exposable::Shared(mapping) => {
                    let region = Region::new(&device.domain, mapping.clone(), access);
                    region.map(Pieces::whole).map_err(|error| error.to_string())
                }
                Exposable::Foreign(base, len) => {
                    // SAFETY: its owner keeps it mapped until `Areas::unregister` has dropped this value.
                    let memory = unsafe { Mapped::new(base, len) };
                    Pieces::new(device, memory, access).map_err(|error| error.to_string())
                }
            }
        });
        let mut lacks = Vec::new();
        let at_devices = tried.into_iter().map(|pieces| pieces.map_err(|error| lacks.push(error)).ok());
        let at_devices: Vec<_> = at_devices.collect();
        if let Exposable::Shared(mapping) = memory {
            // Callers see areas, also in a child.
            mapping.leave_to_children();
        }
        if at_devices.iter().all(Option::is_none) {
            return Err(NoRdma(lacks.join("; ")));
        }
        if !lacks.is_empty() {
            tracing::warn!("memory can't be reached by every RDMA device: {}", lacks.join("; "));
        }
        Ok(Self { at_devices })
    }

    /// Whether a range of at least one byte has one key at each device.
    pub(crate) fn covers(&self, at: u64, len: u64) -> bool {
        self.at_devices.iter().flatten().all(|pieces| pieces.covers(at, len))
    }

    /// The key of a byte, and those up to the end of its range, at a device.
    pub(crate) fn key(&self, device: usize, at: u64) -> Option<u32> {
        self.at_devices.get(device)?.as_ref()?.remote_key(at)
    }
}
