use mc_log::TypeConfig;
use mc_types::NodeId;
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::{RaftMetrics, ServerState};
use tokio::sync::watch;

use super::RaftNode;

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
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node
    }

    /// Role, term and commit index, as of openraft's last report.
    #[must_use]
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
            // What a quorum has, which on a member that catches up is far ahead of its own log.
            committed: metrics.cluster_committed.as_ref().map_or(0, |id| id.index),
            purged: metrics.purged.as_ref().map_or(0, |id| id.index),
        }
    }

    /// Completes when Raft has stopped, with the reason: a log or state machine that failed, or a shutdown.
    pub async fn stopped(&self) -> String {
        let mut stopped = self.stopped.clone();
        let reason = stopped.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or_else(|| ENDED.to_owned())
    }
}

/// When Raft was dropped without a word.
const ENDED: &str = "Raft has ended";

/// Tells why Raft has stopped once it has. A task beside it: openraft reports several changes a commit, and each would
/// wake a thread of whoever waits.
pub(super) async fn tell_when_stopped(
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
