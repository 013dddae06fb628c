//! The store's end of transfers: accepts connections, and serves each request on them by the path that it names.

mod connection;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use mc_net::Tls;
use mc_types::{ClusterTime, GrantKey, SegmentEpoch, SegmentNumber, StoreId};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::Connection;
use crate::DataEncryption;
use crate::authority::Authority;
use crate::control::server::{
    ACCEPT_PAUSE, Closed, Counters, GrantsTaken, Keys, Lent, Memory, MemoryId, OwnCalls, Refusal,
    RequestSeconds, ServedMemory, Socket, Timeouts, check,
};
use crate::control::socket_options;
use crate::fence::Budget;
use crate::memory::{Rdma, Segment};
use crate::path::server::ServerPaths;
use crate::path::shm::server::ShmServer;
use crate::path::shm::{self, ShmAccess};

/// Maximum number of connections beyond the limit that are refused at the same time, and a quarter of those within it where these are
/// few: they take descriptors that the process has for other things. More wait to be accepted.
const REFUSED_AT_ONCE: usize = 64;
/// Longest wait for the hello of a connection that is refused.
const REFUSED_WITHIN: Duration = Duration::from_millis(250);

/// Configuration of a data server.
#[derive(Debug)]
pub struct DataServerConfig {
    /// Store whose memory it serves.
    pub store: StoreId,
    /// Epoch of that memory.
    pub epoch: SegmentEpoch,
    /// Key that seals the grants.
    pub key: GrantKey,
    /// Segments to serve, by number.
    pub segments: Vec<Arc<Segment>>,
    /// The cluster's id and time. A store that moves to another cluster serves it under a new epoch, with a new server,
    /// because the old cluster's indexes and time order all earlier grants and writes.
    pub authority: Arc<Authority>,
    /// Longest time from the making of a grant to its expiry. The store remembers writes for twice as long.
    pub grant_lifetime: Duration,
    /// Maximum memory to remember writes, at 64 bytes a write; see [`crate::fence_limit`]. When it is used up, writes
    /// wait until older ones are forgotten.
    pub fence_bytes: u64,
    /// Maximum number of connections at a time. A further client is told to try again, and a connection that has been
    /// idle for a second or more is closed to make room. Up to 64 more are open while they are refused.
    pub max_connections: usize,
    /// Devices to offer RDMA with: those with which the segments are registered.
    pub rdma: Option<Arc<Rdma>>,
    /// Maximum number of connections with RDMA beside them; further ones use TCP. Each takes a descriptor and a queue pair.
    pub max_pairs: usize,
    /// Certificates, and how far clients have to use TLS. Without them connections are plain.
    pub tls: Option<Arc<Tls>>,
    /// Whether clients that prove that they hold their grants need TLS, where others do.
    pub data_encryption: DataEncryption,
}

/// Serves reads and writes of a store's memory over TCP: one task a connection, each operation checked against its
/// grant and the fence, bytes moved directly between socket and segment.
pub struct DataServer {
    served: ServedMemory,
    max_connections: usize,
    slots: Arc<Semaphore>,
    paths: ServerPaths,
    /// Wakes the connection that has been idle for the longest time when another one is refused.
    crowded: Notify,
    tls: Option<Arc<Tls>>,
    data_encryption: DataEncryption,
    /// Trust domain of the store, which new certificates don't change.
    trust: Option<String>,
}

/// A segment that is no longer served, and the record of writes to it.
pub struct Withdrawn(Arc<Lent>);

impl Withdrawn {
    /// Whether an operation on the segment is still under way.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1 || Arc::strong_count(&self.0.segment) > 1
    }
}

impl fmt::Debug for Withdrawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Withdrawn").field(&self.0.segment.number()).finish()
    }
}

impl DataServer {
    /// Creates a server that is not listening yet.
    #[must_use]
    pub fn new(config: DataServerConfig) -> Self {
        let DataServerConfig {
            store,
            epoch,
            key,
            segments,
            authority,
            grant_lifetime,
            fence_bytes,
            max_connections,
            rdma,
            max_pairs,
            tls,
            data_encryption,
        } = config;
        let max_connections = max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let server = Self {
            served: ServedMemory {
                identity: MemoryId { store, epoch },
                keys: ArcSwap::from_pointee(Keys::new(key)),
                lent: ArcSwap::default(),
                relent: watch::Sender::new(()),
                grant_lifetime,
                fence_budget: Arc::new(Budget::of(fence_bytes)),
                authority,
                transfer_ended: Arc::default(),
                timeouts: Timeouts::default(),
                counters: Counters::default(),
                request_seconds: RequestSeconds::noop(),
                refuses_up_to: AtomicU64::new(0),
                own_calls: OwnCalls::default(),
            },
            max_connections,
            slots: Arc::new(Semaphore::new(max_connections)),
            paths: ServerPaths::new(rdma, max_pairs, tls.clone()),
            crowded: Notify::new(),
            trust: tls.as_ref().and_then(|tls| tls.id()).map(|id| id.trust().to_owned()),
            tls,
            data_encryption,
        };
        segments.into_iter().for_each(|segment| server.lend(segment));
        server
    }

    /// Serves a further segment.
    pub fn lend(&self, segment: Arc<Segment>) {
        self.served.lend(segment);
    }

    /// Stops serving a segment: later operations on it are refused, and those under way end as they would. Returns what is
    /// left of it, for the caller to drop.
    pub fn withdraw(&self, number: SegmentNumber) -> Option<Withdrawn> {
        self.served.withdraw(number).map(Withdrawn)
    }

    /// Refuses writes of puts that had begun at `order`, the first one that is said. For memory that another process has served before:
    /// which of its ranges that one has sealed is not known any more. Call it before any master's time is learned: until then no
    /// grant is taken.
    pub fn refuse_writes_up_to(&self, order: u64) {
        self.served.refuse_writes_up_to(order);
    }

    /// Takes grants under `key` from now on, too. Call this before a master has the key, and not again before
    /// [`Self::confirm_key`].
    pub fn take_next_key(&self, key: GrantKey) {
        self.served.keys.rcu(|keys| keys.with_next(key));
    }

    /// Records that a master had the key at the cluster time `at`: receipts are given under it, and grants under the one before are
    /// taken for [`GrantKey::OVERLAP`] longer.
    pub fn confirm_key(&self, at: ClusterTime) {
        self.served.keys.rcu(|keys| keys.confirmed(at));
    }

    /// Raises the maximum memory to remember writes. It never falls while this server runs.
    pub fn raise_max_fence_bytes(&self, bytes: u64) {
        self.served.fence_budget.raise(bytes);
    }

    /// Maximum memory to remember writes, in bytes.
    #[must_use]
    pub fn max_fence_bytes(&self) -> u64 {
        self.served.fence_budget.limit()
    }

    /// Replaces the default timeouts.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Self {
        self.served.timeouts = timeouts;
        self
    }

    /// Records the duration of its requests in `request_seconds`.
    #[must_use]
    pub fn with_request_seconds(mut self, request_seconds: RequestSeconds) -> Self {
        self.served.request_seconds = request_seconds;
        self
    }

    /// Returns its counts so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.served.counters
    }

    /// Memory taken to remember writes, in bytes.
    #[must_use]
    pub fn fence_bytes(&self) -> u64 {
        self.served.fence_budget.bytes()
    }

    /// Serves connections until `shutdown`, then closes them all, finished or not, and returns.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: CancellationToken) {
        let own_calls = self.served.own_calls.admit();
        let connections = TaskTracker::new();
        let refusals = Arc::new(Semaphore::new((self.max_connections / 4).clamp(1, REFUSED_AT_ONCE)));
        // Reserve a place for a refusal before accepting: a connection takes a descriptor even if it is refused.
        let next = async || (refusals.clone().acquire_owned().await, listener.accept().await);
        while let Some((refusal, accepted)) = shutdown.run_until_cancelled(next()).await {
            match accepted {
                Ok((stream, _)) => {
                    let (server, shutdown) = (self.clone(), shutdown.clone());
                    match self.slots.clone().try_acquire_owned() {
                        Ok(slot) => connections.spawn(async move {
                            shutdown.run_until_cancelled(server.serve_connection(stream)).await;
                            drop(slot);
                        }),
                        Err(_) => connections.spawn(async move {
                            shutdown.run_until_cancelled(server.refuse_connection(stream)).await;
                            drop(refusal);
                        }),
                    };
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept data connections, trying again");
                    shutdown.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await;
                }
            }
        }
        drop(listener);
        connections.close();
        connections.wait().await;
        // The memory may be served under another fence next, and that fence does not know the passes of these copies.
        self.paths.ended().await;
        drop(own_calls);
    }

    /// Gives the descriptors of the segments to processes that connect and may have them, until `shutdown`.
    ///
    /// A connection lasts as long as its client may keep them: it is closed when a segment comes or goes, and at the end.
    pub async fn serve_local(
        self: Arc<Self>,
        listener: UnixListener,
        access: ShmAccess,
        shutdown: CancellationToken,
    ) {
        shm::server::listen(self, listener, access, shutdown).await;
    }

    /// Lets clients of this process reach the memory that it serves: see
    /// [`ShmTransport::with_own_store`](crate::ShmTransport::with_own_store). It replaces the server before.
    pub fn admit_own_calls(self: &Arc<Self>, memory: &Memory) {
        let server: Weak<Self> = Arc::downgrade(self);
        memory.set_server(server);
    }

    async fn serve_connection(&self, stream: TcpStream) {
        let open = OpenConnection::count(&self.served.counters);
        socket_options::set(&stream);
        let closed = match Socket::accept(stream, self.tls.as_ref(), self.served.timeouts.stall).await {
            Ok(socket) => Connection::new(self, socket).run().await,
            Err(closed) => closed,
        };
        if matches!(closed, Closed::Protocol(_) | Closed::Tls(_) | Closed::Stalled) {
            Counters::add(&self.served.counters.broken_connections, 1);
        }
        tracing::debug!(reason = %closed, "data connection closed");
        drop(open);
    }

    /// Checks that a peer may use the store over such a connection, and returns the grants that it may use then. A store without
    /// certificates does not know who calls.
    fn check_peer(&self, peer: &mc_net::Peer) -> Result<GrantsTaken, Refusal> {
        let Some(tls) = &self.tls else { return Ok(GrantsTaken::All) };
        check::check_peer(
            tls.level(),
            self.data_encryption,
            (self.trust.as_deref(), &self.served.authority),
            peer,
        )
    }

    /// Counts a peer that the level `require` would refuse.
    fn note_tolerated(&self, socket: &Socket) {
        if let (Some(tls), DataEncryption::On, mc_net::Peer::Plain) =
            (&self.tls, self.data_encryption, socket.peer())
        {
            tls.tolerate(socket.host());
        }
    }

    /// Returns when another connection was refused and there is still no free place.
    async fn place_wanted(&self) {
        loop {
            self.crowded.notified().await;
            if self.slots.available_permits() == 0 {
                return;
            }
        }
    }

    /// Refuses a connection: tells the client that there are too many.
    async fn refuse_connection(&self, stream: TcpStream) {
        Counters::add(&self.served.counters.connections_refused, 1);
        // Signalled before the client is answered: a place may be free when the client tries again.
        self.crowded.notify_one();
        let closed = match Socket::accept(stream, self.tls.as_ref(), REFUSED_WITHIN).await {
            Ok(socket) => {
                let refusal = Refusal::Connections { most: self.max_connections };
                Connection::new(self, socket).refuse(&refusal).await
            }
            Err(closed) => closed,
        };
        tracing::debug!(reason = %closed, "data connection refused");
    }
}

impl AsRef<ServedMemory> for DataServer {
    fn as_ref(&self) -> &ServedMemory {
        &self.served
    }
}

impl AsRef<ShmServer> for DataServer {
    fn as_ref(&self) -> &ShmServer {
        &self.paths.shm
    }
}

impl fmt::Debug for DataServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataServer")
            .field("identity", &self.served.identity)
            .field("segments", &self.served.lent.load().len())
            .finish_non_exhaustive()
    }
}

/// Counts a connection as opened, and as closed however its task ends.
struct OpenConnection<'a>(&'a Counters);

impl<'a> OpenConnection<'a> {
    fn count(counters: &'a Counters) -> Self {
        Counters::add(&counters.connections_opened, 1);
        Self(counters)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        Counters::add(&self.0.connections_closed, 1);
    }
}
