//! The running node: openraft with its log, its state machine and its network, and the tasks beside it.
//!
//! This room imports all others, and none imports it. Its parts add methods to [`RaftNode`], one subject each.

pub(crate) mod election;
pub(crate) mod leadership;
pub(crate) mod members;
pub(crate) mod openraft_config;
pub(crate) mod propose;
pub(crate) mod tasks;
pub(crate) mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mc_index::{ReadPolicy, Settings, State};
use mc_log::{LogId, MasterNode, Raft, StoredMembership, SyncPace, TypeConfig, VoteTiming};
use mc_net::Network;
use mc_types::{Clock, ClusterId, NodeId};
use metrics::Histogram;
use openraft::alias::{InstantOf, WatchReceiverOf};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{Fatal, ForwardToLeader, InitializeError, LinearizableReadError, RaftError};
use openraft::storage::{RaftLogReader, RaftLogStorage};
use openraft::{ConfigError, Instant as _, RaftMetrics};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::apply::index::{Applied, SharedIndex};
use crate::apply::machine::Machine;
use crate::apply::snapshot_limits::SnapshotLimits;
use crate::apply::take_snapshots::{BytesSince, take_snapshots};
use crate::lease::acks::Acks;
use crate::lease::leader_contact::Heard;
use crate::lease::leader_term::{LeaderTerm, leased_term, usable_lease};
use crate::lease::restart_wait::VoteGuard;
use crate::lease::revocation::Ballots;
use crate::lease::writable::{self, Blocked};
use crate::members::address_book::AddressBook;
use crate::members::removal::Removal;
use crate::network::client::peer_clients::Peers;
use crate::network::server::served_node::{Attached, HasDescriptors, NearlyFull};
use crate::network::server::service::RaftService;
use crate::network::wire::envelope::Identity;
use crate::snapshots::{Disk, FileSystem, SnapshotError, SnapshotStore};
use crate::timing::{RaftTiming, whole_ms};
use election::Elections;
use leadership::{Leadership, Signs};
use openraft_config::raft_config;

/// Parts of a Raft node.
pub struct RaftNodeConfig<L> {
    /// This node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Heartbeats and election timeouts.
    pub timing: RaftTiming,
    /// Connects to the other masters.
    pub network: Arc<dyn Network>,
    /// Times the guard after a restart.
    pub clock: Clock,
    /// The Raft log, vote included.
    pub log: L,
    /// The election timeout that the log records beside the vote.
    pub vote_timing: Arc<VoteTiming>,
    /// Bytes of the log that a snapshot does not cover.
    pub bytes_since: BytesSince,
    /// Time that the log's syncs take.
    pub pace: Arc<SyncPace>,
    /// Tells whether the disk of the data directory is nearly full. The leader gets to know.
    pub nearly_full: NearlyFull,
    /// Tells whether this process can open files and connections. The leader gets to know.
    pub has_descriptors: HasDescriptors,
    /// Directory of the snapshots; created if it does not exist.
    pub snapshot_dir: PathBuf,
    /// Limits at which snapshots are taken.
    pub limits: SnapshotLimits,
    /// The Raft port's service, which answers for this node from now on.
    pub service: RaftService,
    /// Records the time that entries took to apply.
    pub apply_seconds: Histogram,
    /// Records the time of the elections that this node won.
    pub election_seconds: Histogram,
}

/// Error of starting a Raft node.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The snapshots cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The log cannot be read.
    #[error("cannot read the Raft log: {0}")]
    Log(#[source] io::Error),
    /// The Raft timing is not usable.
    #[error("the Raft timing is not usable: {0}")]
    Timing(#[from] ConfigError),
    /// openraft refuses.
    #[error("Raft does not start: {0}")]
    Raft(#[from] Fatal<TypeConfig>),
}

/// The call needs the leader. This node is not the leader, or not certain to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the leader in term {term}; the leader is {}", named(.leader.as_ref()))]
pub struct NotLeader {
    /// The leader, if it is known.
    pub leader: Option<(NodeId, MasterNode)>,
    /// The highest term this node has seen.
    pub term: u64,
}

fn named(leader: Option<&(NodeId, MasterNode)>) -> String {
    leader.map_or_else(|| "not known".into(), |(id, node)| format!("node {id} at {}", node.client))
}

/// Error of a hand-over of leadership.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// This node does not lead.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The named node cannot lead, or there is no other node that can.
    #[error("node {0} is no voter of this cluster")]
    NoVoter(NodeId),
    /// The named node, or every other one, has not answered a heartbeat lately.
    #[error("node {0} does not answer: it would not take over")]
    Silent(NodeId),
    /// This node is the only voter.
    #[error("there is no other voter to hand leadership to")]
    Alone,
    /// The target did not take over in time. An election follows.
    #[error("node {to} did not take over within {waited:?}")]
    NotTaken {
        /// The target.
        to: NodeId,
        /// Time that it had.
        waited: Duration,
    },
    /// Raft has stopped.
    #[error("Raft has stopped: {0}")]
    Stopped(#[from] Fatal<TypeConfig>),
}

/// A running Raft node. Its tasks run on the runtime that [`RaftNode::start`] was called on. That should not be the
/// one that serves clients, because a busy runtime makes followers miss heartbeats.
pub struct RaftNode {
    pub(crate) node: NodeId,
    raft: Raft<Machine>,
    index: SharedIndex,
    snapshots: SnapshotStore,
    pub(crate) metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    leadership: watch::Receiver<Leadership>,
    pub(crate) heard: Heard,
    pub(crate) addresses: AddressBook,
    acks: Arc<Acks>,
    pub(crate) pace: Arc<SyncPace>,
    /// This node asks the leader to take its vote: see [`Self::ask_to_leave`].
    pub(crate) leaving: Arc<AtomicBool>,
    /// Held while the membership is changed.
    pub(crate) changing: tokio::sync::Mutex<()>,
    pub(crate) timing: RaftTiming,
    /// A hand-over yields the term: voters may elect another leader before this node's lease ends.
    ballots: Arc<Ballots>,
    blocked: watch::Receiver<Option<Blocked>>,
    pub(crate) stopped: watch::Receiver<Option<String>>,
    _tasks: [AbortOnDropHandle<()>; 8],
}

impl fmt::Debug for RaftNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftNode").field("node", &self.node).finish_non_exhaustive()
    }
}

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

    /// Forms a cluster of `members`, and returns when this node's vote is durable, and with it the first entry. Exactly one
    /// of them must call this, once.
    ///
    /// # Errors
    /// The node already has Raft state, is not one of `members`, or has stopped.
    pub async fn initialize(
        &self,
        members: BTreeMap<NodeId, MasterNode>,
    ) -> Result<(), RaftError<TypeConfig, InitializeError<TypeConfig>>> {
        // openraft answers without waiting for the entry: it compares with what was durable before. It writes the entry
        // and then its vote, which the log syncs whatever `--log-sync` says, and in this order.
        let mut durable = self.raft.watch_log_progress();
        self.raft.initialize(members).await?;
        let written = durable.wait_until(|now| now.as_ref().is_some_and(|now| now.vote.leader_id.term > 0));
        let written = written.await;
        written.map(drop).map_err(|_| RaftError::Fatal(Fatal::Stopped))
    }

    /// Returns the heartbeat interval and election timeouts of this node.
    #[must_use]
    pub fn timing(&self) -> RaftTiming {
        self.timing
    }

    /// Returns openraft's handle: proposals, membership changes, metrics.
    #[must_use]
    pub fn raft(&self) -> &Raft<Machine> {
        &self.raft
    }

    /// Returns the index. Reads of it are linearizable only under [`Self::try_lease`] or after
    /// [`Self::read_barrier`].
    #[must_use]
    pub fn index(&self) -> &SharedIndex {
        &self.index
    }

    /// Returns the bytes of this node's newest snapshot.
    #[must_use]
    pub fn snapshot_bytes(&self) -> u64 {
        self.snapshots.current_bytes()
    }

    /// Returns the reason why this leader can't write; `None` if it can.
    #[must_use]
    pub fn blocked(&self) -> Option<Blocked> {
        self.blocked.borrow().clone()
    }

    /// Returns which follower was last found without entries that it had acknowledged to this node; `None` if none was.
    #[must_use]
    pub fn lost_entries(&self) -> Option<String> {
        self.acks.losses().borrow().map(|lost| lost.to_string())
    }

    /// Returns the time that a majority took to answer this leader's heartbeats, as last measured.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        let metrics = self.metrics.borrow_watched();
        if !metrics.state.is_leader() {
            return None;
        }
        let configs = metrics.membership_config.membership().get_joint_config();
        let each = configs.iter().map(|voters| self.acks.round_trip_of_majority(self.node, voters));
        each.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Returns a receiver that follows the leader as this node learns of it.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Returns the term in which this node may serve reads, and answer from soft state, at this moment. `None` means
    /// that only [`Self::read_barrier`] can tell, which is always so under the read policy [`ReadPolicy::ReadIndex`].
    /// The call costs no message and no step through Raft. Repeat it for every operation, during the operation.
    #[must_use]
    pub fn try_lease(&self) -> Option<LeaderTerm> {
        match self.index.read_policy() {
            ReadPolicy::Lease => self.presumed_term(),
            ReadPolicy::ReadIndex => None,
        }
    }

    /// Returns the term that this node leads according to its lease, under either read policy. For background work
    /// only: no caller may get an answer based on it.
    #[must_use]
    pub fn presumed_term(&self) -> Option<LeaderTerm> {
        let usable = usable_lease(self.timing.election_max);
        let metrics = self.metrics.borrow_watched();
        let term = leased_term(&metrics, self.node, &self.acks, Instant::now(), usable)?;
        // The check of [`Ballots`] must come last.
        self.ballots.permits(term.0).then_some(term)
    }

    /// Asks a quorum. A read of the index that begins after this returns sees every write that was acknowledged
    /// before the call, whatever the clocks of the machines show.
    ///
    /// # Errors
    /// [`NotLeader`] when this node is not the leader, or a quorum does not confirm it in time.
    pub async fn read_barrier(&self) -> Result<LeaderTerm, NotLeader> {
        let began = Instant::now();
        let confirmed = async {
            // openraft sends heartbeats, returns the index up to which entries must be applied, and waits for that.
            // Its account of which nodes answered is not exact.
            let read_log_id = self.raft.ensure_linearizable(openraft::ReadPolicy::ReadIndex).await?;
            let term = read_log_id.committed_leader_id().term;
            self.acks.until(|| self.followed_since(term, began)).await;
            Ok(LeaderTerm(term))
        };
        // openraft bounds the wait for the quorum, not the wait for entries to be applied.
        match tokio::time::timeout(self.timing.election_max * 4, confirmed).await {
            Ok(Ok(term)) => Ok(term),
            Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to)))) => Err(self.forward(to)),
            Ok(Err(_)) | Err(_) => Err(NotLeader { leader: None, term: self.leadership.borrow().term }),
        }
    }

    /// Whether a majority has accepted something that this node sent after `began` as the leader of `term`.
    fn followed_since(&self, term: u64, began: Instant) -> bool {
        let metrics = self.metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        self.acks.quorum(self.node, term, membership, Instant::now()).is_some_and(|sent| sent >= began)
    }

    /// Time that the log's syncs take.
    #[must_use]
    pub fn sync_pace(&self) -> &SyncPace {
        &self.pace
    }

    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// Converts openraft's redirection to an error for the caller.
    pub fn forward(&self, to: ForwardToLeader<TypeConfig>) -> NotLeader {
        let leader = to.leader_id.zip(to.leader_node).filter(|(id, _)| *id != self.node);
        NotLeader { leader, term: self.leadership.borrow().term }
    }

    /// Hands leadership to `to`, or to the voter with the longest log, and returns the new leader. A hand-over to
    /// this node itself changes nothing.
    ///
    /// Otherwise leased reads are off for the rest of the term from the moment of the call, whatever its outcome. The
    /// target may stand for election at once, and voters then do not wait for this node's lease to end.
    ///
    /// # Errors
    /// [`TransferError`]. After `NotTaken` an election decides.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<Leadership, TransferError> {
        let (term, successors) = {
            let metrics = self.metrics.borrow_watched();
            let leads = metrics.state.is_leader() && metrics.vote.committed;
            if !leads || metrics.vote.leader_id.voted_for != self.node {
                let Leadership { leader, term, .. } = self.leadership.borrow().clone();
                return Err(NotLeader { leader, term }.into());
            }
            let successors = (to != Some(self.node))
                .then(|| {
                    let stays = |id: &NodeId| self.acks.report(*id).is_none_or(|report| !report.leaving);
                    successors(&metrics, self.node, to, self.timing.election_max, stays)
                })
                .transpose()?;
            (metrics.vote.leader_id.term, successors)
        };
        let Some(successors) = successors else { return self.known_leader().await };
        self.ballots.yield_term(term);
        let began = tokio::time::Instant::now();
        // A voter that has just restarted takes no part in elections and takes nothing over, but another one may.
        let mut successors = successors.into_iter().peekable();
        while let Some(target) = successors.next() {
            self.raft.trigger().transfer_leader(target).await?;
            let last = successors.peek().is_none();
            // The request, a vote and the result travel one way each. A near but busy voter needs some time beside
            // that.
            let far = self.acks.round_trip(target).unwrap_or_default() * 3;
            let patience =
                if last { self.timing.election_max * 2 } else { self.timing.election_max / 6 + far };
            let mut leadership = self.leadership.clone();
            let taken = leadership.wait_for(|now| now.term > term && now.leader.is_some());
            match tokio::time::timeout(patience, taken).await {
                Ok(Ok(now)) => return Ok(now.clone()),
                Ok(Err(_)) => return Err(Fatal::Stopped.into()),
                Err(_) if last => {
                    return Err(TransferError::NotTaken { to: target, waited: began.elapsed() });
                }
                Err(_) => {}
            }
        }
        Err(TransferError::Alone)
    }

    /// Waits until `leadership` names this node, which leads. The news takes a moment.
    async fn known_leader(&self) -> Result<Leadership, TransferError> {
        let mut leadership = self.leadership.clone();
        let known = leadership.wait_for(|now| now.leader.as_ref().is_some_and(|(id, _)| *id == self.node));
        match tokio::time::timeout(self.timing.election_max, known).await {
            Ok(Ok(now)) => Ok(now.clone()),
            Ok(Err(_)) => Err(Fatal::Stopped.into()),
            Err(_) => Err(TransferError::NotTaken { to: self.node, waited: self.timing.election_max }),
        }
    }

    /// Stops taking part in the cluster. The membership stays. If this node led, the others elect a leader.
    pub async fn shutdown(&self) {
        if let Err(err) = self.raft.shutdown().await {
            tracing::warn!("Raft did not stop cleanly: {err}");
        }
    }
}

/// Whether the log, which ends at `last`, ends with entries of older terms than the snapshot up to `covered` has at that
/// index. Raft removes such entries before it installs a snapshot. But the snapshot can be on stable storage before the
/// removal is, and openraft takes such a pair for a corrupted store. None of these entries may be applied.
#[must_use]
pub fn is_overruled(last: LogId, covered: LogId) -> bool {
    last < covered && last.index >= covered.index
}

/// Returns the named voter, or all voters that answer: those that stay first, of these those with the longest log, and of
/// equal ones the last that answered.
fn successors(
    metrics: &RaftMetrics<TypeConfig>,
    me: NodeId,
    named: Option<NodeId>,
    silence: Duration,
    stays: impl Fn(&NodeId) -> bool,
) -> Result<Vec<NodeId>, TransferError> {
    let others: Vec<_> = metrics.membership_config.membership().voter_ids().filter(|id| *id != me).collect();
    let matching =
        |id: &NodeId| metrics.replication.as_ref().and_then(|peers| peers.get(id).copied().flatten());
    let heard = |id: &NodeId| {
        metrics
            .heartbeat
            .as_ref()
            .and_then(|peers| peers.get(id).copied().flatten())
            .map(|at| at.into_inner())
    };
    // A leader that hands over to a dead node refuses writes until it is voted out.
    let answers = |id: &NodeId| heard(id).is_some_and(|at| InstantOf::<TypeConfig>::now() < at + silence);
    if let Some(named) = named {
        return match others.contains(&named) {
            false => Err(TransferError::NoVoter(named)),
            true if answers(&named) => Ok(vec![named]),
            true => Err(TransferError::Silent(named)),
        };
    }
    let Some(first) = others.first().copied() else { return Err(TransferError::Alone) };
    let mut able: Vec<_> = others.into_iter().filter(answers).collect();
    able.sort_by_key(|id| std::cmp::Reverse((stays(id), matching(id), heard(id))));
    if able.is_empty() { Err(TransferError::Silent(first)) } else { Ok(able) }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use mc_log::Membership;
    use openraft::metrics::SerdeInstant;
    use openraft::type_config::TypeConfigExt;

    use super::*;

    #[test]
    fn leadership_goes_to_a_voter_that_stays_before_one_with_a_longer_log() {
        let [me, behind, leaves, silent] = [1, 2, 3, 4].map(NodeId);
        let has = |index| Some(LogId::new_term_index(7, index));
        let now = Some(SerdeInstant::from(TypeConfig::now()));
        let voters = BTreeSet::from([me, behind, leaves, silent]);
        let metrics = RaftMetrics::<TypeConfig> {
            membership_config: Arc::new(StoredMembership::new(
                has(1),
                Membership::new_with_defaults(vec![voters], []),
            )),
            replication: Some(BTreeMap::from([(behind, has(40)), (leaves, has(50)), (silent, has(50))])),
            heartbeat: Some(BTreeMap::from([(behind, now), (leaves, now), (silent, None)])),
            ..RaftMetrics::new_initial(me)
        };
        let order = |leaving: Option<NodeId>| {
            successors(&metrics, me, None, Duration::from_secs(60), |id| Some(*id) != leaving).unwrap()
        };
        assert_eq!(order(None), [leaves, behind]);
        assert_eq!(order(Some(leaves)), [behind, leaves]);
    }
}
