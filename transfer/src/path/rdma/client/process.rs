use std::sync::Arc;

use mc_types::Access;

use crate::memory::{Areas, Exposures, Rdma};

/// RDMA, as the calls of a transport may use it.
pub(crate) struct RdmaClient {
    pub(crate) rdma: Arc<Rdma>,
    pub(crate) areas: Arc<Areas>,
    /// Where the areas are registered, for the devices of stores.
    pub(crate) exposures: Arc<Exposures>,
    /// Whether bytes may go by RDMA alone.
    pub(crate) only: bool,
    pub(crate) on_moved: OnRdma,
}

/// Callback with the number of bytes of each part of a transfer that went by RDMA and was found good.
pub type OnRdma = Box<dyn Fn(Access, u64) + Send + Sync>;

impl RdmaClient {
    /// Number of this process's devices.
    pub(super) fn device_count(&self) -> usize {
        self.rdma.len()
    }
}
