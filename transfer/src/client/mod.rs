//! Calls of a client: each is cut into turns, and each turn goes over one connection, with its bytes by one of the paths.
//!
//! [`TcpTransport`] has the connections; [`ShmTransport`] reads past them where it can.

mod call;
mod calls;
mod pool;
mod shm;
mod work;

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use mc_types::SealedGrant;
use tokio::time::Instant;

pub(crate) use self::calls::{Answered, Calls};
pub use self::shm::{OnShared, ShmTransport};
use crate::checksum::Checksum;
use crate::control::client::TcpOptions;
use crate::memory::{Areas, Rdma};
use crate::path::ClientPath;
use crate::path::rdma::client::{OnRdma, RDMA, RdmaClient};
use crate::report::{PeerReport, PeerTransport};
use crate::transport::{Peer, ReadOp, Seal, TransferError, Transport, WriteOp};
use crate::{HostMemory, RegisterError, RegisteredMemory, WriteBuffer};

/// Transfers over TCP: pooled connections per store, large batches striped over them.
///
/// Each call does its own I/O in the caller's future, on connections that no other call uses meanwhile. A call that
/// fails, reaches its deadline or is dropped closes the connections that it had not finished with. Large calls queue for
/// connections, first come, first served, and again after each turn of some megabytes, so they can't hold each other up for longer
/// than that. Small calls do not queue: when all connections are taken, they share one more for reads and one for writes, with
/// many requests under route. The task of such a connection runs on the runtime of the call that needed it first.
pub struct TcpTransport {
    calls: Calls,
    areas: Arc<Areas>,
}

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

    /// Memory of the caller that stores reach.
    pub(crate) fn areas(&self) -> &Arc<Areas> {
        &self.areas
    }

    /// Its calls, for requests of other paths.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    fn with(
        options: TcpOptions,
        memory: &HostMemory,
        beside: Result<Arc<dyn ClientPath>, PeerTransport>,
    ) -> Self {
        Self { calls: Calls::new(options, beside), areas: memory.areas().clone() }
    }
}

impl Default for TcpTransport {
    fn default() -> Self {
        Self::new(TcpOptions::default())
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTransport").finish_non_exhaustive()
    }
}

impl Transport for TcpTransport {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        Box::pin(self.calls.read(peer, grant, ops, deadline))
    }

    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        Box::pin(self.calls.write(peer, grant, ops, seal, deadline))
    }

    fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        if self.calls.have_path_beside() {
            RegisteredMemory::in_area(&self.areas, len)
        } else {
            RegisteredMemory::allocate(len)
        }
    }

    fn copies_late(&self, bytes: WriteBuffer<'_>) -> bool {
        self.areas.find_shared(bytes).is_some()
    }

    fn peers(&self) -> Vec<PeerReport> {
        self.calls.report()
    }
}
