use mc_index::ReadPolicy;
use mc_log::{MasterNode, TypeConfig};
use mc_types::NodeId;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ForwardToLeader, LinearizableReadError, RaftError};
use tokio::time::Instant;

use super::RaftNode;
use crate::lease::leader_lease::{LeaderTerm, leased_term, usable_lease};

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

impl RaftNode {
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
        // The check of [`LeaseRevocation`](crate::lease::revocation::LeaseRevocation) must come last.
        self.revocation.permits(term.0).then_some(term)
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

    /// Converts openraft's redirection to an error for the caller.
    pub fn forward(&self, to: ForwardToLeader<TypeConfig>) -> NotLeader {
        let leader = to.leader_id.zip(to.leader_node).filter(|(id, _)| *id != self.node);
        NotLeader { leader, term: self.leadership.borrow().term }
    }
}
