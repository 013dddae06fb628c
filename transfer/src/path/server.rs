//! The store's ends of all paths: each request goes to the one that its kind names.

use std::sync::Arc;

use mc_net::Tls;
use mc_types::Grant;

use super::rdma::server::{ConnectionPair, Pairs};
use super::shm::server::ShmServer;
use super::tcp::server::Inline;
use super::{PermittedRequest, ServerPath as _};
use crate::control::server::{Closed, Exchange};
use crate::control::wire::{Request, RequestKind};
use crate::memory::Rdma;

/// The paths of a data server.
pub(crate) struct ServerPaths {
    pub(crate) shm: ShmServer,
    rdma: Pairs,
}

/// The paths of one connection.
pub(crate) struct ConnectionPaths<'a> {
    tcp: Inline,
    shm: &'a ShmServer,
    rdma: ConnectionPair<'a>,
}

impl ServerPaths {
    /// Creates the paths of a store with the certificates `tls`, with at most `max_pairs` connections by RDMA.
    pub(crate) fn new(rdma: Option<Arc<Rdma>>, max_pairs: usize, tls: Option<Arc<Tls>>) -> Self {
        Self { shm: ShmServer::new(tls), rdma: Pairs::new(rdma, max_pairs) }
    }

    pub(crate) fn of_connection(&self) -> ConnectionPaths<'_> {
        ConnectionPaths { tcp: Inline, shm: &self.shm, rdma: ConnectionPair::new(&self.rdma) }
    }

    /// Returns when no request of a connection that has ended touches the memory any more.
    pub(crate) async fn ended(&self) {
        self.shm.ended().await;
    }
}

impl ConnectionPaths<'_> {
    /// Serves a request whose grant permits it: see [`super::ServerPath::serve`].
    pub(crate) async fn serve(
        &mut self,
        exchange: &mut Exchange<'_>,
        Request { id, kind, .. }: Request,
        grant: &Grant,
        ops: &[u8],
    ) -> Result<(), Closed> {
        match kind {
            RequestKind::Tcp(kind) => {
                self.tcp.serve(exchange, PermittedRequest { id, kind, grant, ops }).await
            }
            RequestKind::Shm(kind) => {
                self.shm.serve(exchange, PermittedRequest { id, kind, grant, ops }).await
            }
            RequestKind::Rdma(kind) => {
                self.rdma.serve(exchange, PermittedRequest { id, kind, grant, ops }).await
            }
        }
    }

    /// Returns when another connection needs what a path keeps for this one.
    pub(crate) async fn wanted(&self) {
        tokio::select! {
            () = self.tcp.wanted() => {}
            () = self.shm.wanted() => {}
            () = self.rdma.wanted() => {}
        }
    }
}
