//! The client's end of transfers: which paths its transports use.
//!
//! [`TcpTransport`] has the connections, over which every request goes, and may have RDMA beside them.
//! [`ShmTransport`](crate::ShmTransport) uses shared memory where it can, and a [`TcpTransport`] elsewhere.

use std::sync::Arc;

use crate::memory::Rdma;
use crate::path::rdma::client::{OnRdma, RDMA, RdmaClient};
use crate::report::PeerTransport;
use crate::{HostMemory, TcpOptions, TcpTransport};

impl TcpTransport {
    /// Creates a transport without connections; they are made when they are needed.
    #[must_use]
    pub fn new(options: TcpOptions) -> Self {
        Self::without_rdma(options, &HostMemory::new(), "this transport was made without it".to_owned())
    }

    /// Creates a transport without RDMA, which reports `why`.
    #[must_use]
    pub fn without_rdma(options: TcpOptions, memory: &HostMemory, why: String) -> Self {
        Self::with(options, memory, Err(PeerTransport::unusable(RDMA, why)))
    }

    /// Creates a transport whose payload goes by RDMA where the store offers it too, and otherwise over the connections. With
    /// `only` nothing but small requests goes over those, and a store that can't be reached by RDMA is an error.
    #[must_use]
    pub fn with_rdma(
        options: TcpOptions,
        memory: &HostMemory,
        rdma: Arc<Rdma>,
        only: bool,
        on_moved: OnRdma,
    ) -> Self {
        let areas = memory.areas().clone();
        let exposures = areas.exposures(&rdma);
        Self::with(options, memory, Ok(Arc::new(RdmaClient { rdma, areas, exposures, only, on_moved })))
    }
}

impl Default for TcpTransport {
    fn default() -> Self {
        Self::new(TcpOptions::default())
    }
}
