//! Requests whose bytes go through memory that this store shares with clients of its host.

use std::sync::Arc;

use mc_net::Tls;
use mc_types::TlsLevel;

use super::areas::{self, AreaTable};
use super::copies::Copiers;
use crate::control::server::{Closed, Exchange, Refusal};
use crate::control::wire::{Op, ShmRequest};
use crate::path::shm::ShmAccess;
use crate::path::{PermittedRequest, ServerPath};
use crate::transport::Seal;

/// Shared memory, as the connections of a data server use it.
pub(crate) struct ShmServer {
    /// Memory that clients of this host share with this store.
    pub(super) areas: AreaTable,
    copiers: Copiers,
    pub(super) tls: Option<Arc<Tls>>,
}

impl ShmServer {
    /// Creates it; `tls` are the certificates of the store.
    pub(crate) fn new(tls: Option<Arc<Tls>>) -> Self {
        Self { areas: AreaTable::default(), copiers: Copiers::new(), tls }
    }

    /// Whether the memory is shared now with those that `access` admits, or why it is not.
    pub(super) fn offers(&self, access: ShmAccess) -> Result<(), String> {
        match access {
            ShmAccess::Auto if self.wants_grants() => {
                Err("the store requires TLS, and shares its memory then only if it was started with --shm"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether clients have to show a grant that lets them map the memory.
    pub(super) fn wants_grants(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.level() == TlsLevel::Require)
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
        match kind {
            ShmRequest::Check => {
                exchange.verdict(Ok(()));
                Op::decode_all(ops).for_each(|op| exchange.check(grant, op));
            }
            ShmRequest::Write(seal) => {
                exchange.verdict(Ok(()));
                let memory = (&self.areas, &self.copiers);
                areas::write(exchange, memory, grant, ops, seal == Seal::Yes).await;
            }
            ShmRequest::Share(_) => {
                let why = "a TCP connection carries no descriptors: ask at the Unix socket".to_owned();
                exchange.verdict(Err(Refusal::OtherWay(why)));
            }
        }
        Ok(())
    }
}
