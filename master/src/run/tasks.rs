//! The tasks that a master runs from its start to its end.

use std::sync::Arc;
use std::time::Duration;

use mc_index::Security;
use mc_log::{LogStore, LogSync};
use mc_process::config::Loaded;
use mc_raft::{AuditSink, RaftNode, RaftNodeConfig, RaftService, SnapshotLimits};
use mc_types::NodeId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::environment::Environment;
use super::error::StartError;
use super::ignored_flags;
use super::listeners::Listeners;
use super::log::Log;
use crate::access::ReplicatedRecords;
use crate::api::Api;
use crate::config::MasterArgs;
use crate::data_dir::{DataDisk, Holdings};
use crate::formation::{ClusterView, Formation, FormationService, Formed};
use crate::http;
use crate::leader::{
    CoordinatorConfig, Services, ServicesConfig, SpareDescriptors, duties, keep_members, keep_room,
    leave_to_a_better_disk, leave_to_a_master_with_descriptors, tell_of_members,
};
use crate::metrics::MasterMetrics;

/// Longest wait for Raft and for the log to end: a disk that hangs must not keep the process.
pub(super) const CLOSE: Duration = Duration::from_secs(1);

/// State that a master's background tasks share from its start to its end.
pub(crate) struct Tasks {
    pub(crate) node: NodeId,
    pub(crate) config: Loaded<MasterArgs>,
    pub(crate) environment: Environment,
    pub(crate) api: Arc<Api>,
    pub(crate) metrics: Arc<MasterMetrics>,
    pub(crate) formation: Arc<Formation>,
    pub(crate) stop: CancellationToken,
    pub(crate) tracker: TaskTracker,
}

impl Tasks {
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
        self.follow_access_settings(raft.index().security());
        let services = Arc::new(Services::new(ServicesConfig {
            coordinator: CoordinatorConfig {
                cluster,
                newcomer,
                synced: args.log_sync == LogSync::Fdatasync,
                raft: Arc::new(raft),
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
            tls: self.environment.network.tls().cloned(),
        }));
        self.watch_disk(disk, services.raft.clone(), log.clone());
        self.tracker.spawn(ignored_flags::warn(
            self.config.clone(),
            services.coordinator.clone(),
            self.stop.clone(),
        ));
        self.api.open(services.clone());
        self.tracker.spawn(duties::watch_stores(services.clone()));
        self.tracker.spawn(duties::keep_the_log_going(services.clone()));
        self.tracker.spawn(keep_room(services.objects.clone()));
        self.tracker.spawn(keep_members(services.members.clone()));
        self.tracker.spawn(tell_of_members(services.clone()));
        self.tracker.spawn(leave_to_a_better_disk(services.members.clone()));
        self.tracker.spawn(leave_to_a_master_with_descriptors(services.members.clone(), spare));
        self.tracker.spawn(note_formed(self.formation.service(), services.raft.clone(), self.stop.clone()));
        self.tracker.spawn(keep_metrics(self.api.clone(), self.metrics.clone(), self.stop.clone()));

        let outcome = self.watch_over(&services, &log).await;
        let closed = async {
            services.raft.shutdown().await;
            log.close().await;
        };
        if tokio::time::timeout(CLOSE, closed).await.is_err() {
            tracing::warn!("the log was not closed within {CLOSE:?}; what was acknowledged is on disk");
        }
        outcome
    }

    /// Judges callers by the replicated records, and adopts the cluster's level of TLS unless a flag sets another one.
    fn follow_access_settings(&self, mut security: watch::Receiver<Security>) {
        let Some(tls) = self.environment.network.tls().cloned() else { return };
        self.api.guard.consult(ReplicatedRecords(security.clone()));
        if self.config.args.tls.fixed_level().is_some() {
            return;
        }
        let follow = async move {
            loop {
                // A cluster that has no level yet leaves this master at the one that it began with.
                let level = security.borrow_and_update().level();
                if let Some(level) = level {
                    tls.set_level(level);
                }
                if security.changed().await.is_err() {
                    return;
                }
            }
        };
        self.tracker.spawn(self.stop.clone().run_until_cancelled_owned(follow));
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
            audit: AuditSink::new({
                let audit = self.api.audit.clone();
                move |entry| audit.changed(entry)
            }),
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
    fn watch_disk(&self, disk: Arc<DataDisk>, raft: Arc<RaftNode>, log: LogStore) {
        let holdings = move || Holdings { snapshot: raft.snapshot_bytes(), log: log.stats().unpurged_bytes };
        self.tracker.spawn(disk.keep_watch(holdings, self.metrics.clone(), self.stop.clone()));
    }

    /// Runs beside Raft until the end. Returns an error unless the end was asked for.
    async fn watch_over(&self, services: &Services, log: &LogStore) -> Result<(), StartError> {
        let view = || {
            let mut members = services.raft.members();
            if members.is_empty() {
                // Raft reports the members only once its core runs; the index has them from the start.
                members = services.coordinator.read(|applied| {
                    let nodes = applied.membership.membership().nodes();
                    nodes.map(|(node, addresses)| (*node, addresses.clone())).collect()
                });
            }
            ClusterView { members, led: services.raft.leadership().borrow().leader.is_some() }
        };
        tokio::select! {
            // Check the log first: Raft stops when the log fails, and only the log knows the reason.
            biased;
            () = self.stop.cancelled() => Ok(()),
            failure = log.failed() => Err(StartError::Failed(failure.to_string())),
            failure = services.raft.stopped() => {
                if self.stop.is_cancelled() { Ok(()) } else { Err(StartError::Failed(failure)) }
            }
            never = self.formation.follow(services.raft.addresses(), view) => match never {
                Err(error) => Err(error.into()),
            },
            () = self.report_leaders(services) => Ok(()),
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
}

/// Records that this master holds Raft state once there is a leader. At the next start, an empty log is then known to
/// be a lost one.
async fn note_formed(formation: Arc<FormationService>, raft: Arc<RaftNode>, stop: CancellationToken) {
    let mut leadership = raft.leadership();
    let noted = async {
        if leadership.wait_for(|now| now.leader.is_some()).await.is_err() {
            return;
        }
        while let Err(error) = formation.record_formed().await {
            tracing::warn!(
                "cannot record in the identity file that this master has data, trying again: {error}"
            );
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
