use std::time::Duration;

use mc_log::{SyncPace, TypeConfig};
use mc_types::NodeId;
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::{RaftMetrics, ServerState};
use tokio::sync::watch;

use super::leadership::Leadership;
use super::{RaftNode, tasks};
use crate::lease::writable::Blocked;
use crate::members::member_role::MemberRole;

/// A Raft node's report of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftView {
    /// `leader`, `follower`, `learner`, `candidate` or `stopped`.
    pub role: &'static str,
    /// Its term.
    pub term: u64,
    /// Index of the last entry it knows to be committed.
    pub committed: u64,
    /// Index of the last entry that is no longer in its log.
    pub purged: u64,
}

impl RaftNode {
    /// This node's id.
    pub fn node_id(&self) -> NodeId {
        self.node
    }

    /// Returns role, term and commit index, as of openraft's last report.
    pub fn view(&self) -> RaftView {
        let metrics = self.metrics.borrow_watched();
        let role = match metrics.state {
            _ if metrics.running_state.is_err() => "stopped",
            ServerState::Leader => "leader",
            ServerState::Follower => "follower",
            ServerState::Learner => "learner",
            ServerState::Candidate => "candidate",
            ServerState::Shutdown => "stopped",
        };
        RaftView {
            role,
            term: metrics.current_term,
            // The commit index of the quorum. On a member that catches up it is far ahead of its own log. A leader's
            // message may name a higher one that openraft has not looked at yet.
            committed: metrics
                .cluster_committed
                .as_ref()
                .map_or(0, |id| id.index)
                .max(self.leader_contact.committed()),
            purged: metrics.purged.as_ref().map_or(0, |id| id.index),
        }
    }

    /// Whether this node's log takes so long for a sync that its vote may come too late for an election.
    pub fn votes_late(&self) -> bool {
        tasks::late_votes(self.pace.now(), self.timing).is_some()
    }

    /// Returns this node's part in the committed membership, as far as this node knows it.
    pub fn member_role(&self) -> MemberRole {
        MemberRole::of(self.node, self.metrics.borrow_watched().committed_membership_config.membership())
    }

    /// Returns the bytes of this node's newest snapshot.
    pub fn snapshot_bytes(&self) -> u64 {
        self.snapshots.current_bytes()
    }

    /// Returns the reason why this leader can't write; `None` if it can.
    pub fn blocked(&self) -> Option<Blocked> {
        self.blocked.borrow().clone()
    }

    /// Returns which follower was last found without entries that it had acknowledged to this node; `None` if none was.
    pub fn lost_entries(&self) -> Option<String> {
        self.acks.losses().borrow().map(|lost| lost.to_string())
    }

    /// Returns the time that a majority took to answer this leader's heartbeats, as last measured.
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
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Time that the log's syncs take.
    pub fn sync_pace(&self) -> &SyncPace {
        &self.pace
    }

    /// Completes with the reason when Raft has stopped: a failure of the log or the state machine, or a shutdown.
    pub async fn stopped(&self) -> String {
        let mut stopped = self.stopped.clone();
        let reason = stopped.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or_else(|| ENDED.to_owned())
    }
}

/// Reason for a Raft that was dropped without giving one.
const ENDED: &str = "Raft has ended";

/// Tells why Raft has stopped, once it has. It runs as a task of its own because openraft reports several changes a
/// commit, and each would wake the waiting thread.
pub(crate) async fn tell_when_stopped(
    mut metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    stopped: watch::Sender<Option<String>>,
) {
    let reason = loop {
        let running = metrics.borrow_watched().running_state.clone();
        if let Err(fatal) = running {
            break fatal.to_string();
        }
        if metrics.changed().await.is_err() {
            break ENDED.to_owned();
        }
    };
    stopped.send_replace(Some(reason));
}
