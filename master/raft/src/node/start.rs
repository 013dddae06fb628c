use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mc_index::{Settings, State};
use mc_log::{LogId, Raft, StoredMembership, TypeConfig};
use openraft::storage::{RaftLogReader, RaftLogStorage};
use tokio::sync::watch;
use tokio::time::Instant;

use super::RaftNode;
use super::config::{RaftNodeConfig, StartError};
use super::election::Elections;
use super::leadership::{self, Leadership, Signs};
use super::openraft_config::raft_config;
use super::{tasks, view};
use crate::apply::index::{Applied, SharedIndex};
use crate::apply::machine::Machine;
use crate::apply::take_snapshots::take_snapshots;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::Heard;
use crate::lease::restart_wait::VoteGuard;
use crate::lease::revocation::Ballots;
use crate::lease::writable::{self};
use crate::members::address_book::AddressBook;
use crate::members::removal::Removal;
use crate::network::client::peer_clients::Peers;
use crate::network::server::served_node::Attached;
use crate::network::wire::envelope::Identity;
use crate::snapshots::{Disk, FileSystem, SnapshotStore};
use crate::timing::whole_ms;

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
        config: RaftNodeConfig<L>,
    ) -> Result<Self, StartError>
    where
        L: RaftLogStorage<TypeConfig>,
    {
        let RaftNodeConfig {
            node,
            cluster,
            timing,
            network,
            clock,
            mut log,
            vote_timing,
            bytes_since,
            pace,
            nearly_full,
            has_descriptors,
            snapshot_dir,
            limits,
            service,
            apply_seconds,
            election_seconds,
        } = config;
        let raft_config = Arc::new(raft_config(timing, &limits)?);

        let begun = Instant::now();
        let opened = mc_durable::blocking(move || SnapshotStore::open_on(disk, &snapshot_dir, cluster));
        let (snapshots, mut recovered) =
            opened.await.map_err(|err| StartError::Log(io::Error::other(err)))??;
        let log_state = log.get_log_state().await.map_err(StartError::Log)?;
        recovered.check_log(log_state.last_purged_log_id.as_ref())?;
        for (path, defect) in &recovered.bad {
            tracing::warn!("snapshot {} is bad and is skipped: {defect}", path.display());
        }
        let covered = recovered.snapshot.as_ref().and_then(|(meta, _)| meta.last_log_id);
        let mut log_at_start = log_state.last_log_id;
        if let (Some(last), Some(covered)) = (log_state.last_log_id, covered)
            && is_overruled(last, covered)
        {
            tracing::warn!(
                "the log ends at {last}, which the snapshot up to {covered} overrules: this master died while it \
                 installed the snapshot; the log is dropped, the snapshot replaces it"
            );
            // Entries up to the committed position are removed by a purge, which Raft begins with. If some of them
            // were cut off here and the process crashed, the committed position would lack its entry, and the log
            // would be refused.
            let committed = log.read_committed().await.map_err(StartError::Log)?;
            let kept = committed.max(log_state.last_purged_log_id);
            log.truncate_after(kept).await.map_err(StartError::Log)?;
            log_at_start = kept;
        }
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
        let index = SharedIndex::new(applied);

        let vote = log.get_log_reader().await.read_vote().await.map_err(StartError::Log)?;
        let recorded = vote_timing.election_max();
        // The longer timeout is kept beside each vote until the guard is over. If this run ends before that, the next
        // one still has to keep the promises of earlier runs.
        let guarded = recorded.max(timing.election_max);
        vote_timing.set(guarded);
        let guard = match vote {
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
        };

        let identity = Identity { cluster, node, election_max_ms: whole_ms(timing.election_max) };
        let addresses = AddressBook::default();
        let acks = Arc::new(Acks::default());
        let removal = Arc::new(Removal::default());
        let heard = Heard::default();
        let peers =
            Peers::new(identity, network, addresses.clone(), acks.clone(), removal.clone(), heard.clone());
        let hush = peers.hush();
        let machine = Machine::new(index.clone(), snapshots.clone(), apply_seconds);
        let committed = log.read_committed().await.map_err(StartError::Log)?;
        let saying = tasks::say_what_is_applied(index.clone(), committed);
        let raft = Raft::new(node, raft_config, peers, log, machine).await?;
        drop(saying);
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (stopped_tx, stopped) = watch::channel(None);
        let (blocked_tx, blocked) = watch::channel(None);
        let ballots = Arc::new(Ballots::default());
        let leaving = Arc::new(AtomicBool::new(false));
        let tasks = [
            tasks::spawn(view::tell_when_stopped(raft.metrics(), stopped_tx)),
            tasks::spawn(writable::watch(raft.metrics(), node, acks.clone(), timing, blocked_tx)),
            tasks::send_heartbeats(raft.clone(), timing.heartbeat),
            tasks::stand_when_over(raft.clone(), guard.clone(), move || {
                vote_timing.set(timing.election_max);
            }),
            tasks::spawn(take_snapshots(raft.clone(), bytes_since, limits, snapshots.clone())),
            tasks::send_lost_entries_again(raft.clone(), acks.clone()),
            tasks::warn_of_slow_votes(leadership.clone(), pace.clone(), timing),
            tasks::spawn(leadership::follow(
                raft.clone(),
                node,
                Signs { heard: heard.clone(), acks: acks.clone(), removal },
                timing.election_max,
                leadership_tx,
                addresses.clone(),
                Elections::new(election_seconds),
            )),
        ];
        service.join(cluster);
        service.attach(Attached {
            raft: raft.clone(),
            guard,
            snapshots: snapshots.clone(),
            log_at_start,
            election_max_ms: whole_ms(timing.election_max),
            timing_differs: AtomicBool::new(false),
            heard: heard.clone(),
            pace: pace.clone(),
            nearly_full,
            has_descriptors,
            leaving: leaving.clone(),
            hush,
            acks: acks.clone(),
            ballots: ballots.clone(),
        });
        Ok(Self {
            node,
            metrics: raft.metrics(),
            raft,
            index,
            snapshots,
            leadership,
            heard,
            addresses,
            acks,
            pace,
            leaving,
            changing: tokio::sync::Mutex::default(),
            timing,
            ballots,
            blocked,
            stopped,
            _tasks: tasks,
        })
    }
}

/// Whether the log, which ends at `last`, ends with entries of older terms than the snapshot up to `covered` has at that
/// index. Raft removes such entries before it installs a snapshot. But the snapshot can be on stable storage before the
/// removal is, and openraft takes such a pair for a corrupted store. None of these entries may be applied.
#[must_use]
pub fn is_overruled(last: LogId, covered: LogId) -> bool {
    last < covered && last.index >= covered.index
}
