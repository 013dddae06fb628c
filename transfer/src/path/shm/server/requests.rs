//! Requests whose bytes go through memory that this store shares with clients of its host.

use super::areas::{self, AreaTable};
use super::copies::Copiers;
use crate::control::server::{Closed, Exchange};
use crate::control::wire::{Op, ShmRequest};
use crate::path::{PermittedRequest, ServerPath};
use crate::transport::Seal;

/// Shared memory, as the connections of a data server use it.
pub(crate) struct ShmServer {
    /// Memory that clients of this host share with this store.
    pub(super) areas: AreaTable,
    copiers: Copiers,
}

impl ShmServer {
    pub(crate) fn new() -> Self {
        Self { areas: AreaTable::default(), copiers: Copiers::new() }
    }

    /// Returns when no copy of a request is under way: see [`Copiers::ended`].
    pub(crate) async fn ended(&self) {
        self.copiers.ended().await;
    }
}

impl ServerPath for &ShmServer {
    type Request = ShmRequest;

    async fn serve(
        &mut self,
        exchange: &mut Exchange<'_>,
        PermittedRequest { kind, grant, ops, .. }: PermittedRequest<'_, ShmRequest>,
    ) -> Result<(), Closed> {
        exchange.verdict(Ok(()));
        match kind {
            ShmRequest::Check => Op::decode_all(ops).for_each(|op| exchange.check(grant, op)),
            ShmRequest::Write(seal) => {
                let memory = (&self.areas, &self.copiers);
                areas::write(exchange, memory, grant, ops, seal == Seal::Yes).await;
            }
        }
        Ok(())
    }
}
