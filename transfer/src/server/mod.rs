//! The store's end of TCP transfers.

mod areas;
mod check;
mod connection;
mod copies;
mod counters;
mod fetched;
mod local;
mod memory;
mod own;
mod pace;
mod rdma;
mod socket;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use mc_types::{Access, Grant, GrantKey, GrantedRange, SegmentEpoch, SegmentNumber, StoreId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::areas::AreaTable;
use self::check::{Identity, Refusal};
use self::connection::Connection;
use self::copies::Copiers;
pub use self::counters::{Counters, RequestSeconds};
pub use self::memory::Memory;
use self::own::OwnCalls;
use self::socket::{Closed, Incoming, Socket};
use crate::authority::{Authority, Times};
use crate::fence::{Budget, Fence, Fenced};
use crate::memory::Rdma;
use crate::memory::Segment;
use crate::memory::Stamps;
use crate::socket_options;
use crate::wire::Op;

/// Pause after a failed accept, which mostly means that no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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
    /// The memory.
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
}

/// Longest waits of the server for a peer.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Longest wait for a byte in the middle of a message, and of all such waits in it, beside the time for its bytes at 64 KiB
    /// a second. A longer time tolerates slower peers; a shorter one frees sooner the resources that dead peers hold.
    pub stall: Duration,
    /// Longest wait between two requests. The client notices that the connection was closed and makes a new one.
    pub idle: Duration,
    /// Longest wait of a write for memory to remember it. After it the store refuses the write and tells the client to
    /// try again. It must be well below the clients' stall timeout.
    pub room: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            room: Duration::from_millis(200),
        }
    }
}

/// Serves reads and writes of a store's memory over TCP: one task a connection, each operation checked against its
/// grant and the fence, bytes moved directly between socket and segment.
pub struct DataServer {
    identity: Identity,
    key: GrantKey,
    /// Replaced as a whole when a segment comes or goes. An operation keeps the segment that it has found.
    lent: ArcSwap<Vec<Arc<Lent>>>,
    /// Told when it was replaced.
    relent: watch::Sender<()>,
    grant_lifetime: Duration,
    fence_budget: Arc<Budget>,
    authority: Arc<Authority>,
    max_connections: usize,
    slots: Arc<Semaphore>,
    rdma: Option<Arc<Rdma>>,
    /// Connections that may still get RDMA beside them.
    pairs: Arc<Semaphore>,
    /// Wakes the connection with such a pair that has been idle for the longest time when another one gets none.
    pairs_wanted: Notify,
    /// Memory that clients of this host share with this store.
    areas: AreaTable,
    copiers: Copiers,
    /// Lets this process's own calls at the memory.
    own_calls: OwnCalls,
    /// Told when a network card has left a range that it moved bytes of.
    transfer_ended: Arc<Notify>,
    /// Wakes the connection that has been idle for the longest time when another one is refused.
    crowded: Notify,
    timeouts: Timeouts,
    counters: Counters,
    request_seconds: RequestSeconds,
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

/// A segment and its fence.
struct Lent {
    segment: Arc<Segment>,
    fence: Fence,
    /// For readers of this host: of the writes that the fence admits.
    stamps: Option<Arc<Stamps>>,
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
        } = config;
        let fence_budget = Arc::new(Budget::of(fence_bytes));
        let max_connections = max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let server = Self {
            identity: Identity { store, epoch },
            key,
            lent: ArcSwap::default(),
            relent: watch::Sender::new(()),
            grant_lifetime,
            fence_budget,
            authority,
            max_connections,
            slots: Arc::new(Semaphore::new(max_connections)),
            rdma,
            pairs: Arc::new(Semaphore::new(max_pairs.min(Semaphore::MAX_PERMITS))),
            pairs_wanted: Notify::new(),
            areas: AreaTable::default(),
            copiers: Copiers::new(),
            own_calls: OwnCalls::default(),
            transfer_ended: Arc::default(),
            crowded: Notify::new(),
            timeouts: Timeouts::default(),
            counters: Counters::default(),
            request_seconds: RequestSeconds::noop(),
        };
        segments.into_iter().for_each(|segment| server.lend(segment));
        server
    }

    /// Serves a further segment.
    pub fn lend(&self, segment: Arc<Segment>) {
        let stamps = segment.new_stamps();
        let fence = Fence::new(self.grant_lifetime, self.fence_budget.clone());
        let lent = Arc::new(Lent { segment, fence, stamps });
        self.lent.rcu(|all| all.iter().chain([&lent]).cloned().collect::<Vec<_>>());
        self.relent.send_replace(());
    }

    /// Stops serving a segment: later operations on it are refused, and those under way end as they would. Returns what is
    /// left of it, for the caller to drop.
    pub fn withdraw(&self, number: SegmentNumber) -> Option<Withdrawn> {
        let is_it = |lent: &Arc<Lent>| lent.segment.number() == number;
        let before = self.lent.rcu(|all| all.iter().filter(|lent| !is_it(lent)).cloned().collect::<Vec<_>>());
        self.relent.send_replace(());
        before.iter().find(|lent| is_it(lent)).cloned().map(Withdrawn)
    }

    /// Raises the maximum memory to remember writes. It never falls while this server runs.
    pub fn raise_max_fence_bytes(&self, bytes: u64) {
        self.fence_budget.raise(bytes);
    }

    /// Maximum memory to remember writes, in bytes.
    #[must_use]
    pub fn max_fence_bytes(&self) -> u64 {
        self.fence_budget.limit()
    }

    /// Replaces the default timeouts.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Records the duration of its requests in `request_seconds`.
    #[must_use]
    pub fn with_request_seconds(mut self, request_seconds: RequestSeconds) -> Self {
        self.request_seconds = request_seconds;
        self
    }

    /// Returns its counts so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Memory taken to remember writes, in bytes.
    #[must_use]
    pub fn fence_bytes(&self) -> u64 {
        self.fence_budget.bytes()
    }

    /// Serves connections until `shutdown`, then closes them all, finished or not, and returns.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: CancellationToken) {
        let own_calls = self.own_calls.admit();
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
        // The memory may be served under another fence next, which knows nothing of their passes.
        self.copiers.ended().await;
        drop(own_calls);
    }

    async fn serve_connection(&self, stream: TcpStream) {
        let open = OpenConnection::count(&self.counters);
        socket_options::set(&stream);
        let closed = Connection::new(self, Socket::new(stream, self.timeouts.stall)).run().await;
        if matches!(closed, Closed::Protocol(_) | Closed::Stalled) {
            Counters::add(&self.counters.broken_connections, 1);
        }
        tracing::debug!(reason = %closed, "data connection closed");
        drop(open);
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

    /// Returns when another connection wants a queue pair and there is still none.
    async fn pair_wanted(&self) {
        loop {
            self.pairs_wanted.notified().await;
            if self.pairs.available_permits() == 0 {
                return;
            }
        }
    }

    /// Refuses a connection: tells the client that there are too many.
    async fn refuse_connection(&self, stream: TcpStream) {
        Counters::add(&self.counters.connections_refused, 1);
        // Before the client is told: there may be room when it tries again.
        self.crowded.notify_one();
        let connection = Connection::new(self, Socket::new(stream, REFUSED_WITHIN));
        let closed = connection.refuse(&Refusal::Connections { most: self.max_connections }).await;
        tracing::debug!(reason = %closed, "data connection refused");
    }

    /// Opens a grant, and checks that it permits `access` to this store's memory now.
    fn open_grant(&self, sealed: &[u8], access: Access) -> Result<Grant, Refusal> {
        let grant = Grant::open(sealed, &self.key)?;
        check::check_grant(self.identity, self.authority.times(), &grant, access)?;
        Ok(grant)
    }

    /// Finds the memory of `op`, and checks it against the grant and the segment, but not yet against the fence.
    ///
    /// The time is checked for each operation, because the ones before may have taken long: right before its bytes, or
    /// those of a few small ones before it, come in. The fence ends an operation that takes longer.
    fn locate(&self, grant: &Grant, op: Op) -> Result<(Arc<Lent>, GrantedRange, Times), Refusal> {
        let times = check::check_grant(self.identity, self.authority.times(), grant, grant.access)?;
        let range = check::check_op(grant, op)?;
        let here = |lent: &&Arc<Lent>| {
            lent.segment.number() == range.segment && lent.segment.contains(range.offset, range.len)
        };
        let GrantedRange { segment, offset, len, .. } = range;
        let all = self.lent.load();
        let lent = all.iter().find(here).ok_or(Refusal::OutsideMemory { segment, offset, len })?;
        Ok((lent.clone(), range, times))
    }

    /// Registers a write of all of `op`'s range, and returns the place of its bytes.
    fn admit_write(&self, grant: &Grant, op: Op) -> Result<Incoming, Refusal> {
        let (lent, range, times) = self.locate(grant, op)?;
        let granted = range.offset..range.offset + range.len;
        let pass = lent.fence.admit_write(granted, range.index, grant.expires, times)?;
        let offset = range.offset + op.offset;
        // Those of this operation only: a reader looks at the stamps of what it has copied.
        if let Some(stamps) = &lent.stamps {
            stamps.stamp(&(offset..offset + op.len), range.index);
        }
        Ok(Incoming { lent, offset, len: op.len, pass, range, times })
    }

    /// [`Self::admit_write`] for a write that has to wait: for room, which comes only when a master says the time, or for a
    /// network card to leave the range. It waits until `until`, which the first wait of a request sets.
    async fn admit_later(
        &self,
        grant: &Grant,
        op: Op,
        until: &mut Option<Instant>,
    ) -> Result<Incoming, Refusal> {
        let until = *until.get_or_insert_with(|| Instant::now() + self.timeouts.room);
        let mut counted = false;
        loop {
            // Created before the attempt, so that nothing is missed in between.
            let (learned, ended) = (self.authority.learned(), self.transfer_ended.notified());
            let fenced = match self.admit_write(grant, op) {
                Err(Refusal::Fenced(fenced @ (Fenced::Full | Fenced::InTransfer))) => fenced,
                answer => return answer,
            };
            if fenced == Fenced::Full {
                if !std::mem::replace(&mut counted, true) {
                    Counters::add(&self.counters.waits, 1);
                }
                if self.forget() {
                    // Each turn searches other records, so this ends.
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            tokio::select! {
                () = learned => {}
                () = ended => {}
                () = tokio::time::sleep_until(until) => return Err(fenced.into()),
            }
        }
    }

    /// Counts a write whose bytes are there in `bytes`, and seals its range if there is a grant for that.
    async fn end_write(
        &self,
        write: &Incoming,
        sealing: Option<&Grant>,
        bytes: &AtomicU64,
        until: &mut Option<Instant>,
    ) -> Result<(), Refusal> {
        Counters::add(&self.counters.writes, 1);
        Counters::add(bytes, write.len);
        match sealing {
            Some(grant) => Ok(self.seal(write, grant, until).await?),
            None => Ok(()),
        }
    }

    /// Seals the range of a write. Waits for a network card to leave it, which moves bytes of the same put that were asked
    /// for over another connection; until `until`, as above.
    async fn seal(&self, write: &Incoming, grant: &Grant, until: &mut Option<Instant>) -> Result<(), Fenced> {
        loop {
            // Created before the attempt, as above.
            let ended = self.transfer_ended.notified();
            match write.seal(grant) {
                Err(Fenced::InTransfer) => {}
                answer => return answer,
            }
            let until = *until.get_or_insert_with(|| Instant::now() + self.timeouts.room);
            if tokio::time::timeout_at(until, ended).await.is_err() {
                return Err(Fenced::InTransfer);
            }
        }
    }

    /// Forgets some of the writes that may be forgotten; returns whether there are more.
    fn forget(&self) -> bool {
        let Some(times) = self.authority.times() else { return false };
        // One fence after the other: a waiting write comes back for the rest.
        self.lent.load().iter().any(|lent| lent.fence.forget(times))
    }
}

impl fmt::Debug for DataServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataServer")
            .field("identity", &self.identity)
            .field("segments", &self.lent.load().len())
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
