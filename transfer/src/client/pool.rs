use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mc_types::{Access, SealedGrant, StoreId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::checksum::Sums;
use crate::control::client::{ConnectError, Failure, Health, Link, Pipe, Place, TcpOptions, Watch, pieces};
use crate::control::wire::Hello;
use crate::path::rdma::client::{PairedLink, RDMA, RdmaClient, Routes, Target, probe};
use crate::report::{PeerReport, PeerTransport, UNTRIED};

/// The name of this transport in a store's endpoints.
pub(super) const TRANSPORT: &str = "tcp";

/// The connection pools of a transport, by address.
pub(super) struct Pools {
    options: TcpOptions,
    /// RDMA, or why this process has none.
    rdma: Result<Arc<RdmaClient>, String>,
    /// Each with the store that was called there last.
    by_address: Mutex<HashMap<String, (StoreId, Arc<Pool>)>>,
}

/// The connections to one address: at most `connections_per_peer`, each with one call at a time, first come, first
/// served, and two that small calls share.
///
/// A pool whose store moves no byte is given up, and all calls that wait in it fail; the next call makes a new pool.
pub(super) struct Pool {
    health: Arc<Health>,
    slots: Arc<Semaphore>,
    /// Connections that no call uses, the most recently used one last.
    idle: Mutex<Vec<PairedLink>>,
    /// The connections that small calls share when all others are taken: one for reads and one for writes, which a store may let
    /// wait.
    pipes: [Mutex<Option<Pipe>>; 2],
    rdma: Option<Arc<RdmaClient>>,
    /// Routes of RDMA to the store.
    routes: Arc<Routes>,
    /// Requests that may have staging memory, which all stores share.
    staging: Arc<Semaphore>,
}

/// Bytes for which a batch uses a further connection, if they go by RDMA and it has enough operations.
const RDMA_STRIPE: u64 = 512 << 10;

/// Requests by RDMA that may have staging memory, for each connection: one that is under route, and one that is prepared meanwhile. All
/// calls of this process have room for 32, so a slow store leaves most of it to others.
const STAGED: usize = 2;

/// The right to use one of the connections.
pub(super) type Slot = OwnedSemaphorePermit;

/// A connection that one call has for itself. Dropped without [`Self::put_back`] it is closed.
pub(super) struct Checkout {
    pub(super) connection: PairedLink,
    /// Whether it was used before, so that its peer may have closed it meanwhile.
    pub(super) reused: bool,
    pool: Arc<Pool>,
    _slot: Slot,
}

/// Whether a call may be given a connection that was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reuse {
    Allowed,
    Never,
}

impl Pools {
    pub(super) fn new(options: TcpOptions, rdma: Result<Arc<RdmaClient>, String>) -> Self {
        Self { options, rdma, by_address: Mutex::default() }
    }

    pub(super) fn has_rdma(&self) -> bool {
        self.rdma.is_ok()
    }

    pub(super) fn sums(&self) -> Sums {
        self.options.sums
    }

    pub(super) fn get(&self, store: StoreId, address: &str) -> Arc<Pool> {
        let mut pools = self.by_address.lock();
        let routes = match pools.get_mut(address) {
            Some((last, pool)) if !pool.health.given_up.is_cancelled() => {
                *last = store;
                return pool.clone();
            }
            // Routes that failed are left by the next pool as well.
            Some((_, pool)) => pool.routes.clone(),
            None => Arc::default(),
        };
        // Otherwise the sockets to a store that went away would stay here forever.
        pools.retain(|_, (_, pool)| pool.is_in_use());
        let pool = Arc::new(Pool::new(address, self.options, self.rdma.as_ref().ok().cloned(), routes));
        pools.insert(address.to_owned(), (store, pool.clone()));
        pool
    }

    pub(super) fn report(&self) -> Vec<PeerReport> {
        let pools = self.by_address.lock();
        let of = |(address, (store, pool)): (&String, &(StoreId, Arc<Pool>))| PeerReport {
            store: *store,
            address: address.clone(),
            transports: self.transports(Some(pool)),
        };
        pools.iter().map(of).collect()
    }

    /// The transports to a store: RDMA, if this process has it, and TCP. `pool` are its connections, if there were any.
    pub(super) fn transports(&self, pool: Option<&Pool>) -> Vec<PeerTransport> {
        let by_rdma = match (&self.rdma, pool) {
            (Ok(client), Some(pool)) => pool.routes.report(&client.rdma),
            (Ok(_), None) => PeerTransport::unusable(RDMA, UNTRIED),
            (Err(why), _) => PeerTransport::unusable(RDMA, why.as_str()),
        };
        let given_up = pool.filter(|pool| pool.health.given_up.is_cancelled());
        let tcp = match given_up {
            _ if self.rdma.as_ref().is_ok_and(|client| client.only) => {
                PeerTransport::unusable(TRANSPORT, "this process moves bytes by RDMA only")
            }
            Some(pool) => PeerTransport::unusable(TRANSPORT, pool.health.why()),
            None => {
                let connections = pool.map_or(0, Pool::connections);
                PeerTransport::usable(TRANSPORT, format!("open connections: {connections}"))
            }
        };
        vec![by_rdma, tcp.moved(pool.map_or(0, |pool| pool.health.moved.bytes()))]
    }
}

impl Pool {
    fn new(address: &str, options: TcpOptions, rdma: Option<Arc<RdmaClient>>, routes: Arc<Routes>) -> Self {
        Self {
            health: Health::new(address, options),
            slots: Arc::new(Semaphore::new(options.connections_per_peer.max(1))),
            idle: Mutex::default(),
            pipes: Default::default(),
            rdma,
            routes,
            staging: Arc::new(Semaphore::new(STAGED * options.connections_per_peer.max(1))),
        }
    }

    /// Waits for the right to take staging memory.
    pub(super) async fn staging_turn(&self) -> Option<OwnedSemaphorePermit> {
        self.staging.clone().acquire_owned().await.ok()
    }

    /// Returns RDMA, if bytes may go by it, and the routes to the store.
    pub(super) fn rdma(&self) -> Option<(&RdmaClient, &Routes)> {
        self.rdma.as_deref().map(|client| (client, &*self.routes))
    }

    /// Starts probes of the RDMA routes that failed, if there are any. They use this call's grant.
    pub(super) fn probe_routes(&self, hello: Hello, grant: &SealedGrant) {
        let Some(client) = &self.rdma else { return };
        probe::start(&self.routes, client, || Target {
            address: self.health.address.clone(),
            options: self.health.options,
            hello,
            grant: grant.clone(),
            patience: self.rdma_patience(),
        });
    }

    /// How long an answer by RDMA may take. It is below the stall timeout, so that a route that fails does not look like
    /// a store that does.
    pub(super) fn rdma_patience(&self) -> Duration {
        self.health.options.stall_timeout * 3 / 4
    }

    pub(super) fn address(&self) -> &str {
        &self.health.address
    }

    /// Number of connections that calls use or may use, without the shared ones.
    fn connections(&self) -> usize {
        let taken = self.health.options.connections_per_peer.max(1) - self.slots.available_permits();
        self.idle.lock().iter().filter(|idle| idle.link.is_fresh()).count() + taken
    }

    fn is_in_use(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || self.idle.lock().iter().any(|idle| idle.link.is_fresh())
    }

    /// Returns the number of connections to stripe a batch of `ops` operations and `total` bytes over now.
    pub(super) fn lanes(&self, ops: usize, total: u64) -> usize {
        let free = self.slots.available_permits();
        let lanes = pieces::lanes(total, self.health.options.stripe_bytes, free);
        match &self.rdma {
            // While the card moves the bytes of one, those of another are copied. No operation is cut for that.
            Some(client) if self.routes.any(client.device_count()).is_ok() => {
                lanes.max(pieces::lanes(total, RDMA_STRIPE, free.min(ops)))
            }
            _ => lanes,
        }
    }

    /// Returns the right to use a connection if one is free, and no other call waits for it.
    pub(super) fn free_slot(&self) -> Option<Slot> {
        // The semaphore hands permits to waiting calls first, so no call overtakes another.
        self.slots.clone().try_acquire_owned().ok()
    }

    /// Waits for a place on the connection that small calls of one kind share. Waits forever if the connection can't be
    /// made.
    pub(super) fn place(&self, hello: Hello, access: Access) -> impl Future<Output = Option<Place>> + use<> {
        let pipe = &self.pipes[usize::from(access == Access::Write)];
        let place = Pipe::get(&mut pipe.lock(), &self.health, hello).map(Pipe::place);
        async move {
            match place {
                Some(place) => place.await,
                None => None,
            }
        }
    }

    /// Drops the connection that small calls of one kind share, so that no call waits for an answer over it.
    pub(super) fn end_pipe(&self, access: Access) {
        *self.pipes[usize::from(access == Access::Write)].lock() = None;
    }

    /// Whether and how answers have checksums.
    pub(super) fn sums(&self) -> Sums {
        self.health.options.sums
    }

    /// Waits for the right to use a connection, first come, first served. Nothing is asked of the store meanwhile, so
    /// only the deadline bounds the wait, unless another call notices that the store moves nothing.
    pub(super) async fn slot(self: &Arc<Self>, deadline: Instant) -> Result<Slot, Failure> {
        tokio::select! {
            biased;
            () = self.health.given_up.cancelled() => Err(self.health.stalled()),
            permit = self.slots.clone().acquire_owned() => match permit {
                Ok(permit) => Ok(permit),
                Err(closed) => Err(Failure::Connect(ConnectError::Failed(closed.to_string()))),
            },
            () = sleep_until(deadline) => Err(Failure::Queued),
        }
    }

    /// Returns an idle connection to the memory that `hello` names, or a new one.
    pub(super) async fn connection(
        self: &Arc<Self>,
        slot: Slot,
        hello: Hello,
        reuse: Reuse,
        deadline: Instant,
    ) -> Result<Checkout, Failure> {
        let idle = (reuse == Reuse::Allowed).then(|| self.take_idle(hello)).flatten();
        if let Some(connection) = idle {
            return Ok(Checkout { connection, reused: true, pool: self.clone(), _slot: slot });
        }
        let (began, moved) = (Instant::now(), self.health.moved.bytes());
        let timeout = self.health.options.connect_timeout;
        tokio::select! {
            biased;
            made = Link::connect(&self.health.address, hello, timeout, &self.health.moved, self.health.options.sums) => match made {
                Ok(link) => Ok(Checkout { connection: PairedLink::new(link), reused: false, pool: self.clone(), _slot: slot }),
                Err(error) => {
                    // Other calls that wait here would fail in the same route, each after as long a wait of its own.
                    if let ConnectError::TooLong(reason) = &error && self.health.moved.bytes() == moved {
                        self.health.give_up(reason.clone());
                    }
                    Err(Failure::Connect(error))
                }
            },
            () = self.health.given_up.cancelled() => Err(self.health.stalled()),
            () = sleep_until(deadline) => Err(if began.elapsed() >= self.health.options.look_every() {
                Failure::Connect(ConnectError::TooLong("not connected by the deadline".to_owned()))
            } else {
                Failure::Deadline
            }),
        }
    }

    /// Does `work` on the connection of `watch`, as long as bytes move and the deadline has not passed.
    ///
    /// When no byte has moved for the stall timeout over this and all other connections to this address, the store is
    /// taken for dead and every call that waits for it fails with this one. When others do move bytes, only this
    /// connection counts as broken.
    pub(super) async fn watched<T>(
        &self,
        watch: Watch,
        deadline: Instant,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.health.given_up.cancelled() => Err(self.health.stalled()),
            failure = self.health.look(watch, deadline) => Err(failure),
        }
    }

    /// Returns the most recently used idle connection that still works, and closes the ones that don't.
    fn take_idle(&self, hello: Hello) -> Option<PairedLink> {
        let mut idle = self.idle.lock();
        while let Some(connection) = idle.pop() {
            if connection.link.hello == hello && connection.link.is_fresh() {
                return Some(connection);
            }
        }
        None
    }
}

impl Checkout {
    /// Returns a connection on which every request was answered in full.
    pub(super) fn put_back(self) {
        self.pool.idle.lock().push(self.connection);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_slow_store_does_not_take_all_staging_memory() {
        let pools =
            Pools::new(TcpOptions { connections_per_peer: 1, ..TcpOptions::default() }, Err(String::new()));
        let (slow, other) = (pools.get(StoreId(1), "slow:1"), pools.get(StoreId(2), "other:1"));
        let turns: Vec<_> = (0..STAGED).map(|_| slow.staging_turn().now_or_never().unwrap()).collect();
        assert!(slow.staging_turn().now_or_never().is_none());
        assert!(other.staging_turn().now_or_never().is_some());
        drop(turns);
        assert!(slow.staging_turn().now_or_never().is_some());
    }
}
