//! State shared by the parts of a running store; health, metrics and status read it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mc_net::{CallerRecord, CallerRecords};
use mc_transfer::NotKept;
use mc_types::{ByteSize, ClusterId, HostPort, SegmentEpoch, StoreId, TokenHash};
use tokio::sync::watch;

use crate::data::{Data, Totals};
use crate::link::LinkStatus;
use crate::transports::TransportReport;

/// State of a store from the moment it is opened. It answers while its memory is allocated, which can take minutes.
pub(crate) struct StoreState {
    pub(crate) store: StoreId,
    pub(crate) name: String,
    /// Memory to allocate at the start.
    pub(crate) capacity: ByteSize,
    /// Client addresses of the masters, as they were given last.
    pub(crate) masters: watch::Sender<Vec<HostPort>>,
    allocated: AtomicU64,
    serving: OnceLock<Serving>,
    start: OnceLock<MemoryStart>,
    /// One segment is added at a time.
    pub(crate) adding: tokio::sync::Mutex<()>,
    stopped: AtomicBool,
}

/// How a store came to its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryStart {
    /// It allocated it, and keeps none.
    Allocated,
    /// It allocated it, because its segment directory has nothing for it.
    Cold(NotKept),
    /// It took up what its last process has left.
    Warm,
}

/// Parts of a store that serve once its memory is allocated.
#[derive(Clone)]
pub(crate) struct Serving {
    pub(crate) data: Arc<Data>,
    pub(crate) link: Arc<LinkStatus>,
}

impl StoreState {
    pub(crate) fn new(store: StoreId, name: String, capacity: ByteSize, masters: Vec<HostPort>) -> Self {
        Self {
            store,
            name,
            capacity,
            masters: watch::Sender::new(masters),
            allocated: AtomicU64::new(0),
            serving: OnceLock::new(),
            start: OnceLock::new(),
            adding: tokio::sync::Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Records how many bytes are allocated and ready.
    pub(crate) fn set_allocated(&self, bytes: u64) {
        self.allocated.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn allocated(&self) -> ByteSize {
        ByteSize(self.allocated.load(Ordering::Relaxed))
    }

    /// Notes how it came to its memory. Called once.
    pub(crate) fn note_start(&self, start: MemoryStart) {
        if self.start.set(start).is_err() {
            tracing::error!("a store was started twice");
        }
    }

    /// Publishes the serving parts once the memory is allocated and served. Called once.
    pub(crate) fn start_serving(&self, serving: Serving) {
        if self.serving.set(serving).is_err() {
            tracing::error!("a store was started twice");
        }
    }

    pub(crate) fn set_stopped(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Memory that is lent: all that is allocated once it is served.
    fn lent(&self) -> Option<ByteSize> {
        Some(ByteSize(self.serving()?.data.memory().bytes()))
    }

    pub(crate) fn serving(&self) -> Option<&Serving> {
        self.serving.get()
    }

    pub(crate) fn totals(&self) -> Totals {
        self.serving().map(|serving| serving.data.totals()).unwrap_or_default()
    }

    /// Returns `Ok` if a leader had this store mounted within the last second, else the reason why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let Some(serving) = self.serving() else {
            return Err(format!(
                "allocating memory: {:#} of {:#} are ready",
                self.allocated(),
                self.capacity
            ));
        };
        if serving.link.ready() {
            return Ok(());
        }
        let waiting = serving.link.get().waiting_for;
        Err(match waiting.as_str() {
            "" => "not mounted at a leader within the last second".to_owned(),
            waiting => format!("not mounted at a leader: {waiting}"),
        })
    }
}

/// A view of a store from the moment it is opened; clones are views of the same store.
#[derive(Clone)]
pub struct StoreStatus(pub(crate) Arc<StoreState>);

/// Records of the callers that the masters have denied.
impl CallerRecords for StoreStatus {
    fn by_path(&self, path: &str) -> Option<CallerRecord> {
        let is_denied = self.0.serving()?.data.authority().has_shut_out_identity(path);
        is_denied.then(|| CallerRecord {
            path: path.to_owned(),
            token_number: 0,
            is_over: false,
            is_denied,
            shares_memory: false,
        })
    }

    /// Tokens are for masters.
    fn by_token(&self, _: &TokenHash) -> Option<CallerRecord> {
        None
    }

    fn by_certificate(&self, _: &str) -> Option<CallerRecord> {
        None
    }
}

impl StoreStatus {
    /// Returns `Ok` if a leader had this store mounted within the last second.
    ///
    /// # Errors
    /// The reason why not, in words.
    pub fn ready(&self) -> Result<(), String> {
        self.0.ready()
    }

    /// Returns everything that health, metrics and status show, at this moment.
    #[must_use]
    pub fn report(&self) -> StoreReport {
        let state = &self.0;
        let serving = state.serving();
        let link = serving.map(|serving| serving.link.get());
        let leader = link.as_ref().and_then(|link| link.leader.as_ref());
        StoreReport {
            id: state.store,
            name: state.name.clone(),
            ready: state.ready(),
            capacity: state.lent().unwrap_or(state.capacity),
            allocated: state.lent().unwrap_or_else(|| state.allocated()),
            cluster: link.as_ref().and_then(|link| link.cluster),
            epoch: link.as_ref().map(|link| link.epoch),
            masters: link.as_ref().map(|link| link.masters.iter().cloned().collect()).unwrap_or_default(),
            leader: leader.map(|leader| leader.address.clone()),
            term: leader.map(|leader| leader.term),
            heartbeat_age: serving.and_then(|serving| serving.link.age()),
            mounts: link.as_ref().map_or(0, |link| link.mounts),
            key_changes: link.as_ref().map_or(0, |link| link.key_changes),
            dead_epochs: link.as_ref().map_or(0, |link| link.dead_epochs),
            totals: state.totals(),
            fence_bytes: serving.map_or(0, |serving| serving.data.fence_bytes().0),
            fence_limit_bytes: serving.map_or(0, |serving| serving.data.fence_bytes().1),
            max_connections: serving.map_or(0, |serving| serving.data.max_connections()),
            transports: serving.map(|serving| serving.data.transports()).unwrap_or_default(),
            start: state.start.get().cloned(),
            shut_out: serving.map_or(0, |serving| serving.data.authority().callers_shut_out()),
        }
    }
}

impl std::fmt::Debug for StoreStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoreStatus").field(&self.0.store).finish()
    }
}

/// Snapshot of a store's state at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreReport {
    /// Its id.
    pub id: StoreId,
    /// Its name for display.
    pub name: String,
    /// Whether a leader had it mounted within the last second, or why not.
    pub ready: Result<(), String>,
    /// Memory that it lends.
    pub capacity: ByteSize,
    /// Memory that is allocated and faulted in.
    pub allocated: ByteSize,
    /// The cluster that it belongs to, once known.
    pub cluster: Option<ClusterId>,
    /// Epoch of the present allocation of its memory.
    pub epoch: Option<SegmentEpoch>,
    /// Client addresses of all masters that it knows: those of its list, and those that masters named.
    pub masters: Vec<String>,
    /// Client address of the leader that the heartbeats go to.
    pub leader: Option<String>,
    /// Raft term of that leader.
    pub term: Option<u64>,
    /// Time since a leader last said that this store is mounted.
    pub heartbeat_age: Option<Duration>,
    /// Mounts that a leader accepted.
    pub mounts: u64,
    /// Changes of the key that seals the grants on its memory.
    pub key_changes: u64,
    /// Times that what the memory held was lost while the store ran, and it was offered again.
    pub dead_epochs: u64,
    /// Bytes, requests and connections since the store started.
    pub totals: Totals,
    /// Bytes of memory that the fence uses to remember the writes of the last two minutes.
    pub fence_bytes: u64,
    /// Limit of the fence's memory in bytes; writes that would exceed it wait.
    pub fence_limit_bytes: u64,
    /// Most data connections that the limit on open descriptors allows.
    pub max_connections: usize,
    /// Transports, offered or not; none before the memory is served.
    pub transports: Vec<TransportReport>,
    /// How it came to its memory, once it has.
    pub start: Option<MemoryStart>,
    /// Number of identities and tokens that masters have shut out.
    pub shut_out: usize,
}
