//! State shared by the parts of a running store; health, metrics and status read it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use mc_process::metrics::Registry;
use mc_transfer::Segment;
use mc_types::{ByteSize, StoreId};

use crate::data::{Data, Totals};
use crate::link::LinkStatus;
use crate::metrics::StoreMetrics;

/// The state of a store from its first moment on: its memory takes minutes to allocate, and it answers meanwhile.
pub(crate) struct StoreState {
    pub(crate) store: StoreId,
    pub(crate) name: String,
    pub(crate) capacity: ByteSize,
    allocated: AtomicU64,
    serving: OnceLock<Serving>,
    pub(crate) metrics: StoreMetrics,
}

/// Parts of a store that serve once its memory is allocated.
#[derive(Clone)]
pub(crate) struct Serving {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) data: Arc<Data>,
    pub(crate) link: Arc<LinkStatus>,
}

impl StoreState {
    pub(crate) fn new(store: StoreId, name: String, capacity: ByteSize, registry: Registry) -> Self {
        Self {
            store,
            name,
            capacity,
            allocated: AtomicU64::new(0),
            serving: OnceLock::new(),
            metrics: StoreMetrics::new(registry),
        }
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

    pub(crate) fn render_metrics(&self) -> String {
        self.metrics.render(self)
    }
}
