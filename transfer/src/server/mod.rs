//! The store's end of TCP transfers.

mod check;
mod connection;
mod counters;
mod socket;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mc_types::{Grant, GrantKey, GrantedRange, SegmentEpoch, StoreId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::check::{Identity, Refusal};
use self::connection::Connection;
pub use self::counters::{Counters, RequestSeconds};
use self::socket::{Closed, Incoming, Socket};
use crate::authority::{Authority, Times};
use crate::fence::{Budget, Fence, Fenced};
use crate::segment::Segment;
use crate::socket_options;
use crate::wire::Op;

/// After an accept that failed (no file descriptors left, mostly) the next is tried this much later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections beyond the limit that are told so at the same time; more have to wait to be accepted.
const REFUSED_AT_ONCE: usize = 64;
/// How long such a one may take to say hello.
const REFUSED_WITHIN: Duration = Duration::from_millis(250);

/// Configuration of a data server.
#[derive(Debug)]
pub struct DataServerConfig {
    /// Whose memory it is.
    pub store: StoreId,
    /// Which allocation of that memory.
    pub epoch: SegmentEpoch,
    /// Key of its grants' seals.
    pub key: GrantKey,
    /// The memory.
    pub segments: Vec<Arc<Segment>>,
    /// The cluster's id and time. A store that goes over to another cluster serves it under a new epoch, with a new
    /// server: what was granted and written before is ordered by the old cluster's indexes and time.
    pub authority: Arc<Authority>,
    /// Longest time from the making of a grant to its expiry. The store remembers who wrote what for twice as long.
    pub grant_lifetime: Duration,
    /// Most memory for that, at 64 bytes a write; see [`crate::fence_limit`]. Where it is used up, writes wait until older
    /// ones are forgotten.
    pub fence_bytes: u64,
    /// Most connections at a time; a client beyond that is told to try again, and a connection that has been idle for a
    /// second or more makes room for it. Up to 64 more are open while they are told.
    pub max_connections: usize,
}

/// How long a peer may keep the server waiting.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Without a byte, in the middle of a message. Longer bears with slower peers, shorter frees what dead ones hold.
    pub stall: Duration,
    /// Between two requests. The client notices that the connection was closed and makes another.
    pub idle: Duration,
    /// For a write that waits for memory to remember it. Well below the time after which a client takes a store that
    /// moves no byte for dead; the refusal tells it to try again.
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

/// Serves reads and writes of a store's memory over TCP: a task per connection, each operation checked against its
/// grant and the fence, bytes straight between socket and segment.
pub struct DataServer {
    identity: Identity,
    key: GrantKey,
    lent: Vec<Lent>,
    fence_budget: Arc<Budget>,
    authority: Arc<Authority>,
    max_connections: usize,
    slots: Arc<Semaphore>,
    /// Wakes the connection that has been idle for the longest time when another one was refused.
    crowded: Notify,
    timeouts: Timeouts,
    counters: Counters,
    request_seconds: RequestSeconds,
}

/// A segment and who may touch it.
struct Lent {
    segment: Arc<Segment>,
    fence: Fence,
}

impl DataServer {
    /// A server that is not listening yet.
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
        } = config;
        let fence_budget = Arc::new(Budget::of(fence_bytes));
        let max_connections = max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let lend = |segment| Lent { segment, fence: Fence::new(grant_lifetime, fence_budget.clone()) };
        Self {
            identity: Identity { store, epoch },
            key,
            lent: segments.into_iter().map(lend).collect(),
            fence_budget,
            authority,
            max_connections,
            slots: Arc::new(Semaphore::new(max_connections)),
            crowded: Notify::new(),
            timeouts: Timeouts::default(),
            counters: Counters::default(),
            request_seconds: RequestSeconds::noop(),
        }
    }

    /// The same with other timeouts than the default ones.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// The same, and its requests are timed.
    #[must_use]
    pub fn with_request_seconds(mut self, request_seconds: RequestSeconds) -> Self {
        self.request_seconds = request_seconds;
        self
    }

    /// Its counts so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Memory that it takes to remember who wrote what.
    #[must_use]
    pub fn fence_bytes(&self) -> u64 {
        self.fence_budget.bytes()
    }

    /// Serves connections until `shutdown`, then closes them all, finished or not, and returns.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: CancellationToken) {
        let connections = TaskTracker::new();
        let refusals = Arc::new(Semaphore::new(REFUSED_AT_ONCE));
        // A place among the refused is there before a connection is accepted: it takes a descriptor either way.
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
    }

    async fn serve_connection(&self, stream: TcpStream) {
        let open = OpenConnection::count(&self.counters);
        socket_options::set(&stream);
        let closed = Connection::new(self, Socket::new(stream, self.timeouts.stall)).run().await;
        if matches!(closed, Closed::Protocol(_) | Closed::Stalled(_)) {
            Counters::add(&self.counters.broken_connections, 1);
        }
        tracing::debug!(reason = %closed, "data connection closed");
        drop(open);
    }

    /// Returns when another connection has found no place, and there is still none.
    async fn place_wanted(&self) {
        loop {
            self.crowded.notified().await;
            if self.slots.available_permits() == 0 {
                return;
            }
        }
    }

    /// Tells the client that there are too many already.
    async fn refuse_connection(&self, stream: TcpStream) {
        Counters::add(&self.counters.connections_refused, 1);
        // Before the client hears of it: there may be room when it tries again.
        self.crowded.notify_one();
        let connection = Connection::new(self, Socket::new(stream, REFUSED_WITHIN));
        let closed = connection.refuse(&Refusal::Connections { most: self.max_connections }).await;
        tracing::debug!(reason = %closed, "data connection refused");
    }

    /// The memory that `op` means: checked against its grant and the segment, not yet against the fence. The time is
    /// checked again for each operation, right before its bytes or those of a few small ones before it come in: the ones
    /// before may have taken long. What is under way for longer is the fence's to end.
    fn locate(&self, grant: &Grant, op: Op) -> Result<(&Lent, GrantedRange, Times), Refusal> {
        let times = check::check_grant(self.identity, self.authority.times(), grant, grant.access)?;
        let range = check::check_op(grant, op)?;
        let here = |lent: &&Lent| {
            lent.segment.number() == range.segment && lent.segment.contains(range.offset, range.len)
        };
        let GrantedRange { segment, offset, len, .. } = range;
        let lent = self.lent.iter().find(here).ok_or(Refusal::OutsideMemory { segment, offset, len })?;
        Ok((lent, range, times))
    }

    /// Registers a write of all of `op`'s range, and says where its bytes go.
    fn admit_write(&self, grant: &Grant, op: Op) -> Result<Incoming<'_>, Refusal> {
        let (lent, range, times) = self.locate(grant, op)?;
        let granted = range.offset..range.offset + range.len;
        let pass = lent.fence.admit_write(granted, range.index, grant.expires, times)?;
        let offset = range.offset + op.offset;
        Ok(Incoming { segment: &lent.segment, offset, len: op.len, pass, index: range.index })
    }

    /// [`Self::admit_write`], for one that there was no room for: waits for it until `until`. Room comes when a master
    /// says the time, and only then.
    async fn admit_later(&self, grant: &Grant, op: Op, until: Instant) -> Result<Incoming<'_>, Refusal> {
        Counters::add(&self.counters.waits, 1);
        loop {
            // Made before it is tried, so that no word is missed in between.
            let learned = self.authority.learned();
            match self.admit_write(grant, op) {
                Err(Refusal::Fenced(Fenced::Full)) => {}
                answer => return answer,
            }
            if self.forget() {
                // Each turn looks at other records, so there is an end to it.
                tokio::task::yield_now().await;
            } else if tokio::time::timeout_at(until, learned).await.is_err() {
                return Err(Fenced::Full.into());
            }
        }
    }

    /// Forgets some of the writes whose time is over; says whether there are more.
    fn forget(&self) -> bool {
        let Some(times) = self.authority.times() else { return false };
        // One fence after the other: whoever waits comes back for the rest.
        self.lent.iter().any(|lent| lent.fence.forget(times))
    }
}

impl fmt::Debug for DataServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataServer")
            .field("identity", &self.identity)
            .field("segments", &self.lent.len())
            .finish_non_exhaustive()
    }
}

/// Counts a connection as closed however its task ends.
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
