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

/// One allocation of the memory as this process serves it, and the first key of its grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) epoch: SegmentEpoch,
    /// Number of this process among those that have served the epoch.
    pub(crate) incarnation: u64,
    pub(crate) key: GrantKey,
}

impl Registration {
    pub(crate) fn draw() -> Self {
        Self { epoch: SegmentEpoch::random(), incarnation: 1, key: GrantKey::random() }
    }
}

/// State at the masters of memory that a previous process has served, as that process knew it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    /// Cluster to whose leader the epoch was announced.
    pub(crate) cluster: Option<ClusterId>,
    /// The latest time of that cluster.
    pub(crate) time: ClusterTime,
    /// The highest order of a write that was admitted.
    pub(crate) order: u64,
}

/// Serves the memory, as the link needs it.
pub(crate) trait Served: Send + Sync {
    /// Records that a leader of `cluster` reported the cluster time `time`, by which grants expire.
    fn learn(&self, cluster: ClusterId, time: ClusterTime);

    /// Records that the memory is about to be announced to the leader of `cluster`.
    fn announce(&self, cluster: Option<ClusterId>);

    /// Returns the highest order of all writes under the present epoch; `None` for memory that ends with this process.
    fn highest_order(&self) -> Option<u64>;

    /// Refuses writes of puts that had begun at `order`, the first one that is said under a registration.
    fn refuse_writes_up_to(&self, order: u64);

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
    /// `None` for memory of which no master has heard.
    pub(crate) announced: Option<Announced>,
    pub(crate) served: Arc<dyn Served>,
    pub(crate) status: Arc<LinkStatus>,
    /// Saves the cluster id on disk. Called when the store joins its first cluster or moves to another.
    pub(crate) keep_cluster: Box<dyn Fn(ClusterId) + Send>,
}

/// The running link. Dropping it stops the heartbeats without unmounting.
pub(crate) struct Link {
    /// Asks for an unmount within the time that is sent; dropping it stops the link without one.
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

    /// Ends the link, with `unmount_within` after it has unmounted the memory.
    pub(crate) async fn stop(mut self, unmount_within: Option<Duration>) {
        if let (Some(stop), Some(within)) = (self.stop.take(), unmount_within) {
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
