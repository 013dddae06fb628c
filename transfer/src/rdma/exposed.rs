//! Memory of a client that stores reach by a key.

use std::sync::Arc;

use mc_types::Access;
use mc_verbs::{PinLimit, Region};

use super::buffers::MOST_BYTES;
use super::{NoRdma, Rdma};
use crate::mapping::Mapping;

/// Registration of a client's memory at each of its devices, for the devices of stores.
pub(crate) struct Exposed {
    /// By the number of the way.
    regions: Vec<Region>,
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

    /// Registers memory for transfers of one kind. For writes, stores only read it.
    pub(crate) fn new(rdma: &Rdma, memory: &Arc<Mapping>, transfers: Access) -> Result<Self, NoRdma> {
        let access = match transfers {
            Access::Write => mc_verbs::Access::RemoteRead,
            Access::Read => mc_verbs::Access::Remote,
        };
        let regions = rdma.ways.iter().map(|way| Region::new(&way.domain, memory.clone(), access));
        let regions = regions.collect::<Result<_, _>>().map_err(|error| NoRdma(error.to_string()));
        // Callers see areas, also in a child.
        memory.leave_to_children();
        let regions = regions?;
        Ok(Self { regions })
    }

    /// The key at the device `way`.
    pub(crate) fn key(&self, way: usize) -> Option<u32> {
        self.regions.get(way).map(Region::remote_key)
    }
}
