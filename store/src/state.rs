//! State shared by the parts of a running store; health, metrics and status read it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mc_transfer::Segment;
use mc_types::{ByteSize, ClusterId, SegmentEpoch, StoreId};

use crate::data::{Data, Totals};
use crate::link::LinkStatus;

/// The state of a store from its first moment on: its memory takes minutes to allocate, and it answers meanwhile.
pub(crate) struct StoreState {
    pub(crate) store: StoreId,
    pub(crate) name: String,
    pub(crate) capacity: ByteSize,
    allocated: AtomicU64,
    serving: OnceLock<Serving>,
}

/// Parts of a store that serve once its memory is allocated.
#[derive(Clone)]
pub(crate) struct Serving {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) data: Arc<Data>,
    pub(crate) link: Arc<LinkStatus>,
}

impl StoreState {
    pub(crate) fn new(store: StoreId, name: String, capacity: ByteSize) -> Self {
        Self { store, name, capacity, allocated: AtomicU64::new(0), serving: OnceLock::new() }
    }

    /// So many bytes are ready.
    pub(crate) fn set_allocated(&self, bytes: u64) {
        self.allocated.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn allocated(&self) -> ByteSize {
        ByteSize(self.allocated.load(Ordering::Relaxed))
    }

    /// The memory is there and served. Called once.
    pub(crate) fn start_serving(&self, serving: Serving) {
        if self.serving.set(serving).is_err() {
            tracing::error!("a store was started twice");
        }
    }

    pub(crate) fn serving(&self) -> Option<&Serving> {
        self.serving.get()
    }

    pub(crate) fn totals(&self) -> Totals {
        self.serving().map(|serving| serving.data.totals()).unwrap_or_default()
    }

    /// Whether a leader has this store mounted, as of the last second; else why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let Some(serving) = self.serving() else {
            return Err(format!("allocating memory: {} of {} are ready", self.allocated(), self.capacity));
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

/// A view of a running store, from its first moment on; clones are views of the same store.
#[derive(Clone)]
pub struct StoreStatus(pub(crate) Arc<StoreState>);

impl StoreStatus {
    /// Whether a leader had this store mounted within the last second.
    ///
    /// # Errors
    /// The reason why not, in words.
    pub fn ready(&self) -> Result<(), String> {
        self.0.ready()
    }

    /// Everything that health, metrics and status show, at this moment.
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
            capacity: state.capacity,
            allocated: state.allocated(),
            cluster: link.as_ref().and_then(|link| link.cluster),
            epoch: link.as_ref().map(|link| link.epoch),
            leader: leader.map(|leader| leader.address.clone()),
            term: leader.map(|leader| leader.term),
            heartbeat_age: serving.and_then(|serving| serving.link.age()),
            mounts: link.as_ref().map_or(0, |link| link.mounts),
            dead_epochs: link.as_ref().map_or(0, |link| link.dead_epochs),
            totals: state.totals(),
            fence_bytes: serving.map_or(0, |serving| serving.data.fence_bytes().0),
            fence_limit_bytes: serving.map_or(0, |serving| serving.data.fence_bytes().1),
            max_connections: serving.map_or(0, |serving| serving.data.max_connections()),
        }
    }
}

impl std::fmt::Debug for StoreStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoreStatus").field(&self.0.store).finish()
    }
}

/// A store at one moment.
#[derive(Clone, Debug)]
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
    /// The cluster that it belongs to.
    pub cluster: Option<ClusterId>,
    /// The present allocation of its memory.
    pub epoch: Option<SegmentEpoch>,
    /// Client address of the leader that the heartbeats go to.
    pub leader: Option<String>,
    /// Raft term of that leader.
    pub term: Option<u64>,
    /// Time since a leader last said that this store is mounted.
    pub heartbeat_age: Option<Duration>,
    /// Mounts that a leader took.
    pub mounts: u64,
    /// Times that the masters dropped this memory and it was offered again.
    pub dead_epochs: u64,
    /// Bytes, requests and connections since the store started.
    pub totals: Totals,
    /// Memory that remembers who wrote what in the last two minutes.
    pub fence_bytes: u64,
    /// Most memory for that; then writes wait.
    pub fence_limit_bytes: u64,
    /// Most data connections, by the limit of open descriptors.
    pub max_connections: usize,
}
