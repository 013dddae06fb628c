use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_durable::DirectoryLock;
use mc_net::Network;
use mc_process::config::Loaded;
use mc_process::metrics::Registry;
use mc_raft::RaftNode;
use mc_types::{ClusterId, NodeId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::environment::Environment;
use super::error::StartError;
use super::leave::{LEAVE, hand_over, leave};
use super::listeners::{Listeners, listen};
use super::log::Log;
use super::tasks::{CLOSE, Tasks};
use crate::api::Api;
use crate::audit::AuditLogs;
use crate::config::{MasterArgs, MasterConfigError, system_resolver};
use crate::data_dir::{IdentityFile, departed, rescue};
use crate::formation::{Advertise, BoundAddresses, Formation, FormationConfig, FormationService, Plan};
use crate::metrics::MasterMetrics;

/// Longest wait for a previous process that still holds the data directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Time between the hand-over of leadership and closing. Until then late callers still get the address of the new
/// leader.
const LINGER: Duration = Duration::from_millis(100);
/// Time for streams and calls that are still open at the end.
const DRAIN: Duration = Duration::from_millis(300);

/// A running master. It is a value: a process holds one, a simulation holds many.
pub struct Master {
    api: Arc<Api>,
    bound: BoundAddresses,
    stop: CancellationToken,
    tasks: TaskTracker,
    failed: watch::Receiver<Option<Arc<StartError>>>,
    /// The disk is disposable, and what answers others about this master.
    ephemeral: Option<Arc<FormationService>>,
    lock: DirectoryLock,
}

impl Master {
    /// Opens the data directory and binds the ports, then goes on to form or join a cluster in the background. The
    /// origins of the values in `config` serve messages only.
    ///
    /// # Errors
    /// [`StartError`] for anything that a person has to fix.
    pub async fn start(config: &Loaded<MasterArgs>, environment: Environment) -> Result<Self, StartError> {
        let args = &config.args;
        let peers = args.check()?;
        let data_dir = args.data_dir.clone();
        let lock = mc_durable::blocking(move || DirectoryLock::acquire_within(&data_dir, LOCK_PATIENCE));
        let lock = lock.await.map_err(|error| StartError::Failed(error.to_string()))??;
        if rescue::is_unfinished(&args.data_dir) {
            return Err(StartError::RescueUnfinished { dir: args.data_dir.clone() });
        }
        if departed::begin_empty(&lock)? {
            tracing::info!(
                "this master left its cluster before it stopped: its data directory is emptied, and it comes back as \
                 a new node"
            );
        }
        let identity = IdentityFile::open(&lock)?;
        let (node, is_new) = (identity.node(), identity.belonging().is_none());
        let network = environment.network.as_ref();
        // Before the log is read, which can take minutes: probes of pods that were made for Mooncake connect to this port.
        let metadata = match args.metadata_address() {
            Some(address) => Some(listen(network, "metadata-listen", address).await?),
            None => None,
        };
        let metrics = Arc::new(MasterMetrics::new(Registry::new()));
        let log = Log::open(environment.log.as_ref(), args, metrics.clone()).await?;

        let listeners = Listeners::bind(args, network, metadata).await?;
        let bound = listeners.bound;
        let plan = match (peers, args.single) {
            (Some(peers), _) => Plan::Peers(peers),
            (None, true) => Plan::Single,
            (None, false) if identity.formed() => Plan::Restart,
            (None, false) => {
                return Err(MasterConfigError::NoCluster { data_dir: args.data_dir.clone() }.into());
            }
        };
        let advertise = Advertise { host: args.advertise.clone(), bound };
        say_what_starts(args, node, &listeners, network);
        let formation = Formation::new(
            identity,
            log.has_state,
            FormationConfig {
                plan,
                advertise,
                network: environment.network.clone(),
                resolver: system_resolver(),
            },
        );
        let audit = {
            let dir = args.data_dir.clone();
            let lost = metrics.calls.audit_lost.clone();
            mc_durable::blocking(move || AuditLogs::open(&dir, is_new, lost)).await
        };
        let audit = audit.map_err(io::Error::other).flatten();
        let audit =
            audit.map_err(|error| StartError::Failed(format!("cannot open the audit logs: {error}")))?;
        let api = Api::new(node, environment.network.clone(), metrics.clone(), Arc::new(audit));
        let (fail, failed) = watch::channel(None);
        let running = Tasks {
            node,
            config: config.clone(),
            environment,
            api: api.clone(),
            metrics,
            formation: Arc::new(formation),
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
        };
        let ephemeral = args.ephemeral.then(|| running.formation.service());
        let (stop, tasks) = (running.stop.clone(), running.tracker.clone());
        tasks.spawn(async move {
            if let Err(error) = running.run(listeners, log).await {
                fail.send_replace(Some(Arc::new(error)));
            }
        });
        Ok(Self { api, bound, stop, tasks, failed, ephemeral, lock })
    }

    /// Calls `look` with this master's Raft node; `None` until the master takes part in a cluster.
    pub fn with_raft<R>(&self, look: impl FnOnce(&RaftNode) -> R) -> Option<R> {
        self.api.services().map(|services| look(&services.raft))
    }

    /// Returns the addresses of the bound ports.
    #[must_use]
    pub fn addresses(&self) -> BoundAddresses {
        self.bound
    }

    /// Completes with the reason when the master cannot go on: a configuration that turns out wrong (a peer of another
    /// cluster), or a disk that fails.
    pub async fn failed(&mut self) -> Arc<StartError> {
        loop {
            if let Some(error) = self.failed.borrow_and_update().clone() {
                return error;
            }
            if self.failed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Hands leadership over if this master has it, tells callers for a moment who leads, and ends. Membership changes
    /// only with `--ephemeral`.
    pub async fn stop(self) {
        let services = self.api.services();
        if let Some(services) = &services {
            let raft = &services.raft;
            if let Some(shown) = &self.ephemeral {
                // Before anything else: leaders that have heard this do not hand over to this master.
                shown.retire();
                raft.ask_to_leave();
            }
            let led = raft.membership_view().map(|view| view.term);
            hand_over(raft).await;
            if self.ephemeral.is_some() {
                match tokio::time::timeout(LEAVE, leave(raft, led)).await {
                    Ok(true) => self.mark(services.coordinator.cluster()).await,
                    Ok(false) => tracing::info!(
                        "this master stops as it is, with its data: the others would be too few without its vote, or it \
                         has none"
                    ),
                    Err(_) => tracing::warn!(
                        "this master stops as it is, with its data: within {LEAVE:?} no leader took its vote; a leader \
                         does that while all other voters are up and have caught up"
                    ),
                }
                // It may have become leader meanwhile.
                hand_over(raft).await;
            }
            tokio::time::sleep(LINGER).await;
        }
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(CLOSE + DRAIN, self.tasks.wait()).await.is_err() {
            tracing::debug!("connections were still open at the end");
        }
        // Before the lock of the directory is given back.
        let audit = self.api.audit.clone();
        let _ = mc_durable::blocking(move || audit.close()).await;
    }

    /// Marks the directory of this master, which has left `cluster`, so that its next start begins empty.
    async fn mark(&self, cluster: ClusterId) {
        let (dir, node) = (self.lock.path().to_owned(), self.api.node());
        let marked = mc_durable::blocking(move || departed::mark(&dir, node, cluster)).await;
        match marked
            .map_err(|error| error.to_string())
            .and_then(|marked| marked.map_err(|error| error.to_string()))
        {
            Ok(()) => tracing::info!("this master has given up its vote; its next start begins empty"),
            Err(why) => tracing::warn!(
                "this master has given up its vote, but its next start goes on with its data, which is safe: {why}"
            ),
        }
    }
}

fn say_what_starts(args: &MasterArgs, node: NodeId, listeners: &Listeners, network: &dyn Network) {
    let Listeners { bound, metadata, .. } = listeners;
    tracing::info!(
        %node,
        clients = %bound.client,
        raft = %bound.raft,
        http = %bound.http,
        metadata = metadata.as_ref().map(|listener| tracing::field::display(listener.address)),
        data_dir = %args.data_dir.display(),
        log_sync = %args.log_sync,
        "mc-master {} starts",
        env!("CARGO_PKG_VERSION")
    );
    args.tls.say(network, !bound.client.ip().is_loopback());
}

impl Drop for Master {
    /// Ends a master that is dropped without [`Self::stop`].
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
