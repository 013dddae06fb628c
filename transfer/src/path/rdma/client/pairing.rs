//! The queue pair beside a connection: how it is made, and tried.

use std::time::Duration;

use mc_types::{Access, SealedGrant};

use super::buffers::Buffers;
use super::end::ClientEnd;
use super::failure::{RdmaFailure, within};
use super::process::RdmaClient;
use super::routes::{Routes, devices_of};
use crate::blocking_drop::BlockingDrop;
use crate::control::client::{Link, Refused};
use crate::control::wire::{
    END_LEN, End, Op, PROBE_LEN, PROBE_SINCE, RDMA_SINCE, RdmaOp, RdmaRequest, RequestKind,
};
use crate::memory::Staging;

/// A connection, and the queue pair beside it, if it has one.
pub(super) struct PairedLink<'a> {
    pub(super) link: &'a mut Link,
    pub(super) pair: &'a mut Option<Pair>,
}

/// The end of a pair beside a connection.
pub(super) struct Pair {
    pub(super) end: BlockingDrop<ClientEnd>,
    pub(super) route: usize,
}

impl Pair {
    pub(super) fn new(end: ClientEnd, route: usize) -> Self {
        Self { end: BlockingDrop::new(end), route }
    }
}

/// Why a connection has no queue pair.
pub(super) enum NoPair {
    /// No route can be tried now.
    NoRoute(String),
    /// The store refused the grant, or knows no master yet: for any other request as well.
    Refused(Refused),
}

impl PairedLink<'_> {
    /// Makes the pair beside this connection, if it has none. A route that fails is suspended.
    pub(super) async fn pair_up(
        &mut self,
        client: &RdmaClient,
        routes: &Routes,
        patience: Duration,
        access: Access,
        grant: &SealedGrant,
    ) -> Result<Result<(), NoPair>, RdmaFailure> {
        match &self.pair {
            Some(pair) if !routes.is_suspended(pair.route) => return Ok(Ok(())),
            _ => *self.pair = None,
        }
        let route = match routes.pick(client.rdma.len()) {
            Ok(route) => route,
            Err(why) => return Ok(Err(NoPair::NoRoute(why))),
        };
        let made = self.make_pair_within(patience, client, routes, route, (access, grant)).await;
        let made = made.inspect_err(|broken| broken.suspend(routes, route))?;
        if let Err(NoPair::NoRoute(why)) = &made {
            routes.suspend(route, why);
        }
        Ok(made)
    }

    async fn make_pair_within(
        &mut self,
        patience: Duration,
        client: &RdmaClient,
        routes: &Routes,
        route: usize,
        (access, grant): (Access, &SealedGrant),
    ) -> Result<Result<(), NoPair>, RdmaFailure> {
        // A device that can't reach its peer may search for it for seconds, at either end.
        let progress = self.link.progress();
        within(patience, 0, &progress, self.make_pair(client, routes, route, access, grant)).await
    }

    /// Makes a pair over the route, and has the store write to memory of this process by it. A store before [`PROBE_SINCE`] makes the pair
    /// only.
    pub(super) async fn probe(
        &mut self,
        client: &RdmaClient,
        routes: &Routes,
        route: usize,
        (access, grant): (Access, &SealedGrant),
        (staging, patience): (Staging, Duration),
    ) -> Result<Result<(), NoPair>, RdmaFailure> {
        if let Err(no_pair) = self.make_pair_within(patience, client, routes, route, (access, grant)).await? {
            return Ok(Err(no_pair));
        }
        let Some(Pair { end, .. }) = self.pair.take().filter(|_| self.link.version() >= PROBE_SINCE) else {
            return Ok(Ok(()));
        };
        let mut buffers = Buffers::new(end.into_inner(), staging, Vec::new());
        let progress = self.link.progress();
        let asked = async {
            buffers.check().map_err(|why| RdmaFailure::Rdma(why.to_string()))?;
            let kind = RequestKind::Rdma(RdmaRequest::Probe(access));
            let id = self.link.request_of(kind, 1, grant, |out| {
                for (offset, len, key, address) in buffers.parts(0, PROBE_LEN) {
                    RdmaOp { op: Op { range: 0, offset, len }, key, address }.encode(out);
                }
            });
            self.link.send_out().await?;
            if let Err(refused) = self.link.receiver.reply(id).await? {
                return Ok(Err(NoPair::Refused(refused)));
            }
            if let Err(refused) = self.link.receiver.verdict().await? {
                return Err(RdmaFailure::Rdma(refused.reason));
            }
            buffers.notified(id as u32).await.map_err(|why| RdmaFailure::Rdma(why.to_string()))?;
            Ok(Ok(()))
        };
        match within(patience, PROBE_LEN, &progress, asked).await {
            Ok(answer) => {
                *self.pair = buffers.settled().map(|end| Pair::new(end, route));
                Ok(answer)
            }
            Err(broken) => Err(broken.given_up(buffers).await),
        }
    }

    async fn make_pair(
        &mut self,
        client: &RdmaClient,
        routes: &Routes,
        route: usize,
        access: Access,
        grant: &SealedGrant,
    ) -> Result<Result<(), NoPair>, RdmaFailure> {
        let no_route = |why: String| Ok(Err(NoPair::NoRoute(why)));
        if self.link.version() < RDMA_SINCE {
            let version = self.link.version();
            return no_route(format!(
                "the store speaks version {version} of the transfer protocol, without RDMA"
            ));
        }
        let theirs = routes.theirs();
        let (device, wish) = devices_of(route, client.rdma.len(), theirs);
        // The store counts its devices around, so that before its first answer a device of ours wishes for that of the same number.
        let wish = u16::try_from(if theirs == 0 { device } else { wish }).unwrap_or(0);
        let rdma = client.rdma.clone();
        let made = tokio::task::spawn_blocking(move || ClientEnd::new(&rdma, device, wish)).await;
        let end = match made {
            Ok(Ok(end)) => BlockingDrop::new(end),
            Ok(Err(error)) => return no_route(error.to_string()),
            Err(failed) => return no_route(failed.to_string()),
        };
        let kind = RequestKind::Rdma(RdmaRequest::Pair(access));
        let id = self.link.request_of(kind, 1, grant, |out| end.end().encode(out));
        self.link.send_out().await?;
        match self.link.receiver.reply(id).await? {
            Ok(()) => {}
            Err(Refused { device: true, reason, .. }) => return no_route(reason),
            Err(refused) => return Ok(Err(NoPair::Refused(refused))),
        }
        let mut theirs = [0; END_LEN];
        self.link.receiver.read_exact(&mut theirs).await?;
        let theirs = End::decode(&theirs);
        routes.learn(usize::from(theirs.device).clamp(1, 64));
        // Some drivers look up where the store is, and wait for an answer.
        let connect = move || end.connect(&theirs).map(|()| end);
        match tokio::task::spawn_blocking(connect).await {
            Ok(Ok(end)) => {
                *self.pair = Some(Pair { end, route });
                Ok(Ok(()))
            }
            Ok(Err(error)) => no_route(error.to_string()),
            Err(failed) => no_route(failed.to_string()),
        }
    }
}
