//! The store's link to the masters: who leads, mount, heartbeats, unmount.
//!
//! A store alone in its process gives it a thread and a runtime of its own, so that neither transfers nor a busy process
//! can delay a heartbeat: a store that is late is suspect, and its keys stop being offered. A process with many stores
//! hands them one runtime instead.

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
use mc_net::Network;
use mc_types::{ClusterId, ClusterTime, GrantKey, HostPort, SegmentEpoch, StoreId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub(crate) use advertise::Advertised;
pub(crate) use status::LinkStatus;

/// Facts that do not change while the process runs.
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

/// The server of the memory.
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
    running: Running,
}

/// Where the link runs.
enum Running {
    Thread(JoinHandle<()>),
    Task(tokio::task::JoinHandle<()>),
}

impl Link {
    /// Starts the link on `shared`, or else on a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread or no event loop.
    pub(crate) fn start(config: LinkConfig, shared: Option<&Handle>) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let running = match shared {
            Some(runtime) => Running::Task(runtime.spawn(run::run(config, stopped))),
            None => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let thread = std::thread::Builder::new()
                    .name("mc-heartbeat".into())
                    .spawn(move || runtime.block_on(run::run(config, stopped)))?;
                Running::Thread(thread)
            }
        };
        Ok(Self { stop: Some(stop), running })
    }

    /// Unmounts, for at most `within`, and ends the link.
    pub(crate) async fn unmount(mut self, within: Duration) {
        if let Some(stop) = self.stop.take() {
            // A link that has ended has nothing mounted any more.
            let _ = stop.send(within);
        }
        let well = match self.running {
            Running::Thread(thread) => {
                matches!(tokio::task::spawn_blocking(move || thread.join()).await, Ok(Ok(())))
            }
            Running::Task(task) => task.await.is_ok(),
        };
        if !well {
            tracing::error!("the link to the masters failed");
        }
    }
}
