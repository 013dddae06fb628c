use std::collections::HashMap;
use std::sync::Arc;

use mc_net::ExpectedStore;
use mc_types::{Access, STORE_NAME, STORE_TENANT, StoreId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::DataEncryption;
use crate::checksum::Sums;
use crate::control::client::{ConnectError, Failure, Health, Link, Pipe, Place, TcpOptions, Watch, pieces};
use crate::control::wire::Hello;
use crate::path::{Beside, ClientPath, StorePath};
use crate::report::{PeerReport, PeerTransport};
use crate::transport::PeerEndpoint;

/// The name of this transport in a store's endpoints.
pub(super) const TRANSPORT: &str = "tcp";

/// Address of a pool, whether its connections may use TLS, and the store whose certificate must be shown.
type PoolPlace = (String, DataEncryption, Option<ExpectedStore>);

/// The connection pools of a transport, by address, and apart for connections that must be plain.
pub(super) struct Pools {
    options: TcpOptions,
    /// The path beside the connections, or the report on one that this process does not have.
    beside: Result<Arc<dyn ClientPath>, PeerTransport>,
    /// Each with the store that was called there last.
    by_address: Mutex<HashMap<PoolPlace, (StoreId, Arc<Pool>)>>,
}

/// The connections to one address: at most `connections_per_peer`, each with one call at a time, first come, first
/// served, and two that small calls share.
///
/// A pool whose store moves no byte is given up, and all calls that wait in it fail; the next call makes a new pool.
pub(super) struct Pool {
    health: Arc<Health>,
    slots: Arc<Semaphore>,
    /// Connections that no call uses, the most recently used one last.
    idle: Mutex<Vec<PooledLink>>,
    /// The connections that small calls share when all others are taken: one for reads and one for writes, which a store may let
    /// wait.
    pipes: [Mutex<Option<Pipe>>; 2],
    beside: Option<Arc<dyn StorePath>>,
}

/// A connection, and what a path keeps beside it.
pub(super) struct PooledLink {
    pub(super) link: Link,
    /// After the connection: see [`Beside`].
    pub(super) beside: Beside,
}

/// The right to use one of the connections.
pub(super) type Slot = OwnedSemaphorePermit;

/// A connection that one call has for itself. Dropped without [`Self::put_back`] it is closed.
pub(super) struct Checkout {
    pub(super) connection: PooledLink,
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
    pub(super) fn new(options: TcpOptions, beside: Result<Arc<dyn ClientPath>, PeerTransport>) -> Self {
        Self { options, beside, by_address: Mutex::default() }
    }

    /// Whether bytes may go by a path beside the connections.
    pub(super) fn has_path_beside(&self) -> bool {
        self.beside.is_ok()
    }

    pub(super) fn sums(&self) -> Sums {
        self.options.sums
    }

    /// Returns the connections to an endpoint; plain ones if the bytes are not to be encrypted.
    pub(super) fn get(
        &self,
        store: StoreId,
        PeerEndpoint { address, attributes, .. }: &PeerEndpoint,
        encryption: DataEncryption,
    ) -> Arc<Pool> {
        let mut options = self.options.clone();
        if encryption == DataEncryption::Off {
            options.tls = None;
        }
        let said = |name| {
            attributes.iter().find(|(attribute, _)| attribute == name).map(|(_, it)| it.as_str().into())
        };
        if let Some(name) = said(STORE_NAME) {
            options.store = Some(ExpectedStore { name, tenant: said(STORE_TENANT) });
        }
        let mut pools = self.by_address.lock();
        let place = (address.clone(), encryption, options.store.clone());
        let beside = match pools.get_mut(&place) {
            Some((last, pool)) if !pool.health.given_up.is_cancelled() => {
                *last = store;
                return pool.clone();
            }
            // The next pool makes no use of a path that has failed, either.
            Some((_, pool)) => pool.beside.clone(),
            None => self.beside.as_ref().ok().map(|path| path.clone().to_store(address, &options)),
        };
        // Otherwise the sockets to a store that went away would stay here forever.
        pools.retain(|_, (_, pool)| pool.is_in_use());
        let pool = Arc::new(Pool::new(address, &options, beside));
        pools.insert(place, (store, pool.clone()));
        pool
    }

    pub(super) fn report(&self) -> Vec<PeerReport> {
        let pools = self.by_address.lock();
        let of = |((address, ..), (store, pool)): (&PoolPlace, &(StoreId, Arc<Pool>))| PeerReport {
            store: *store,
            address: address.clone(),
            transports: self.transports(Some(pool)),
        };
        pools.iter().map(of).collect()
    }

    /// The transports to a store: the path beside the connections, and TCP. `pool` are its connections, if there were any.
    pub(super) fn transports(&self, pool: Option<&Pool>) -> Vec<PeerTransport> {
        let beside = match (&self.beside, pool.and_then(|pool| pool.beside.as_ref())) {
            (_, Some(to_store)) => to_store.report(),
            (Ok(path), None) => path.untried(),
            (Err(report), None) => report.clone(),
        };
        let only = self.beside.as_ref().ok().and_then(|path| path.why_only());
        let given_up = pool.filter(|pool| pool.health.given_up.is_cancelled());
        let tcp = match (only, given_up) {
            (Some(why), _) => PeerTransport::unusable(TRANSPORT, why),
            (None, Some(pool)) => PeerTransport::unusable(TRANSPORT, pool.health.why()),
            (None, None) => {
                let connections = pool.map_or(0, Pool::connections);
                PeerTransport::usable(TRANSPORT, format!("open connections: {connections}"))
            }
        };
        vec![beside, tcp.moved(pool.map_or(0, |pool| pool.health.moved.bytes()))]
    }
}

impl Pool {
    fn new(address: &str, options: &TcpOptions, beside: Option<Arc<dyn StorePath>>) -> Self {
        Self {
            health: Health::new(address, options.clone()),
            slots: Arc::new(Semaphore::new(options.connections_per_peer.max(1))),
            idle: Mutex::default(),
            pipes: Default::default(),
            beside,
        }
    }

    /// Returns the path to the store beside the connections, if bytes may go by one.
    pub(super) fn beside(&self) -> Option<&dyn StorePath> {
        self.beside.as_deref()
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
        self.beside().map_or(lanes, |path| lanes.max(path.lanes(ops, total, free)))
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
        tokio::select! {
            biased;
            made = Link::connect(&self.health.address, hello, &self.health.options, &self.health.moved) => match made {
                Ok(link) => Ok(Checkout { connection: PooledLink { link, beside: None }, reused: false, pool: self.clone(), _slot: slot }),
                Err(error) => {
                    // Other calls that wait here would fail in the same way, each after as long a wait of its own.
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
    fn take_idle(&self, hello: Hello) -> Option<PooledLink> {
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
    pub(super) fn put_back(mut self) {
        self.connection.link.free_buffers();
        self.pool.idle.lock().push(self.connection);
    }
}
