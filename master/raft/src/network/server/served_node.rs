use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mc_log::{LogId, Raft, SyncPace, TypeConfig};
use mc_proto::v1;
use mc_types::NodeId;
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::VoteResponse;

use crate::apply::state_machine::StateMachine;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::LeaderContact;
use crate::lease::restart_wait::RestartWait;
use crate::lease::revocation::{self, LeaseRevocation};
use crate::lease::writable::{RaftInstant, writing};
use crate::members::removal;
use crate::network::silent_peers::SilentPeers;
use crate::snapshots::SnapshotStore;

/// Function that tells whether the disk of a node's data directory is nearly full.
pub type NearlyFull = Arc<dyn Fn() -> bool + Send + Sync>;
/// Tells whether the process can open files and connections.
pub type HasDescriptors = Arc<dyn Fn() -> bool + Send + Sync>;

/// Parts of a running node that the service needs.
pub(crate) struct ServedNode {
    pub(crate) raft: Raft<StateMachine>,
    pub(crate) restart_wait: RestartWait,
    pub(crate) snapshots: SnapshotStore,
    /// The last entry that was in the log on disk when this run began.
    pub(crate) log_at_start: Option<LogId>,
    /// The longest election timeout, which must be the same on all nodes.
    pub(crate) election_max_ms: u64,
    /// Whether a peer with another timeout was refused.
    pub(crate) timing_differs: AtomicBool,
    pub(crate) leader_contact: LeaderContact,
    pub(crate) pace: Arc<SyncPace>,
    pub(crate) nearly_full: NearlyFull,
    pub(crate) has_descriptors: HasDescriptors,
    /// This node asks the leader to take its vote.
    pub(crate) leaving: Arc<AtomicBool>,
    pub(crate) silent_peers: Arc<SilentPeers>,
    pub(crate) acks: Arc<Acks>,
    pub(crate) revocation: Arc<LeaseRevocation>,
}

impl ServedNode {
    /// The entry that set the members, if this node is certain that the sender is not among them.
    pub(crate) fn not_a_member_since(&self, envelope: Option<&v1::Envelope>) -> Option<LogId> {
        let from = NodeId::from_bytes(&envelope?.from)?;
        let metrics = self.raft.server_metrics();
        let committed = metrics.borrow_watched().committed_membership_config.clone();
        (*committed.log_id()).filter(|_| !removal::has(&committed, from))
    }

    /// This leader's refusal, if a candidate gets it without openraft being asked.
    pub(crate) fn refusal(&self, me: NodeId) -> Option<VoteResponse<TypeConfig>> {
        let lease = Duration::from_millis(self.election_max_ms);
        let now = tokio::time::Instant::now();
        let vote = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let writing = writing(&metrics, me, RaftInstant::now(), lease);
            revocation::refuses_candidates(writing, &metrics, me, &self.acks, now, lease)
                .then_some(metrics.vote)?
        };
        let last = self.raft.data_metrics().borrow_watched().last_log;
        Some(VoteResponse::new(vote, last, false))
    }
}
