use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_durable::{DirectoryLock, DurableError, FreeSpace};
use mc_log::{LogOptions, LogStore, OpenError, OpenLog};
use mc_net::{Listener, Network};
use mc_process::{config::Loaded, metrics::Registry};
use mc_raft::{Departure, RaftNode, Roster, StartError as RaftStartError, TransferError};
use mc_types::{Clock, ClusterId, NodeId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::config::{MasterArgs, MasterConfigError};
use crate::departed;
use crate::formation::{
    Advertise, BoundAddresses, Formation, FormationConfig, FormationError, FormationService, Plan,
};
use crate::identity::{Identity, IdentityError};
use crate::life::Life;
use crate::metrics::MasterMetrics;
use crate::peers::system_resolver;
use crate::rescue;

/// Longest wait for a previous process that still holds the data directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for another master to take the leadership.
const HAND_OVER: Duration = Duration::from_secs(1);
/// Longest wait for Raft and for the log to end: a disk that hangs must not keep the process.
pub(crate) const CLOSE: Duration = Duration::from_secs(1);
/// Longest wait for the vote to be taken, where the disk is disposable. The leader looks twice a second, and changes the
/// voters in a few round trips and syncs.
const LEAVE: Duration = Duration::from_secs(4);
/// Time between two looks at whether it was.
const LOOK: Duration = Duration::from_millis(20);
/// Time after which the committed membership that a master knows is certainly that of its leader, who sends it with its
/// heartbeats. Until then, a place may seem to be reserved that was taken a moment ago.
const UP_TO_DATE: Duration = Duration::from_millis(500);
/// Time between giving up the leadership and closing, in which late callers are told who leads.
const LINGER: Duration = Duration::from_millis(100);
/// Time for streams and calls that are still open at the end.
const DRAIN: Duration = Duration::from_millis(300);

/// Everything outside a master that a test replaces: its clock, its network, its log's disk and the free space there, and
/// the threads for Raft.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Monotonic clock.
    pub clock: Clock,
    /// Network on which it listens and connects.
    pub network: Arc<dyn Network>,
    /// Opens the Raft log.
    pub log: Arc<dyn OpenLog>,
    /// Runtime on which Raft runs, apart from the calls.
    pub raft: Handle,
    /// Reports the free space of the data directory.
    pub free_space: Arc<dyn FreeSpace>,
}

/// Why a master does not start, or cannot go on. Each message is one sentence for the person who starts it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The flags cannot work.
    #[error(transparent)]
    Config(#[from] MasterConfigError),
    /// The data directory cannot be locked or written.
    #[error("--data-dir: {0}")]
    DataDir(#[from] DurableError),
    /// The identity in the data directory cannot be read or written.
    #[error("--data-dir: {0}")]
    Identity(#[from] IdentityError),
    /// The log in the data directory cannot be opened.
    #[error("--data-dir: {0}")]
    Log(#[from] OpenError),
    /// A rescue of the data directory was cut short, half-way from one cluster to another.
    #[error(
        "--data-dir: a rescue of {dir} was cut short: finish it with `mcctl members rescue --data-dir {dir} --yes`",
        dir = dir.display()
    )]
    RescueUnfinished {
        /// The directory.
        dir: PathBuf,
    },
    /// The master cannot listen on a port.
    #[error("--{flag} {address}: cannot listen: {source}")]
    Listen {
        /// Name of the flag.
        flag: &'static str,
        /// The address that was asked for.
        address: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The master cannot form or join a cluster.
    #[error(transparent)]
    Formation(#[from] FormationError),
    /// Raft cannot start.
    #[error(transparent)]
    Raft(#[from] RaftStartError),
    /// Raft refuses to initialize the new cluster.
    #[error("the new cluster could not be initialized: {0}")]
    Initialize(String),
    /// The log failed, or Raft stopped, after the start.
    #[error("this master cannot go on: {0}")]
    Failed(String),
}

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
        let identity = Identity::open(&lock)?;
        let node = identity.node();
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
        say_what_starts(args, node, &listeners);
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
        let api = Api::new(node, environment.network.clone(), metrics.clone());
        let (fail, failed) = watch::channel(None);
        let life = Life {
            node,
            config: config.clone(),
            environment,
            api: api.clone(),
            metrics,
            formation: Arc::new(formation),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let ephemeral = args.ephemeral.then(|| life.formation.service());
        let (stop, tasks) = (life.stop.clone(), life.tasks.clone());
        tasks.spawn(async move {
            if let Err(error) = life.run(listeners, log).await {
                fail.send_replace(Some(Arc::new(error)));
            }
        });
        Ok(Self { api, bound, stop, tasks, failed, ephemeral, lock })
    }

    /// Calls `look` with this master's Raft node; `None` until the master takes part in a cluster.
    pub fn with_raft<R>(&self, look: impl FnOnce(&RaftNode) -> R) -> Option<R> {
        self.api.services().map(|services| look(&services.coordinator.raft))
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
            let raft = &services.coordinator.raft;
            if let Some(shown) = &self.ephemeral {
                // Before anything else: leaders that have heard this do not hand over to this master.
                shown.retire();
                raft.ask_to_leave();
            }
            hand_over(raft).await;
            if self.ephemeral.is_some() {
                match tokio::time::timeout(LEAVE, leave(raft)).await {
                    Ok(true) => self.mark(services.coordinator.cluster).await,
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

/// Hands leadership over if this master has it.
async fn hand_over(raft: &RaftNode) {
    match tokio::time::timeout(HAND_OVER, raft.transfer_leader(None)).await {
        Ok(Ok(now)) => tracing::info!(term = now.term, "leadership was handed over"),
        Ok(Err(TransferError::NotLeader(_) | TransferError::Alone)) => {}
        Ok(Err(error)) => tracing::warn!("leadership was not handed over: {error}"),
        Err(_) => tracing::warn!("leadership was not handed over within {HAND_OVER:?}"),
    }
}

/// Waits until this master's vote is taken. Returns false if too few voters would remain.
///
/// Only a master that had a vote leaves. The place of one that has come back without it may be reserved still, and the leader
/// may be about to give it the vote.
///
/// A master that asks may become leader meanwhile. It hands over to one that stays, once in each term. Where all others ask,
/// too, or do not take over, it lets others go while enough remain, and stops with its vote. If it handed over to one that
/// asks, leadership would circle between them until all have stopped.
async fn leave(raft: &RaftNode) -> bool {
    tracing::info!("this master asks for its vote to be taken before it stops");
    let (mut spared_at, mut voted) = (Instant::now(), false);
    // The caller has tried in the term in which this begins.
    let mut tried = raft.roster().map(|roster| roster.term);
    loop {
        if let Some(roster) = raft.roster()
            && tried != Some(roster.term)
            && has_successor(&roster)
        {
            tried = Some(roster.term);
            hand_over(raft).await;
            spared_at = Instant::now();
        }
        match raft.departure() {
            Departure::Left if voted => return true,
            Departure::Waits => (spared_at, voted) = (Instant::now(), true),
            Departure::Left | Departure::Needed if spared_at.elapsed() >= UP_TO_DATE => return false,
            Departure::Left | Departure::Needed => {}
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether another voter is up, has caught up and stays, by its own report. Only a report says that there are descriptors, so
/// a new leader waits for it.
fn has_successor(roster: &Roster) -> bool {
    let mut others = roster.voters.iter().filter(|voter| **voter != roster.me && roster.is_well(voter));
    others.any(|voter| {
        roster.members.get(voter).is_some_and(|member| member.has_descriptors && !member.leaving)
    })
}

fn say_what_starts(args: &MasterArgs, node: NodeId, listeners: &Listeners) {
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
    if !bound.client.ip().is_loopback() {
        tracing::warn!(
            "connections are not encrypted and callers are not checked: keep these ports in a trusted network"
        );
    }
}

pub(crate) struct Listeners {
    pub(crate) client: Listener,
    pub(crate) raft: Listener,
    pub(crate) http: Listener,
    /// For `/metadata` alone, if it is wanted.
    pub(crate) metadata: Option<Listener>,
    bound: BoundAddresses,
}

impl Listeners {
    async fn bind(
        args: &MasterArgs,
        network: &dyn Network,
        metadata: Option<Listener>,
    ) -> Result<Self, StartError> {
        let client = listen(network, "listen", &args.listen).await?;
        let raft = listen(network, "raft-listen", &args.raft_listen).await?;
        let http = listen(network, "http-listen", &args.http_listen).await?;
        let bound = BoundAddresses { raft: raft.address, client: client.address, http: http.address };
        Ok(Self { client, raft, http, metadata, bound })
    }
}

async fn listen(network: &dyn Network, flag: &'static str, address: &str) -> Result<Listener, StartError> {
    let listener = network.listen(address).await;
    listener.map_err(|source| StartError::Listen { flag, address: address.to_owned(), source })
}

/// The opened log, and whether it holds anything.
pub(crate) struct Log {
    pub(crate) store: LogStore,
    has_state: bool,
}

impl Log {
    async fn open(
        log: &dyn OpenLog,
        args: &MasterArgs,
        metrics: Arc<MasterMetrics>,
    ) -> Result<Self, StartError> {
        let options = LogOptions { sync: args.log_sync, observer: metrics.clone(), ..LogOptions::default() };
        let begun = Instant::now();
        let (store, recovered) = log.open(&args.data_dir.join("log"), options).await?;
        if let Some(last) = recovered.last {
            let first = store.stats().first;
            tracing::info!(first, last = last.index, took = ?begun.elapsed(), "the Raft log has been read");
        }
        if let Some(truncated) = &recovered.truncated {
            metrics.log_truncations.increment(1);
            tracing::warn!("{truncated}");
        }
        let has_state = recovered.vote.is_some() || recovered.last.is_some() || recovered.purged.is_some();
        Ok(Self { store, has_state })
    }
}

impl Drop for Master {
    /// Ends a master that is dropped without [`Self::stop`].
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests;
