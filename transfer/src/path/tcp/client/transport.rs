use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use mc_types::SealedGrant;
use tokio::time::Instant;

use super::calls::Calls;
use crate::checksum::Checksum;
use crate::control::client::TcpOptions;
use crate::memory::Areas;
use crate::path::ClientPath;
use crate::report::{PeerReport, PeerTransport};
use crate::transport::{Peer, ReadOp, Seal, TransferError, Transport, WriteOp, Written};
use crate::{HostMemory, RegisterError, RegisteredMemory, WriteBuffer};

/// Transfers over TCP: pooled connections per store, large batches striped over them.
///
/// Each call does its own I/O in the caller's future, on connections that no other call uses meanwhile. A call that
/// fails, reaches its deadline or is dropped closes the connections that it had not finished with. Large calls queue for
/// connections, first come, first served, and again after each turn of some megabytes, so they can't hold each other up for longer
/// than that. Small calls do not queue: when all connections are taken, they share one more for reads and one for writes, with
/// many requests under way. The task of such a connection runs on the runtime of the call that needed it first.
pub struct TcpTransport {
    calls: Calls,
    areas: Arc<Areas>,
}

impl TcpTransport {
    /// Memory of the caller that stores reach.
    pub(crate) fn areas(&self) -> &Arc<Areas> {
        &self.areas
    }

    /// Its calls, for requests of other paths.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Creates a transport with a path beside its connections, or with the report on one that this process does not have.
    pub(crate) fn with(
        options: TcpOptions,
        memory: &HostMemory,
        beside: Result<Arc<dyn ClientPath>, PeerTransport>,
    ) -> Self {
        Self { calls: Calls::new(options, beside), areas: memory.areas().clone() }
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
    ) -> BoxFuture<'a, Vec<Result<Written, TransferError>>> {
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
