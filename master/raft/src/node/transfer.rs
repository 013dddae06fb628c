use std::time::Duration;

use mc_log::TypeConfig;
use mc_types::NodeId;
use openraft::alias::InstantOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use openraft::{Instant as _, RaftMetrics};

use super::RaftNode;
use super::leadership::Leadership;
use super::reads::NotLeader;

/// Error of a hand-over of leadership.
#[derive(Debug, thiserror::Error)]
pub enum LeaderTransferError {
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
    /// The target did not take leadership over in time. An election follows.
    #[error("node {to} did not take leadership over within {waited:?}: an election decides who leads")]
    NotTaken {
        /// Node that was to take over.
        to: NodeId,
        /// Time that the target had.
        waited: Duration,
    },
    /// Raft has stopped.
    #[error("Raft has stopped: {0}")]
    Stopped(#[from] Fatal<TypeConfig>),
}

impl RaftNode {
    /// Hands leadership to `to`, or to the voter with the longest log, and returns the new leader. A hand-over to
    /// this node itself changes nothing.
    ///
    /// Otherwise leased reads are off for the rest of the term from the moment of the call, whatever its outcome. The
    /// target may stand for election at once, and voters then do not wait for this node's lease to end.
    ///
    /// # Errors
    /// [`LeaderTransferError`]. After `NotTaken` an election decides.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<Leadership, LeaderTransferError> {
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
        self.revocation.revoke(term);
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
                    return Err(LeaderTransferError::NotTaken { to: target, waited: began.elapsed() });
                }
                Err(_) => {}
            }
        }
        Err(LeaderTransferError::Alone)
    }

    /// Waits until `leadership` names this node, which leads. The news takes a moment.
    async fn known_leader(&self) -> Result<Leadership, LeaderTransferError> {
        let mut leadership = self.leadership.clone();
        let known = leadership.wait_for(|now| now.leader.as_ref().is_some_and(|(id, _)| *id == self.node));
        match tokio::time::timeout(self.timing.election_max, known).await {
            Ok(Ok(now)) => Ok(now.clone()),
            Ok(Err(_)) => Err(Fatal::Stopped.into()),
            Err(_) => Err(LeaderTransferError::NotTaken { to: self.node, waited: self.timing.election_max }),
        }
    }
}

/// Returns the named voter, or all voters that answer: first those that are not leaving, then by the longest log, then
/// by the latest answer.
fn successors(
    metrics: &RaftMetrics<TypeConfig>,
    me: NodeId,
    named: Option<NodeId>,
    silence: Duration,
    stays: impl Fn(&NodeId) -> bool,
) -> Result<Vec<NodeId>, LeaderTransferError> {
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
            false => Err(LeaderTransferError::NoVoter(named)),
            true if answers(&named) => Ok(vec![named]),
            true => Err(LeaderTransferError::Silent(named)),
        };
    }
    let Some(first) = others.first().copied() else { return Err(LeaderTransferError::Alone) };
    let mut able: Vec<_> = others.into_iter().filter(answers).collect();
    able.sort_by_key(|id| std::cmp::Reverse((stays(id), matching(id), heard(id))));
    if able.is_empty() { Err(LeaderTransferError::Silent(first)) } else { Ok(able) }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use std::sync::Arc;

    use mc_log::{LogId, Membership, StoredMembership};
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
