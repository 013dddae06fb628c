//! Life of a master: the tasks that it runs from its start to its end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use mc_log::{LogStore, LogSync};
use mc_net::Listener;
use mc_process::config::Loaded;
use mc_proto::v1::master_server::MasterServer;
use mc_raft::{Leadership, RaftNode, RaftNodeConfig, RaftService, SnapshotLimits};
use mc_types::NodeId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::{Api, InFlight, KeptForStores, MasterService};
use crate::config::MasterArgs;
use crate::data_disk::{DataDisk, Holdings};
use crate::formation::{ClusterView, Formation, FormationService, Formed};
use crate::http::{self, Names};
use crate::leader::{
    Coordinator, CoordinatorConfig, Services, ServicesConfig, SpareDescriptors, duties, keep_members,
    keep_room, leave_to_a_better_disk, leave_to_a_master_with_descriptors, tell_of_members,
};
use crate::master::{CLOSE, Environment, Listeners, Log, StartError};
use crate::metrics::MasterMetrics;
use crate::mooncake;
use crate::overruled;
use crate::ports;

/// Limit on the size of a request: 4,096 keys of 4 KiB and their framing.
const MAX_REQUEST_BYTES: usize = 24 << 20;

/// Limit on calls under way on one connection.
const MAX_STREAMS: u32 = 4096;

/// Longest life of an HTTP connection, whose request is answered within seconds: a peer that does not read holds memory of answers.
const HTTP_LIFETIME: Duration = Duration::from_secs(30);

/// Silence on a connection after which the peer is asked whether it lives. Ten thousand clients that watch are ten
/// thousand connections; asking each every second would cost a tenth of a core more than every five seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Time without a leader after which this master logs a warning: no election takes that long.
const LEADERLESS: Duration = Duration::from_secs(3);

/// State that a master's background tasks share from its start to its end.
pub(crate) struct Life {
    pub(crate) node: NodeId,
    pub(crate) config: Loaded<MasterArgs>,
    pub(crate) environment: Environment,
    pub(crate) api: Arc<Api>,
    pub(crate) metrics: Arc<MasterMetrics>,
    pub(crate) formation: Arc<Formation>,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Life {
    pub(crate) async fn run(self, listeners: Listeners, log: Log) -> Result<(), StartError> {
        let service =
            RaftService::new(self.node, self.formation.service(), self.metrics.raft_rpc_times.clone());
        self.serve(listeners, service.clone());
        let Some(formed) = self.form().await? else { return Ok(()) };
        let cluster = formed.cluster();

        let log = log.store;
        let newcomer = matches!(formed, Formed::Newcomer(_));
        let (args, environment) = (&self.config.args, &self.environment);
        let disk = DataDisk::new(&args.data_dir, args.disk_reserve.0, environment.free_space.clone());
        let spare = Arc::new(SpareDescriptors::default());
        let raft = self.start_raft(formed, log.clone(), disk.clone(), spare.clone(), service).await?;
        let services = Arc::new(Services::new(ServicesConfig {
            coordinator: CoordinatorConfig {
                cluster,
                newcomer,
                synced: args.log_sync == LogSync::Fdatasync,
                raft,
                clock: environment.clock.clone(),
                disk: disk.clone(),
                metrics: self.metrics.clone(),
                unwritten: Box::new({
                    let log = log.clone();
                    move || log.unwritten_bytes()
                }),
                stop: self.stop.clone(),
            },
            seed: args.settings(),
            formation: self.formation.clone(),
        }));
        let coordinator = services.coordinator.clone();
        self.watch_disk(disk, coordinator.clone(), log.clone());
        self.tasks.spawn(overruled::warn(self.config.clone(), coordinator.clone(), self.stop.clone()));
        self.api.open(services.clone());
        self.tasks.spawn(duties::watch_stores(services.clone()));
        self.tasks.spawn(duties::keep_the_log_going(services.clone()));
        self.tasks.spawn(keep_room(coordinator.clone()));
        self.tasks.spawn(keep_members(services.members.clone()));
        self.tasks.spawn(tell_of_members(services.clone()));
        self.tasks.spawn(leave_to_a_better_disk(coordinator.clone()));
        self.tasks.spawn(leave_to_a_master_with_descriptors(coordinator.clone(), spare));
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

    async fn start_raft(
        &self,
        formed: Formed,
        log: LogStore,
        disk: Arc<DataDisk>,
        spare: Arc<SpareDescriptors>,
        service: RaftService,
    ) -> Result<RaftNode, StartError> {
        let args = &self.config.args;
        let appended = log.clone();
        let config = RaftNodeConfig {
            node: self.node,
            cluster: formed.cluster(),
            timing: args.raft_timing,
            network: self.environment.network.clone(),
            clock: self.environment.clock.clone(),
            pace: log.pace(),
            vote_timing: log.vote_timing(),
            log,
            bytes_since: Arc::new(move |covered| appended.bytes_since(covered.unwrap_or(0))),
            nearly_full: Arc::new(move || disk.shortage().is_some()),
            has_descriptors: Arc::new(move || spare.are_there()),
            snapshot_dir: args.data_dir.join("snapshots"),
            limits: SnapshotLimits {
                log_bytes: args.snapshot_log_bytes.0,
                entries: Some(args.snapshot_log_entries).filter(|entries| *entries > 0),
                keep_entries: args.keep_log_entries,
                ..SnapshotLimits::default()
            },
            service,
            apply_seconds: self.metrics.apply_seconds.clone(),
            election_seconds: self.metrics.election_seconds.clone(),
        };
        // openraft spawns its tasks on the runtime that starts it.
        let raft = self.environment.raft.spawn(RaftNode::start(config)).await;
        let raft = raft.map_err(|error| StartError::Failed(error.to_string()))??;
        if let Formed::Founder { members, .. } = formed {
            raft.initialize(members).await.map_err(|error| StartError::Initialize(error.to_string()))?;
            self.formation.service().record_formed().await?;
        }
        Ok(raft)
    }

    /// Watches the disk. Calls may be let in before the first look is done: a leader that has just started need not
    /// know the result yet.
    fn watch_disk(&self, disk: Arc<DataDisk>, coordinator: Arc<Coordinator>, log: LogStore) {
        let holdings =
            move || Holdings { snapshot: coordinator.raft.snapshot_bytes(), log: log.stats().unpurged_bytes };
        self.tasks.spawn(disk.keep_watch(holdings, self.metrics.clone(), self.stop.clone()));
    }

    /// Runs beside Raft until the end. Returns an error unless the end was asked for.
    async fn watch_over(&self, coordinator: &Coordinator, log: &LogStore) -> Result<(), StartError> {
        let view = || {
            let mut members = coordinator.raft.members();
            if members.is_empty() {
                // Raft reports the members only once its core runs; the index has them from the start.
                members = coordinator.index.read(|applied| {
                    let nodes = applied.membership.membership().nodes();
                    nodes.map(|(node, addresses)| (*node, addresses.clone())).collect()
                });
            }
            ClusterView { members, led: coordinator.raft.leadership().borrow().leader.is_some() }
        };
        tokio::select! {
            // Raft stops if the log fails, and only the log knows why. So the log is asked first.
            biased;
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

    /// Logs each new leader, and warns when there is none for [`LEADERLESS`].
    async fn report_leaders(&self, coordinator: &Coordinator) {
        let mut leadership = coordinator.raft.leadership();
        let mut said = None;
        let mut warned = false;
        loop {
            let Leadership { term, leader, .. } = leadership.borrow_and_update().clone();
            match leader {
                // The same leader at another address, or heard again, is no change of leader.
                Some((leader, master)) if warned || said != Some((term, leader)) => {
                    self.metrics.leader_changed();
                    tracing::info!(term, %leader, address = master.client, "leader");
                    (said, warned) = (Some((term, leader)), false);
                }
                Some(_) => {}
                None if warned => {}
                None => match tokio::time::timeout(LEADERLESS, leadership.changed()).await {
                    Ok(_) => continue,
                    Err(_) => {
                        tracing::warn!(term, "waiting: {}", coordinator.look(None, |look| look.waiting_for));
                        warned = true;
                    }
                },
            }
            if leadership.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Waits for the cluster; returns `None` if the master is told to stop first.
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
        let [calls, consensus] = self.api.shedder.probes();
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(calls));
        self.environment.raft.spawn(self.stop.clone().run_until_cancelled_owned(consensus));
        let Listeners { client, raft: raft_listener, http, metadata, .. } = listeners;
        let http_ports = 1 + usize::from(metadata.is_some());
        let (client, raft_listener) =
            (client.gated(ports::for_clients(http_ports)), raft_listener.gated(ports::for_masters()));
        let stop = self.stop.clone();
        self.environment.raft.spawn(async move {
            if let Err(error) = raft.serve(raft_listener, stop.cancelled_owned()).await {
                tracing::error!("the Raft port is closed: {error}");
            }
        });
        let (stop, api) = (self.stop.clone(), MasterService(self.api.clone()));
        let in_flight = InFlight::new(self.metrics.requests_refused.clone());
        self.tasks.spawn(async move {
            let served = tonic::transport::Server::builder()
                .tcp_nodelay(true)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
                .max_concurrent_streams(MAX_STREAMS)
                // Callers that give up on calls not looked at yet must not end the connection that they share with
                // others. With the default of 20 such calls, they did so on an overloaded master.
                .http2_max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
                .http2_keepalive_interval(Some(KEEP_ALIVE))
                .http2_keepalive_timeout(Some(Duration::from_secs(2)))
                .layer(KeptForStores)
                .layer(in_flight)
                .add_service(MasterServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES))
                .serve_with_incoming_shutdown(client.incoming, stop.cancelled_owned())
                .await;
            if let Err(error) = served {
                tracing::error!("the client port is closed: {error}");
            }
        });
        let args = &self.config.args;
        let names = if args.mooncake_metrics { Names::OwnAndMooncake } else { Names::Own };
        self.serve_http(http, http::routes(self.api.clone(), self.metrics.clone(), names), "HTTP");
        let every = args.metrics_log.0;
        if !every.is_zero() {
            self.tasks.spawn(mooncake::log_summaries(self.api.clone(), every, self.stop.clone()));
        }
        if let Some(listener) = metadata {
            self.serve_http(listener, mooncake::metadata_port(self.api.clone()), "metadata");
        }
    }

    fn serve_http(&self, listener: Listener, routes: Router, name: &'static str) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let served = mc_process::http::serve(listener, routes, HTTP_LIFETIME, stop.cancelled_owned());
            if let Err(error) = served.await {
                tracing::error!("the {name} port is closed: {error}");
            }
        });
    }
}

/// Records that this master holds Raft state once there is a leader. At the next start, an empty log is then known to
/// be a lost one.
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
        metrics.show(http::sample(&api));
        metrics.upkeep();
    }
}
