use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mc_index::{Settings, State};
use mc_log::{LogId, Raft, StoredMembership, TypeConfig, VoteTiming};
use mc_types::{Clock, ClusterId, NodeId};
use openraft::Config;
use openraft::storage::{LogState, RaftLogReader, RaftLogStorage};
use tokio::sync::watch;
use tokio::time::Instant;

use super::config::{RaftNodeConfig, StartError};
use super::election::Elections;
use super::leadership::{Leadership, LeadershipWatch};
use super::openraft_config::raft_config;
use super::{RaftNode, tasks, view};
use crate::apply::index::{Applied, SharedIndex};
use crate::apply::machine::Machine;
use crate::apply::take_snapshots::take_snapshots;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::Heard;
use crate::lease::restart_wait::VoteGuard;
use crate::lease::writable;
use crate::members::address_book::AddressBook;
use crate::members::removal::Removal;
use crate::network::client::peer_clients::Peers;
use crate::network::server::served_node::{Attached, HasDescriptors, NearlyFull};
use crate::network::silent_peers::Hush;
use crate::network::wire::envelope::Identity;
use crate::snapshots::{Disk, FileSystem, SnapshotStore};
use crate::timing::{RaftTiming, whole_ms};

impl RaftNode {
    /// Loads the newest good snapshot, applies what the log holds beyond it, and takes part in the cluster.
    ///
    /// # Errors
    /// [`StartError`] when the data directory cannot be used.
    pub async fn start<L>(config: RaftNodeConfig<L>) -> Result<Self, StartError>
    where
        L: RaftLogStorage<TypeConfig>,
    {
        Self::start_on(Arc::new(FileSystem), config).await
    }

    /// Like [`Self::start`], with the snapshots on another disk.
    pub(crate) async fn start_on<L>(
        disk: Arc<dyn Disk>,
        mut config: RaftNodeConfig<L>,
    ) -> Result<Self, StartError>
    where
        L: RaftLogStorage<TypeConfig>,
    {
        let (node, cluster, timing) = (config.node, config.cluster, config.timing);
        let raft_config = raft_config(timing, &config.limits)?;
        let Restored { snapshots, index, log_at_start } =
            restore(disk, config.snapshot_dir, cluster, &mut config.log).await?;
        let guard = vote_guard(&mut config.log, &config.vote_timing, timing, config.clock).await?;

        let election_max_ms = whole_ms(timing.election_max);
        let identity = Identity { cluster, node, election_max_ms };
        let (addresses, heard) = (AddressBook::default(), Heard::default());
        let (acks, removal) = (Arc::<Acks>::default(), Arc::<Removal>::default());
        let network = config.network;
        let peers =
            Peers::new(identity, network, addresses.clone(), acks.clone(), removal.clone(), heard.clone());
        let hush = peers.hush();
        let machine = Machine::new(index.clone(), snapshots.clone(), config.apply_seconds);
        let raft = start_raft(node, raft_config, peers, config.log, machine, &index).await?;

        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (stopped_tx, stopped) = watch::channel(None);
        let (blocked_tx, blocked) = watch::channel(None);
        let leaders = LeadershipWatch {
            raft: raft.clone(),
            me: node,
            heard: heard.clone(),
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
            tasks::stand_when_over(raft.clone(), guard.clone(), move || vote_timing.set(timing.election_max)),
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
            heard,
            addresses,
            acks,
            pace: config.pace,
            leaving: Arc::default(),
            changing: tokio::sync::Mutex::default(),
            timing,
            ballots: Arc::default(),
            blocked,
            stopped,
            _tasks: tasks,
        };
        config.service.join(cluster);
        config.service.attach(this.served(
            guard,
            log_at_start,
            hush,
            config.nearly_full,
            config.has_descriptors,
        ));
        Ok(this)
    }

    /// Returns the parts of this node that the Raft port serves.
    fn served(
        &self,
        guard: VoteGuard,
        log_at_start: Option<LogId>,
        hush: Arc<Hush>,
        nearly_full: NearlyFull,
        has_descriptors: HasDescriptors,
    ) -> Attached {
        Attached {
            raft: self.raft.clone(),
            guard,
            snapshots: self.snapshots.clone(),
            log_at_start,
            election_max_ms: whole_ms(self.timing.election_max),
            timing_differs: AtomicBool::new(false),
            heard: self.heard.clone(),
            pace: self.pace.clone(),
            nearly_full,
            has_descriptors,
            leaving: self.leaving.clone(),
            hush,
            acks: self.acks.clone(),
            ballots: self.ballots.clone(),
        }
    }
}

/// What a node starts from.
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
) -> Result<Restored, StartError>
where
    L: RaftLogStorage<TypeConfig>,
{
    let begun = Instant::now();
    let opened = mc_durable::blocking(move || SnapshotStore::open_on(disk, &snapshot_dir, cluster));
    let (snapshots, mut recovered) = opened.await.map_err(|err| StartError::Log(io::Error::other(err)))??;
    let log_state = log.get_log_state().await.map_err(StartError::Log)?;
    recovered.check_log(log_state.last_purged_log_id.as_ref())?;
    for (path, defect) in &recovered.bad {
        tracing::warn!("snapshot {} is bad and is skipped: {defect}", path.display());
    }
    let covered = recovered.snapshot.as_ref().and_then(|(meta, _)| meta.last_log_id);
    let log_at_start = drop_overruled_log(log, log_state, covered).await?;
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
async fn drop_overruled_log<L>(
    log: &mut L,
    state: LogState<TypeConfig>,
    covered: Option<LogId>,
) -> Result<Option<LogId>, StartError>
where
    L: RaftLogStorage<TypeConfig>,
{
    let (Some(last), Some(covered)) = (state.last_log_id, covered) else { return Ok(state.last_log_id) };
    if !is_overruled(last, covered) {
        return Ok(state.last_log_id);
    }
    tracing::warn!(
        "the log ends at {last}, which the snapshot up to {covered} overrules: this master died while it installed \
         the snapshot; the log is dropped, the snapshot replaces it"
    );
    // Entries up to the committed position are removed by a purge, which Raft begins with. If some of them were cut off
    // here and the process crashed, the committed position would lack its entry, and the log would be refused.
    let committed = log.read_committed().await.map_err(StartError::Log)?;
    let kept = committed.max(state.last_purged_log_id);
    log.truncate_after(kept).await.map_err(StartError::Log)?;
    Ok(kept)
}

/// Whether the log, which ends at `last`, ends with entries of older terms than the snapshot up to `covered` has at that
/// index. Raft removes such entries before it installs a snapshot. But the snapshot can be on stable storage before the
/// removal is, and openraft takes such a pair for a corrupted store. None of these entries may be applied.
#[must_use]
pub fn is_overruled(last: LogId, covered: LogId) -> bool {
    last < covered && last.index >= covered.index
}

/// Returns how long this node keeps out of elections, and records it for the next run.
async fn vote_guard<L>(
    log: &mut L,
    vote_timing: &VoteTiming,
    timing: RaftTiming,
    clock: Clock,
) -> Result<VoteGuard, StartError>
where
    L: RaftLogStorage<TypeConfig>,
{
    let vote = log.get_log_reader().await.read_vote().await.map_err(StartError::Log)?;
    let recorded = vote_timing.election_max();
    // The longer timeout is kept beside each vote until the guard is over. If this run ends before that, the next one
    // still has to keep the promises of earlier runs.
    let guarded = recorded.max(timing.election_max);
    vote_timing.set(guarded);
    Ok(match vote {
        Some(vote) => {
            if guarded > recorded {
                // Written before this run can promise a longer time than the disk has.
                log.save_vote(&vote).await.map_err(StartError::Log)?;
            }
            let spread = timing.election_max.saturating_sub(timing.election_min);
            let random_part = rand::random_range(Duration::ZERO..=spread);
            VoteGuard::armed(clock, guarded, random_part)
        }
        None => VoteGuard::open(clock),
    })
}

/// Starts openraft, which first applies the log up to the committed position, and logs how far it is meanwhile.
async fn start_raft<L>(
    node: NodeId,
    config: Config,
    peers: Peers,
    mut log: L,
    machine: Machine,
    index: &SharedIndex,
) -> Result<Raft<Machine>, StartError>
where
    L: RaftLogStorage<TypeConfig>,
{
    let committed = log.read_committed().await.map_err(StartError::Log)?;
    let _progress = tasks::say_what_is_applied(index.clone(), committed);
    Ok(Raft::new(node, Arc::new(config), peers, log, machine).await?)
}
