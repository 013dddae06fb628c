use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mc_base::crashsafe::{DirectoryLock, DurableError};
use mc_base::metrics::Registry;
use mc_base::net::{Listener, Network};
use mc_base::{Clock, NodeId};
use mc_proto::v1::master_server::MasterServer;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::{Api, MasterService};
use crate::config::{MasterArgs, MasterConfigError};
use crate::formation::{
    Advertise, BoundAddresses, ClusterView, Formation, FormationConfig, FormationError, FormationService,
    Formed, Plan,
};
use crate::http;
use crate::identity::{Identity, IdentityError};
use crate::leader::{Coordinator, duties};
use crate::log::{LogDisk, LogOptions, LogStore, OpenError, SledDisk, SledOptions};
use crate::metrics::MasterMetrics;
use crate::peers::system_resolver;
use crate::raft::{
    Leadership, RaftNode, RaftNodeConfig, RaftService, SnapshotLimits, StartError as RaftStartError,
    TransferError,
};

/// Largest request that is read: 4,096 keys of 4 KiB and their framing.
const MAX_REQUEST_BYTES: usize = 24 << 20;
/// Longest wait for another master to take the leadership.
const HAND_OVER: Duration = Duration::from_secs(1);
/// Longest wait for Raft and for the log to end: a disk that hangs must not keep the process.
const CLOSE: Duration = Duration::from_secs(1);
/// A call that arrives right after the leadership went is still told where it went.
const LINGER: Duration = Duration::from_millis(100);
/// Streams and calls that are open at the end get so long.
const DRAIN: Duration = Duration::from_millis(300);

/// What a master is given rather than makes: its clock, its network, the threads for Raft.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Monotonic time.
    pub clock: Clock,
    /// Listens and connects.
    pub network: Arc<dyn Network>,
    /// Where Raft runs, apart from the calls.
    pub raft: Handle,
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
    /// A port.
    #[error("--{flag} {address}: cannot listen: {source}")]
    Listen {
        /// Which flag.
        flag: &'static str,
        /// What was asked for.
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
    /// Opens the data directory, binds the ports, and goes on to form or join a cluster in the background.
    ///
    /// # Errors
    /// [`StartError`] for whatever a person has to mend.
    pub async fn start(args: &MasterArgs, environment: Environment) -> Result<Self, StartError> {
        let peers = args.check()?;
        let lock = DirectoryLock::acquire(&args.data_dir)?;
        let identity = Identity::open(&lock)?;
        let node = identity.node();
        let metrics = Arc::new(MasterMetrics::new(Registry::new()));
        let log = Log::open(&args.data_dir, args, metrics.clone()).await?;

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
            args: args.clone(),
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

    /// What the ports are bound to.
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

struct Listeners {
    client: Listener,
    raft: Listener,
    http: Listener,
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
struct Log {
    store: LogStore,
    has_state: bool,
}

impl Log {
    async fn open(dir: &Path, args: &MasterArgs, metrics: Arc<MasterMetrics>) -> Result<Self, StartError> {
        let dir = dir.join("log");
        let options = LogOptions { sync: args.log_sync, observer: metrics.clone(), ..LogOptions::default() };
        let disk = move || {
            SledDisk::open(&dir, &SledOptions::default()).map(|disk| -> Box<dyn LogDisk> { Box::new(disk) })
        };
        let (store, recovered) = LogStore::open(disk, options).await?;
        if let Some(truncated) = &recovered.truncated {
            metrics.log_truncations.increment(1);
            tracing::warn!("{truncated}");
        }
        let has_state = recovered.vote.is_some() || recovered.last.is_some() || recovered.purged.is_some();
        Ok(Self { store, has_state })
    }
}

/// What runs in the background from the start to the end.
struct Life {
    node: NodeId,
    args: MasterArgs,
    environment: Environment,
    api: Arc<Api>,
    metrics: Arc<MasterMetrics>,
    formation: Arc<Formation>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Life {
    async fn run(self, listeners: Listeners, log: Log) -> Result<(), StartError> {
        let service = RaftService::new(self.node, self.formation.service());
        self.serve(listeners, service.clone());
        let Some(formed) = self.form().await? else { return Ok(()) };
        let cluster = formed.cluster();

        let log = log.store;
        let appended = log.clone();
        let config = RaftNodeConfig {
            node: self.node,
            cluster,
            settings: self.args.settings(),
            network: self.environment.network.clone(),
            clock: self.environment.clock.clone(),
            log: log.clone(),
            bytes_since: Arc::new(move |covered| appended.bytes_since(covered.unwrap_or(0))),
            snapshot_dir: self.args.data_dir.join("snapshots"),
            limits: SnapshotLimits {
                log_bytes: self.args.snapshot_log_bytes.0,
                entries: Some(self.args.snapshot_log_entries).filter(|entries| *entries > 0),
                keep_entries: self.args.keep_log_entries,
            },
            service,
        };
        // openraft spawns its tasks where it is started.
        let raft = self.environment.raft.spawn(RaftNode::start(config)).await;
        let raft = raft.map_err(|error| StartError::Failed(error.to_string()))??;
        if let Formed::Founder { members, .. } = formed {
            raft.initialize(members).await.map_err(|error| StartError::Initialize(error.to_string()))?;
            self.formation.service().record_formed().await?;
        }
        let coordinator = Arc::new(Coordinator::new(
            cluster,
            raft,
            self.args.settings(),
            self.environment.clock.clone(),
            self.metrics.clone(),
            self.stop.clone(),
        ));
        self.api.open(coordinator.clone());
        self.tasks.spawn(duties::watch_stores(coordinator.clone()));
        self.tasks.spawn(duties::keep_the_log_going(coordinator.clone()));
        self.tasks.spawn(note_formed(self.formation.service(), coordinator.clone(), self.stop.clone()));
        self.tasks.spawn(keep_metrics(self.api.clone(), self.metrics.clone(), self.stop.clone()));

        let outcome = self.watch_over(&coordinator, &log).await;
        let closed = async {
            coordinator.raft.shutdown().await;
            log.close().await;
        };
        if tokio::time::timeout(CLOSE, closed).await.is_err() {
            tracing::warn!("the log was not closed within {CLOSE:?}; what was acknowledged is on disk");
        }
        outcome
    }

    /// Reports who leads until the end, which is an error unless it was asked for.
    async fn watch_over(&self, coordinator: &Coordinator, log: &LogStore) -> Result<(), StartError> {
        let view = || ClusterView {
            members: coordinator.raft.members(),
            led: coordinator.raft.leadership().borrow().leader.is_some(),
        };
        tokio::select! {
            () = self.stop.cancelled() => Ok(()),
            failure = log.failed() => Err(StartError::Failed(failure.to_string())),
            failure = coordinator.raft.stopped() => {
                if self.stop.is_cancelled() { Ok(()) } else { Err(StartError::Failed(failure)) }
            }
            never = self.formation.follow(coordinator.raft.addresses(), view) => match never {
                Err(error) => Err(error.into()),
            },
            () = self.report_leaders(coordinator) => Ok(()),
        }
    }

    /// Says who leads, whenever that changes.
    async fn report_leaders(&self, coordinator: &Coordinator) {
        let mut leadership = coordinator.raft.leadership();
        let mut said = None;
        while leadership.changed().await.is_ok() {
            let Leadership { term, leader } = leadership.borrow_and_update().clone();
            // The same leader at another address is no change of leader.
            let now = leader.as_ref().map(|(leader, _)| (term, *leader));
            if let Some((leader, master)) = leader.filter(|_| said != now) {
                self.metrics.leader_changed();
                tracing::info!(term, %leader, address = master.client, "leader");
                said = now;
            }
        }
        std::future::pending::<()>().await;
    }

    /// Waits for the cluster; `None` when the master is told to stop first.
    async fn form(&self) -> Result<Option<Formed>, StartError> {
        let service = self.formation.service();
        let formed = self.formation.run();
        futures::pin_mut!(formed);
        loop {
            tokio::select! {
                formed = &mut formed => return Ok(Some(formed?)),
                () = self.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(Duration::from_millis(100)) => {
                    if let Some(waiting) = service.waiting() {
                        self.api.waits_for(waiting);
                    }
                }
            }
        }
    }

    fn serve(&self, listeners: Listeners, raft: RaftService) {
        let Listeners { client, raft: raft_listener, http, .. } = listeners;
        let stop = self.stop.clone();
        self.environment.raft.spawn(async move {
            if let Err(error) = raft.serve(raft_listener, stop.cancelled_owned()).await {
                tracing::error!("the Raft port is closed: {error}");
            }
        });
        let (stop, api) = (self.stop.clone(), MasterService(self.api.clone()));
        self.tasks.spawn(async move {
            let served = tonic::transport::Server::builder()
                .tcp_nodelay(true)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
                .max_concurrent_streams(4096)
                .http2_keepalive_interval(Some(Duration::from_secs(1)))
                .http2_keepalive_timeout(Some(Duration::from_secs(2)))
                .add_service(MasterServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES))
                .serve_with_incoming_shutdown(client.incoming, stop.cancelled_owned())
                .await;
            if let Err(error) = served {
                tracing::error!("the client port is closed: {error}");
            }
        });
        let (stop, routes) = (self.stop.clone(), http::routes(self.api.clone(), self.metrics.clone()));
        self.tasks.spawn(async move {
            if let Err(error) = mc_base::http::serve(http, routes, stop.cancelled_owned()).await {
                tracing::error!("the HTTP port is closed: {error}");
            }
        });
    }
}

/// Records that this master holds Raft state as soon as there is a leader, so that an empty log at its next start is
/// known to be a lost one.
async fn note_formed(
    formation: Arc<FormationService>,
    coordinator: Arc<Coordinator>,
    stop: CancellationToken,
) {
    let mut leadership = coordinator.raft.leadership();
    let noted = async {
        if leadership.wait_for(|now| now.leader.is_some()).await.is_err() {
            return;
        }
        while let Err(error) = formation.record_formed().await {
            tracing::warn!("could not record that this master has data, trying again: {error}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = noted => {}
    }
}

async fn keep_metrics(api: Arc<Api>, metrics: Arc<MasterMetrics>, stop: CancellationToken) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = second.tick() => {}
        }
        metrics.show(&http::sample(&api));
        metrics.upkeep();
    }
}

impl Drop for Master {
    /// A master that is dropped rather than stopped ends, too.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
