use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_durable::{DirectoryLock, DurableError, FreeSpace};
use mc_log::{LogOptions, LogStore, OpenError, OpenLog};
use mc_net::{Listener, Network};
use mc_process::{config::Loaded, metrics::Registry};
use mc_raft::{RaftNode, StartError as RaftStartError, TransferError};
use mc_types::{Clock, NodeId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::config::{MasterArgs, MasterConfigError};
use crate::formation::{Advertise, BoundAddresses, Formation, FormationConfig, FormationError, Plan};
use crate::identity::{Identity, IdentityError};
use crate::life::Life;
use crate::metrics::MasterMetrics;
use crate::peers::system_resolver;
use crate::rescue;

/// How long to wait for a predecessor that is still letting go of the data directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for another master to take the leadership.
const HAND_OVER: Duration = Duration::from_secs(1);
/// Longest wait for Raft and for the log to end: a disk that hangs must not keep the process.
pub(crate) const CLOSE: Duration = Duration::from_secs(1);
/// A call that arrives right after the leadership went is still told where it went.
const LINGER: Duration = Duration::from_millis(100);
/// Streams and calls that are open at the end get so long.
const DRAIN: Duration = Duration::from_millis(300);

/// Surroundings of a master, which it is given rather than makes: its clock, its network, its log's disk and the room
/// on it, the threads for Raft.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Monotonic time.
    pub clock: Clock,
    /// Listens and connects.
    pub network: Arc<dyn Network>,
    /// Opens the Raft log.
    pub log: Arc<dyn OpenLog>,
    /// Where Raft runs, apart from the calls.
    pub raft: Handle,
    /// Tells how much room the data directory has.
    pub free_space: Arc<dyn FreeSpace>,
}

/// Why a master does not start, or gives up before it has a cluster. Each is one sentence for the person who starts it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The flags.
    #[error(transparent)]
    Config(#[from] MasterConfigError),
    /// The data directory.
    #[error("--data-dir: {0}")]
    DataDir(#[from] DurableError),
    /// The identity in it.
    #[error("--data-dir: {0}")]
    Identity(#[from] IdentityError),
    /// The log in it.
    #[error("--data-dir: {0}")]
    Log(#[from] OpenError),
    /// It is half-way from one cluster to another.
    #[error(
        "--data-dir: a rescue of {dir} was cut short: finish it with `mcctl members rescue --data-dir {dir} --yes`",
        dir = dir.display()
    )]
    RescueUnfinished {
        /// The directory.
        dir: PathBuf,
    },
    /// A port.
    #[error("--{flag} {address}: cannot listen: {source}")]
    Listen {
        /// Which flag.
        flag: &'static str,
        /// The address that was asked for.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The way to a cluster.
    #[error(transparent)]
    Formation(#[from] FormationError),
    /// Raft.
    #[error(transparent)]
    Raft(#[from] RaftStartError),
    /// Raft refuses to begin the cluster.
    #[error("the new cluster could not be initialized: {0}")]
    Initialize(String),
    /// After the start: the log failed, or Raft stopped.
    #[error("this master cannot go on: {0}")]
    Failed(String),
}

/// A running master. It is a value: a process holds one, a simulation many.
pub struct Master {
    api: Arc<Api>,
    bound: BoundAddresses,
    stop: CancellationToken,
    tasks: TaskTracker,
    failed: watch::Receiver<Option<Arc<StartError>>>,
    _lock: DirectoryLock,
}

impl Master {
    /// Opens the data directory, binds the ports, and goes on to form or join a cluster in the background. Where the
    /// values of `config` came from is of use for what is said of them only.
    ///
    /// # Errors
    /// [`StartError`] for whatever a person has to mend.
    pub async fn start(config: &Loaded<MasterArgs>, environment: Environment) -> Result<Self, StartError> {
        let args = &config.args;
        let peers = args.check()?;
        let data_dir = args.data_dir.clone();
        let lock = mc_durable::blocking(move || DirectoryLock::acquire_within(&data_dir, LOCK_PATIENCE));
        let lock = lock.await.map_err(|error| StartError::Failed(error.to_string()))??;
        if rescue::is_unfinished(&args.data_dir) {
            return Err(StartError::RescueUnfinished { dir: args.data_dir.clone() });
        }
        let identity = Identity::open(&lock)?;
        let node = identity.node();
        let metrics = Arc::new(MasterMetrics::new(Registry::new()));
        let log = Log::open(environment.log.as_ref(), args, metrics.clone()).await?;

        let listeners = Listeners::bind(args, environment.network.as_ref()).await?;
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
        say_what_starts(args, node, &bound);
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
        let api = Api::new(node, metrics.clone());
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
        let (stop, tasks) = (life.stop.clone(), life.tasks.clone());
        tasks.spawn(async move {
            if let Err(error) = life.run(listeners, log).await {
                fail.send_replace(Some(Arc::new(error)));
            }
        });
        Ok(Self { api, bound, stop, tasks, failed, _lock: lock })
    }

    /// Looks at this master's Raft node; `None` until it takes part in a cluster.
    pub fn with_raft<R>(&self, look: impl FnOnce(&RaftNode) -> R) -> Option<R> {
        self.api.coordinator().map(|coordinator| look(&coordinator.raft))
    }

    /// The addresses of the ports.
    #[must_use]
    pub fn addresses(&self) -> BoundAddresses {
        self.bound
    }

    /// Completes when the master cannot go on: a configuration that turns out wrong (a peer of another cluster), a
    /// disk that fails.
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

    /// Hands leadership over if this master has it, keeps telling callers who leads for a moment, and ends. Membership
    /// is unchanged.
    pub async fn stop(self) {
        let coordinator = self.api.coordinator();
        if let Some(coordinator) = &coordinator {
            let handed = tokio::time::timeout(HAND_OVER, coordinator.raft.transfer_leader(None));
            match handed.await {
                Ok(Ok(now)) => tracing::info!(term = now.term, "leadership was handed over"),
                Ok(Err(TransferError::NotLeader(_) | TransferError::Alone)) => {}
                Ok(Err(error)) => tracing::warn!("leadership was not handed over: {error}"),
                Err(_) => tracing::warn!("leadership was not handed over within {HAND_OVER:?}"),
            }
            tokio::time::sleep(LINGER).await;
        }
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(CLOSE + DRAIN, self.tasks.wait()).await.is_err() {
            tracing::debug!("connections were still open at the end");
        }
    }
}

fn say_what_starts(args: &MasterArgs, node: NodeId, bound: &BoundAddresses) {
    tracing::info!(
        %node,
        clients = %bound.client,
        raft = %bound.raft,
        http = %bound.http,
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
    bound: BoundAddresses,
}

impl Listeners {
    async fn bind(args: &MasterArgs, network: &dyn Network) -> Result<Self, StartError> {
        let listen = async |flag, address: &str| {
            let listener: Result<Listener, _> = network.listen(address).await;
            listener.map_err(|source| StartError::Listen { flag, address: address.to_owned(), source })
        };
        let client = listen("listen", &args.listen).await?;
        let raft = listen("raft-listen", &args.raft_listen).await?;
        let http = listen("http-listen", &args.http_listen).await?;
        let bound = BoundAddresses { raft: raft.address, client: client.address, http: http.address };
        Ok(Self { client, raft, http, bound })
    }
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
    /// A master that is dropped rather than stopped ends, too.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
