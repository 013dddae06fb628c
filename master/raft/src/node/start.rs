use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::future::BoxFuture;
use mc_index::{Settings, State};
use mc_log::{LogId, Raft, StoredMembership, TypeConfig, VoteTiming};
use mc_types::{Clock, ClusterId, NodeId};
use openraft::Config;
use openraft::storage::{LogState, RaftLogReader, RaftLogStorage};
use tokio::sync::watch;
use tokio::time::Instant;

use super::config::{RaftNodeConfig, RaftStartError};
use super::election::Elections;
use super::leadership::{Leadership, LeadershipWatch};
use super::openraft_config::raft_config;
use super::{RaftNode, tasks, view};
use crate::apply::index::{Applied, SharedIndex};
use crate::apply::state_machine::StateMachine;
use crate::apply::take_snapshots::take_snapshots;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::LeaderContact;
use crate::lease::restart_wait::RestartWait;
use crate::lease::writable;
use crate::members::address_book::AddressBook;
use crate::members::removal::RemovalNotice;
use crate::network::client::peer_clients::PeerClients;
use crate::network::server::served_node::{HasDescriptors, NearlyFull, ServedNode};
use crate::network::silent_peers::SilentPeers;
use crate::network::wire::envelope::LocalNode;
use crate::snapshots::{Disk, FileSystem, SnapshotStore};
use crate::timing::{RaftTiming, whole_ms};

impl RaftNode {
    /// Loads the newest good snapshot, applies what the log holds beyond it, and takes part in the cluster.
    ///
    /// The future is boxed, so that openraft is compiled for the log here, and not in each crate that starts a node.
    pub fn start(config: RaftNodeConfig) -> BoxFuture<'static, Result<Self, RaftStartError>> {
        Box::pin(Self::start_on(Arc::new(FileSystem), config))
    }

    /// Like [`Self::start`], with the snapshots on another disk, and another log.
    pub(crate) async fn start_on(
        disk: Arc<dyn Disk>,
        mut config: RaftNodeConfig<impl RaftLogStorage<TypeConfig>>,
    ) -> Result<Self, RaftStartError> {
        let (node, cluster, timing) = (config.node, config.cluster, config.timing);
        let raft_config = raft_config(timing, &config.limits)?;
        let Restored { snapshots, index, log_at_start } =
            restore(disk, config.snapshot_dir, cluster, &mut config.log).await?;
        let restart_wait = restart_wait(&mut config.log, &config.vote_timing, timing, config.clock).await?;

        let local_node = LocalNode { cluster, node, election_max_ms: whole_ms(timing.election_max) };
        let (addresses, leader_contact) = (AddressBook::default(), LeaderContact::default());
        let (acks, removal) = (Arc::<Acks>::default(), Arc::<RemovalNotice>::default());
        let network = config.network;
        let peers = PeerClients::new(
            local_node,
            network,
            addresses.clone(),
            acks.clone(),
            removal.clone(),
            leader_contact.clone(),
        );
        let silent_peers = peers.silent_peers();
        let machine = StateMachine::new(index.clone(), snapshots.clone(), config.apply_seconds, config.audit);
        let raft = start_raft(node, raft_config, peers, config.log, machine, &index).await?;

        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (stopped_tx, stopped) = watch::channel(None);
        let (blocked_tx, blocked) = watch::channel(None);
        let leaders = LeadershipWatch {
            raft: raft.clone(),
            me: node,
            leader_contact: leader_contact.clone(),
            acks: acks.clone(),
            removal,
            election_max: timing.election_max,
            addresses: addresses.clone(),
        };
        let vote_timing = config.vote_timing;
        let tasks = [
            tasks::spawn(view::tell_when_stopped(raft.metrics(), stopped_tx)),
            tasks::spawn(writable::watch(raft.metrics(), node, acks.clone(), timing, blocked_tx)),
            tasks::send_heartbeats(raft.clone(), timing.heartbeat),
            tasks::stand_when_over(raft.clone(), restart_wait.clone(), move || {
                vote_timing.set(timing.election_max);
            }),
            tasks::spawn(take_snapshots(raft.clone(), config.bytes_since, config.limits, snapshots.clone())),
            tasks::send_lost_entries_again(raft.clone(), acks.clone()),
            tasks::warn_of_slow_votes(leadership.clone(), config.pace.clone(), timing),
            tasks::spawn(leaders.run(Elections::new(config.election_seconds), leadership_tx)),
        ];
        let this = Self {
            node,
            metrics: raft.metrics(),
            raft,
            index,
            snapshots,
            leadership,
            leader_contact,
            addresses,
            acks,
            pace: config.pace,
            leaving: Arc::default(),
            changing: tokio::sync::Mutex::default(),
            timing,
            revocation: Arc::default(),
            blocked,
            stopped,
            _tasks: tasks,
        };
        config.service.join(cluster);
        config.service.attach(this.served(
            restart_wait,
            log_at_start,
            silent_peers,
            config.nearly_full,
            config.has_descriptors,
        ));
        Ok(this)
    }

    /// Returns the parts of this node that the Raft port serves.
    fn served(
        &self,
        restart_wait: RestartWait,
        log_at_start: Option<LogId>,
        silent_peers: Arc<SilentPeers>,
        nearly_full: NearlyFull,
        has_descriptors: HasDescriptors,
    ) -> ServedNode {
        ServedNode {
            raft: self.raft.clone(),
            restart_wait,
            snapshots: self.snapshots.clone(),
            log_at_start,
            election_max_ms: whole_ms(self.timing.election_max),
            timing_differs: AtomicBool::new(false),
            leader_contact: self.leader_contact.clone(),
            pace: self.pace.clone(),
            nearly_full,
            has_descriptors,
            leaving: self.leaving.clone(),
            silent_peers,
            acks: self.acks.clone(),
            revocation: self.revocation.clone(),
        }
    }
}

/// State of a node as it was read from disk, from which it starts.
struct Restored {
    snapshots: SnapshotStore,
    /// The index in the newest good snapshot, to which Raft applies the log.
    index: SharedIndex,
    /// The last entry in the log on disk.
    log_at_start: Option<LogId>,
}

/// Reads the newest good snapshot, and checks the log against it.
async fn restore<L>(
    disk: Arc<dyn Disk>,
    snapshot_dir: PathBuf,
    cluster: ClusterId,
    log: &mut L,
) -> Result<Restored, RaftStartError>
where
    L: RaftLogStorage<TypeConfig>,
{
    let begun = Instant::now();
    let opened = mc_durable::blocking(move || SnapshotStore::open_on(disk, &snapshot_dir, cluster));
    let (snapshots, mut recovered) =
        opened.await.map_err(|err| RaftStartError::Log(io::Error::other(err)))??;
    let log_state = log.get_log_state().await.map_err(RaftStartError::Log)?;
    recovered.check_log(log_state.last_purged_log_id.as_ref())?;
    for (path, defect) in &recovered.bad {
        tracing::warn!("snapshot {} is bad and is skipped: {defect}", path.display());
    }
    let covered = recovered.snapshot.as_ref().and_then(|(meta, _)| meta.last_log_id);
    let log_at_start = drop_conflicting_log(log, log_state, covered).await?;
    let applied = match recovered.snapshot {
        Some((meta, state)) => {
            Applied { state, last_applied: meta.last_log_id, membership: meta.last_membership }
        }
        None => Applied {
            // The cluster's own settings are in its log: the first leader writes them.
            state: State::new(Settings::default()),
            last_applied: None,
            membership: StoredMembership::default(),
        },
    };
    if let Some(last) = applied.last_applied {
        let mib = snapshots.current_bytes() >> 20;
        tracing::info!(last = last.index, mib, took = ?begun.elapsed(), "a snapshot of the index has been read");
    }
    Ok(Restored { snapshots, index: SharedIndex::new(applied), log_at_start })
}

/// Drops the log if the snapshot up to `covered` overrules it. Returns the last entry that the log has then.
async fn drop_conflicting_log<L>(
    log: &mut L,
    state: LogState<TypeConfig>,
    covered: Option<LogId>,
) -> Result<Option<LogId>, RaftStartError>
where
    L: RaftLogStorage<TypeConfig>,
{
    let (Some(last), Some(covered)) = (state.last_log_id, covered) else { return Ok(state.last_log_id) };
    if !conflicts_with_snapshot(last, covered) {
        return Ok(state.last_log_id);
    }
    tracing::warn!(
        "the log ends at {last}, which the snapshot up to {covered} overrules: this master died while it installed \
         the snapshot; the log is dropped, the snapshot replaces it"
    );
    // Entries up to the committed position are removed by a purge, which Raft begins with. If some of them were cut off
    // here and the process crashed, the committed position would lack its entry, and the log would be refused.
    let committed = log.read_committed().await.map_err(RaftStartError::Log)?;
    let kept = committed.max(state.last_purged_log_id);
    log.truncate_after(kept).await.map_err(RaftStartError::Log)?;
    Ok(kept)
}

/// Whether the log, which ends at `last`, ends with entries of older terms than the snapshot up to `covered` has at that
/// index. Raft removes such entries before it installs a snapshot. But the snapshot can be on stable storage before the
/// removal is, and openraft takes such a pair for a corrupted store. None of these entries may be applied.
#[must_use]
pub fn conflicts_with_snapshot(last: LogId, covered: LogId) -> bool {
    last < covered && last.index >= covered.index
}

/// Returns how long this node keeps out of elections, and records it for the next run.
async fn restart_wait<L>(
    log: &mut L,
    vote_timing: &VoteTiming,
    timing: RaftTiming,
    clock: Clock,
) -> Result<RestartWait, RaftStartError>
where
    L: RaftLogStorage<TypeConfig>,
{
    let vote = log.get_log_reader().await.read_vote().await.map_err(RaftStartError::Log)?;
    let recorded = vote_timing.election_max();
    // The longer timeout is kept beside each vote until the wait is over. If this run ends before that, the next one
    // still has to keep the promises of earlier runs.
    let waited = recorded.max(timing.election_max);
    vote_timing.set(waited);
    Ok(match vote {
        Some(vote) => {
            if waited > recorded {
                // Written before this run can promise a longer time than the disk has.
                log.save_vote(&vote).await.map_err(RaftStartError::Log)?;
            }
            let spread = timing.election_max.saturating_sub(timing.election_min);
            let random_part = rand::random_range(Duration::ZERO..=spread);
            RestartWait::after_restart(clock, waited, random_part)
        }
        None => RestartWait::none(clock),
    })
}

/// Starts openraft, which first applies the log up to the committed position, and logs how far it is meanwhile.
async fn start_raft<L>(
    node: NodeId,
    config: Config,
    peers: PeerClients,
    mut log: L,
    machine: StateMachine,
    index: &SharedIndex,
) -> Result<Raft<StateMachine>, RaftStartError>
where
    L: RaftLogStorage<TypeConfig>,
{
    let committed = log.read_committed().await.map_err(RaftStartError::Log)?;
    let _progress = tasks::say_what_is_applied(index.clone(), committed);
    Ok(Raft::new(node, Arc::new(config), peers, log, machine).await?)
}
