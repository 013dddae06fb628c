//! The store's link to the masters: who leads, mount, heartbeats, unmount.
//!
//! It runs on a thread of its own with a runtime of its own, so that neither transfers nor a busy process can delay a
//! heartbeat: a store that is late is suspect, and its keys stop being offered.

mod advertise;
mod cluster;
pub(crate) mod finder;
mod leaders;
mod masters;
mod run;
mod session;
mod status;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures::future::BoxFuture;
use mc_base::net::Network;
use mc_base::{ClusterId, ClusterTime, GrantKey, HostPort, SegmentEpoch, StoreId};
use tokio::sync::oneshot;

pub(crate) use advertise::Advertised;
pub(crate) use status::LinkStatus;

/// What does not change while the process runs.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    pub(crate) store: StoreId,
    /// For people.
    pub(crate) name: String,
    pub(crate) advertised: Advertised,
    pub(crate) segment_bytes: Vec<u64>,
}

/// One allocation of the memory, and the key of its grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) epoch: SegmentEpoch,
    pub(crate) key: GrantKey,
}

impl Identity {
    pub(crate) fn draw() -> Self {
        Self { epoch: SegmentEpoch::random(), key: GrantKey::random() }
    }
}

/// Whoever serves the memory to clients.
pub(crate) trait Served: Send + Sync {
    /// A leader of `cluster` said that its time is `time`: grants expire by that.
    fn learn(&self, cluster: ClusterId, time: ClusterTime);

    /// Closes every connection made under the old identity, then serves the same memory under `identity`. When this
    /// returns, nothing that was granted before can touch a byte.
    fn register(&self, identity: Identity) -> BoxFuture<'_, ()>;
}

/// Everything the link needs from its store.
pub(crate) struct LinkConfig {
    pub(crate) masters: Vec<HostPort>,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) lent: Lent,
    pub(crate) identity: Identity,
    pub(crate) served: Arc<dyn Served>,
    pub(crate) status: Arc<LinkStatus>,
    /// Called when the store meets its cluster or goes over to another, to keep the id on disk.
    pub(crate) keep_cluster: Box<dyn Fn(ClusterId) + Send>,
}

/// The running link. Dropping it stops the heartbeats without unmounting.
pub(crate) struct Link {
    /// Sending asks for an unmount within that time; dropping just stops.
    stop: Option<oneshot::Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread or no event loop.
    pub(crate) fn start(config: LinkConfig) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new()
            .name("mc-heartbeat".into())
            .spawn(move || runtime.block_on(run::run(config, stopped)))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Unmounts, for at most `within`, and ends the thread.
    pub(crate) async fn unmount(mut self, within: Duration) {
        if let Some(stop) = self.stop.take() {
            // A thread that has ended has nothing mounted any more.
            let _ = stop.send(within);
        }
        if let Some(thread) = self.thread.take() {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the heartbeat thread failed");
            }
        }
    }
}
