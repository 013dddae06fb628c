//! The store's link to the masters: the search for the leader, mount, heartbeats, unmount.
//!
//! A store alone in its process gives the link a thread and a runtime of its own, so that neither transfers nor a busy
//! process can delay a heartbeat. A store whose heartbeats are late becomes suspect, and its keys are no longer
//! offered. A process with many stores hands them one runtime instead.

mod advertise;
mod finder;
mod keys;
mod run;
mod session;
mod status;
mod tls;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures::future::BoxFuture;
use mc_discovery::Leader;
use mc_net::Network;
use mc_transfer::DataEncryption;
use mc_types::{ClusterId, ClusterTime, GrantKey, HostPort, SegmentEpoch, StoreId};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tracing::Instrument as _;

use crate::transports::TransportReport;

pub(crate) use advertise::Advertised;
pub(crate) use status::LinkStatus;
pub(crate) use tls::LinkTls;

/// A leader to move to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextLeader {
    pub(crate) leader: Leader,
    /// Whether every store learns of this leader at the same moment, as from a watch. The stores then move one after
    /// the other. A store that learned of the leader by its own question moves at once.
    pub(crate) told_to_all: bool,
}

/// The store's properties that do not change while the process runs.
#[derive(Clone, Debug)]
pub(crate) struct StoreInfo {
    pub(crate) store: StoreId,
    /// Name for display.
    pub(crate) name: String,
    pub(crate) data_encryption: DataEncryption,
    pub(crate) advertised: Advertised,
}

/// One allocation of the memory, and the first key of its grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) epoch: SegmentEpoch,
    pub(crate) key: GrantKey,
}

impl Registration {
    pub(crate) fn draw() -> Self {
        Self { epoch: SegmentEpoch::random(), key: GrantKey::random() }
    }
}

/// Serves the memory, as the link needs it.
pub(crate) trait Served: Send + Sync {
    /// Records that a leader of `cluster` reported the cluster time `time`, by which grants expire.
    fn learn(&self, cluster: ClusterId, time: ClusterTime);

    /// Closes every connection made under the old registration, then serves the same memory under `registration`. Once this
    /// returns, no grant issued before can touch a byte.
    fn register(&self, registration: Registration) -> BoxFuture<'_, ()>;

    /// Takes grants under `key`, too, before any master has it.
    fn take_next_key(&self, key: GrantKey);

    /// Records that a master had that key at the cluster time `at`.
    fn confirm_key(&self, at: ClusterTime);

    /// Returns the transports, offered or not.
    fn transports(&self) -> Vec<TransportReport>;

    /// Serves nothing to these callers from now on, and to all others again.
    fn shut_out(&self, callers: BTreeSet<u64>);

    /// Records that the masters have mounted segments of these sizes, and releases the memory of those of 0 bytes.
    fn mounted(&self, sizes: &[u64]);
}

/// Everything the link needs from its store.
pub(crate) struct LinkConfig {
    /// The list of masters, which may change.
    pub(crate) masters: watch::Receiver<Vec<HostPort>>,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) tls: LinkTls,
    pub(crate) info: StoreInfo,
    pub(crate) registration: Registration,
    pub(crate) served: Arc<dyn Served>,
    pub(crate) status: Arc<LinkStatus>,
    /// Saves the cluster id on disk. Called when the store joins its first cluster or moves to another.
    pub(crate) keep_cluster: Box<dyn Fn(ClusterId) + Send>,
}

/// The running link. Dropping it stops the heartbeats without unmounting.
pub(crate) struct Link {
    /// Asks for an unmount within the time sent; dropping it stops the link without one.
    stop: Option<oneshot::Sender<Duration>>,
    running: Running,
}

/// The thread or task that runs the link.
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
        // A process may have many stores: at the level of debug, each line names its own.
        let span = tracing::debug_span!("store", id = %config.info.store);
        let run = run::run(config, stopped).instrument(span);
        let running = match shared {
            Some(runtime) => Running::Task(runtime.spawn(run)),
            None => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let thread = std::thread::Builder::new()
                    .name("mc-heartbeat".into())
                    .spawn(move || runtime.block_on(run))?;
                Running::Thread(thread)
            }
        };
        Ok(Self { stop: Some(stop), running })
    }

    /// Unmounts the memory within `within`, and ends the link.
    pub(crate) async fn unmount(mut self, within: Duration) {
        if let Some(stop) = self.stop.take() {
            // A link that has ended has nothing mounted.
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
