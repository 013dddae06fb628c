//! RDMA as a path of a client: which turns go by it, and what they need for that.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mc_types::{Access, Grant, SealedGrant, SegmentNumber};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::pairing::{NoPair, Pair, PairedLink};
use super::places::{Places, REQUEST};
use super::probe;
use super::process::RdmaClient;
use super::requests::Prepared;
use super::routes::{RDMA, Routes, Target};
use crate::control::client::{Failure, Link, Outcome, TcpOptions, pieces};
use crate::memory::Reached;
use crate::path::{
    Beside, CallContext, Carried, ClientPath, Preparation, PreparedTurn, StorePath, TurnBytes,
};
use crate::report::{PeerTransport, UNTRIED};

/// Fewest bytes of a turn that go by RDMA. Fewer bytes arrive with the answer over TCP, which RDMA needs as well.
const MIN_RDMA: u64 = 16 << 10;
/// Number of routes that may fail before the rest of a call goes over TCP.
const FAILURES: u32 = 2;
/// Longest wait for buffers before a turn goes over TCP.
const STAGING_WITHIN: Duration = Duration::from_millis(50);
/// Bytes for which a batch uses a further connection, if it has enough operations.
const STRIPE: u64 = 512 << 10;
/// Requests that may have staging memory, for each connection: one that is under way, and one that is prepared meanwhile. All
/// calls of this process have room for 32, so a slow store leaves most of it to others.
const STAGED: usize = 2;

/// RDMA to one store.
struct RdmaToStore {
    client: Arc<RdmaClient>,
    address: String,
    options: TcpOptions,
    routes: Arc<Routes>,
    staging_turns: StagingTurns,
}

/// Requests to one store that may have staging memory, which all stores share.
struct StagingTurns(Arc<Semaphore>);

impl StagingTurns {
    fn new(options: &TcpOptions) -> Self {
        Self(Arc::new(Semaphore::new(STAGED * options.connections_per_peer.max(1))))
    }

    /// Waits for the right to take staging memory.
    async fn next(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_owned().await.ok()
    }
}

impl RdmaClient {
    /// Whether a turn of so many bytes should go by RDMA.
    fn wants(&self, bytes: u64) -> bool {
        bytes >= if self.only { 1 } else { MIN_RDMA }
    }

    /// Finds where the bytes of a turn are.
    fn places(&self, bytes: &TurnBytes<'_, '_>) -> Places {
        match bytes {
            TurnBytes::Read(pieces) => {
                Places::of(pieces, |buffer| Reached::of_read(&self.areas, &self.exposures, buffer))
            }
            TurnBytes::Write(pieces, _) => {
                Places::of(pieces, |bytes| Reached::of_write(&self.areas, &self.exposures, *bytes))
            }
        }
    }
}

impl ClientPath for RdmaClient {
    fn to_store(self: Arc<Self>, address: &str, options: &TcpOptions) -> Arc<dyn StorePath> {
        let (routes, staging_turns) = (Arc::default(), StagingTurns::new(options));
        let (address, options) = (address.to_owned(), options.clone());
        Arc::new(RdmaToStore { client: self, address, options, routes, staging_turns })
    }

    fn why_only(&self) -> Option<&'static str> {
        self.only.then_some("this process moves bytes by RDMA only")
    }

    fn untried(&self) -> PeerTransport {
        PeerTransport::unusable(RDMA, UNTRIED)
    }
}

impl RdmaToStore {
    /// Starts probes of the routes that failed, if there are any. They use this call's grant.
    fn probe_routes(&self, call: CallContext<'_>) {
        if call.grant.avoids_rdma() {
            return;
        }
        probe::start(&self.routes, &self.client, || Target {
            address: self.address.clone(),
            options: self.options.clone(),
            hello: call.hello,
            grant: call.grant.clone(),
            patience: self.patience(),
        });
    }

    /// How long an answer may take. It is below the stall timeout, so that a route that fails does not look like a store that does.
    fn patience(&self) -> Duration {
        self.options.stall_timeout * 3 / 4
    }

    /// Returns the reason why no device of the store reaches bytes of the turn, if it is known.
    fn lacks(&self, grant: &SealedGrant, bytes: &TurnBytes<'_, '_>) -> Option<String> {
        if self.routes.reaches_all() {
            return None;
        }
        let ranges: Vec<u32> = match bytes {
            TurnBytes::Read(pieces) => pieces.iter().map(|piece| piece.range).collect(),
            TurnBytes::Write(pieces, _) => pieces.iter().map(|piece| piece.range).collect(),
        };
        self.routes.lacks(segments(grant, &ranges).into_iter())
    }

    /// Waits for all that a turn needs. `lacks` says why the store can't do it.
    async fn prepare_turn(
        &self,
        call: CallContext<'_>,
        places: Places,
        lacks: Option<String>,
        failures: u32,
    ) -> Result<Option<Box<dyn PreparedTurn + '_>>, Failure> {
        let client = &self.client;
        let lacks = lacks.or_else(|| client.rdma.why_down().map(|why| why.to_string()));
        let found = match lacks.map_or_else(|| self.routes.any(client.device_count()), Err) {
            Ok(()) if failures < FAILURES => {
                let until = if client.only {
                    call.deadline
                } else {
                    call.deadline.min(Instant::now() + STAGING_WITHIN)
                };
                match timeout_at(until, self.stage(places)).await {
                    Ok(found) => found,
                    Err(_) if client.only => return Err(Failure::Queued),
                    Err(_) => Err("all buffers are in use".to_owned()),
                }
            }
            Ok(()) => Err("it has failed over two routes, or can't reach these bytes".to_owned()),
            Err(why) => Err(why),
        };
        match found {
            Ok(prepared) => Ok(Some(Box::new(RdmaTurn { path: self, prepared }))),
            Err(why) if client.only => Err(Failure::Path(why)),
            Err(why) => {
                tracing::debug!(store = %call.hello.store, "no RDMA: {why}");
                Ok(None)
            }
        }
    }

    /// Waits for staging memory for the bytes that have to be copied.
    async fn stage(&self, places: Places) -> Result<Prepared, String> {
        // Taken before the staging memory, which the calls to all stores share.
        let turn = if places.are_staged() { self.staging_turns.next().await } else { None };
        let staging = self.client.rdma.staging(places.staged_bytes.min(REQUEST)).await;
        Ok(Prepared { places, staging: staging.map_err(|error| error.to_string())?, turn })
    }
}

impl StorePath for RdmaToStore {
    fn longest_piece(&self) -> u64 {
        REQUEST
    }

    fn lanes(&self, ops: usize, total: u64, free: usize) -> usize {
        match self.routes.any(self.client.device_count()) {
            // While the card moves the bytes of one, those of another are copied. No operation is cut for that.
            Ok(()) => pieces::lanes(total, STRIPE, free.min(ops)),
            Err(_) => 1,
        }
    }

    fn prepare<'a>(
        &'a self,
        call: CallContext<'a>,
        bytes: &TurnBytes<'_, '_>,
        failures: u32,
    ) -> Option<Preparation<'a>> {
        if !self.client.wants(bytes.len()) {
            return None;
        }
        if call.grant.avoids_rdma() {
            let refused = || -> Preparation<'a> { Box::pin(async { Err(Failure::RdmaOff) }) };
            return self.client.only.then(refused);
        }
        let (places, lacks) = (self.client.places(bytes), self.lacks(call.grant, bytes));
        self.probe_routes(call);
        Some(Box::pin(self.prepare_turn(call, places, lacks, failures)))
    }

    fn unreached(&self, grant: &SealedGrant, range: u32, why: &str) -> Result<(), Failure> {
        // Otherwise every call would ask again and copy its bytes for that attempt.
        if let Some(segment) = segments(grant, &[range]).first() {
            self.routes.suspend_segment(*segment, why);
        }
        if self.client.only { Err(Failure::Path(why.to_owned())) } else { Ok(()) }
    }

    fn after_turn(&self, call: CallContext<'_>) {
        self.probe_routes(call);
    }

    fn report(&self) -> PeerTransport {
        self.routes.report(&self.client.rdma)
    }
}

/// Segments of granted ranges.
fn segments(grant: &SealedGrant, ranges: &[u32]) -> Vec<SegmentNumber> {
    let Ok(grant) = Grant::peek(&grant.bytes) else { return Vec::new() };
    ranges.iter().filter_map(|range| Some(grant.ranges.get(*range as usize)?.segment)).collect()
}

/// A turn whose bytes go by RDMA.
struct RdmaTurn<'p> {
    path: &'p RdmaToStore,
    prepared: Prepared,
}

impl PreparedTurn for RdmaTurn<'_> {
    fn carry<'a, 'b: 'a>(
        self: Box<Self>,
        link: &'a mut Link,
        beside: &'a mut Beside,
        grant: &'a SealedGrant,
        bytes: TurnBytes<'a, 'b>,
        done: &'a mut Vec<Outcome>,
    ) -> BoxFuture<'a, Result<Carried, Failure>>
    where
        Self: 'a,
    {
        Box::pin(async move {
            let RdmaTurn { path, prepared } = *self;
            let (RdmaToStore { client, routes, .. }, patience) = (path, path.patience());
            let mut connection = PairedLink { link, pair: pair_beside(beside) };
            let access = if matches!(bytes, TurnBytes::Write(..)) { Access::Write } else { Access::Read };
            match connection.pair_up(client, routes, patience, access, grant).await? {
                Ok(()) => {}
                Err(NoPair::Refused(refused)) => {
                    done.extend((0..bytes.count()).map(|_| Err(refused.clone())));
                    return Ok(Carried::ByPath);
                }
                Err(NoPair::NoRoute(why)) if client.only => return Err(Failure::Path(why)),
                Err(NoPair::NoRoute(_)) => return Ok(Carried::NotYet),
            }
            let how = (&**client, &**routes, prepared, patience);
            match bytes {
                TurnBytes::Read(pieces) => connection.read(how, grant, pieces, done).await?,
                TurnBytes::Write(pieces, seal) => connection.write(how, grant, pieces, seal, done).await?,
            }
            Ok(Carried::ByPath)
        })
    }
}

/// The queue pair that is kept beside a connection, if it has one.
fn pair_beside(beside: &mut Beside) -> &mut Option<Pair> {
    let kept = beside.get_or_insert_with(|| Box::new(None::<Pair>));
    kept.downcast_mut().expect("no other path keeps anything beside a connection")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_slow_store_does_not_take_all_staging_memory() {
        let options = TcpOptions { connections_per_peer: 1, ..TcpOptions::default() };
        let (slow, other) = (StagingTurns::new(&options), StagingTurns::new(&options));
        let turns: Vec<_> = (0..STAGED).map(|_| slow.next().now_or_never().unwrap()).collect();
        assert!(slow.next().now_or_never().is_none());
        assert!(other.next().now_or_never().is_some());
        drop(turns);
        assert!(slow.next().now_or_never().is_some());
    }
}
