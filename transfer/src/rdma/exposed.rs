//! Memory of a client that stores reach by a key.

use std::sync::Arc;

use mc_types::Access;
use mc_verbs::{PinLimit, Region};

use super::buffers::MOST_BYTES;
use super::{NoRdma, Rdma};
use crate::mapping::Mapping;

/// Registration of a client's memory at each of its devices, for the devices of stores.
pub(crate) struct Exposed {
    /// By the number of the way; `None` at a device that failed.
    regions: Vec<Option<Region>>,
}

impl Exposed {
    /// [`Self::new`] for memory of the caller, if the limit of pinned memory then still has room for buffers: without these, other
    /// memory could not go by RDMA at all.
    pub(crate) fn beside_buffers(
        rdma: &Rdma,
        memory: &Arc<Mapping>,
        transfers: Access,
    ) -> Result<Self, NoRdma> {
        let (limit, ways) = (PinLimit::of_this_process(), rdma.ways.len() as u64);
        if limit.is_exceeded_by((memory.len() + MOST_BYTES).saturating_mul(ways)) {
            let len = memory.len();
            return Err(NoRdma(format!("no room for {len} bytes of the caller beside buffers: {limit}")));
        }
        Self::new(rdma, memory, transfers)
    }

    /// Registers memory for transfers of one kind, at one device at least. For writes, stores only read it.
    pub(crate) fn new(rdma: &Rdma, memory: &Arc<Mapping>, transfers: Access) -> Result<Self, NoRdma> {
        let access = match transfers {
            Access::Write => mc_verbs::Access::RemoteRead,
            Access::Read => mc_verbs::Access::Remote,
        };
        let mut lacks = Vec::new();
        let regions = rdma.ways.iter().map(|way| {
            let region = Region::new(&way.domain, memory.clone(), access);
            region.map_err(|error| lacks.push(error.to_string())).ok()
        });
        let regions: Vec<_> = regions.collect();
        // Callers see areas, also in a child.
        memory.leave_to_children();
        if regions.iter().all(Option::is_none) {
            return Err(NoRdma(lacks.join("; ")));
        }
        if !lacks.is_empty() {
            tracing::warn!("memory can't be reached by every RDMA device: {}", lacks.join("; "));
        }
        Ok(Self { regions })
    }

    /// The key at the device `way`.
    pub(crate) fn key(&self, way: usize) -> Option<u32> {
        self.regions.get(way)?.as_ref().map(Region::remote_key)
    }
}
