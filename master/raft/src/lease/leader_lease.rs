use std::time::Duration;

use mc_log::TypeConfig;
use mc_types::NodeId;
use openraft::{RaftMetrics, ServerState};
use tokio::time::Instant;

use super::acks::Acks;

/// A term in which this node led at the moment of the check, with every write of earlier terms applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaderTerm(pub u64);

/// Returns the part of the lease that is used. The rest absorbs clocks that run at different rates.
pub(crate) fn usable_lease(election_timeout_max: Duration) -> Duration {
    election_timeout_max * 3 / 4
}

/// Whether this node may serve reads from its own memory at `now`, by Raft's latest metrics.
///
/// A quorum that acknowledged this leader refuses every other candidate for one maximum election timeout after the
/// acknowledged message was sent ([`RestartWait`](super::restart_wait::RestartWait) keeps that so over restarts); until
/// then nobody else can have committed anything. `last_applied` of this term means that this leader's first entry, and
/// so all that was committed before it led, is in the index. All of that is read from one value: parts of two moments
/// prove nothing. `acks` may be newer than it, and names the term that it is about.
///
/// Two things take the promise away early, because then voters do not wait: a hand-over, which the caller keeps in
/// mind for the rest of the term, and the removal of this node from the voters, after which Raft hands over by itself.
pub(crate) fn leased_term(
    metrics: &RaftMetrics<TypeConfig>,
    me: NodeId,
    acks: &Acks,
    now: Instant,
    usable: Duration,
) -> Option<LeaderTerm> {
    let vote = &metrics.vote;
    if metrics.state != ServerState::Leader || !vote.committed || vote.leader_id.voted_for != me {
        return None;
    }
    let term = vote.leader_id.term;
    if metrics.last_applied.is_none_or(|applied| applied.leader_id.term != term) {
        return None;
    }
    let membership = metrics.membership_config.membership();
    if !membership.voter_ids().any(|voter| voter == me) {
        return None;
    }
    let followed = acks.quorum(me, term, membership, now)?;
    (now < followed + usable).then_some(LeaderTerm(term))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::timing::RaftTiming;
    use mc_log::{CommittedLeaderId, LogId, Membership, StoredMembership, Vote};

    const ME: NodeId = NodeId(1);
    const USABLE: Duration = Duration::from_millis(225);

    fn leading(voters: &[u64]) -> RaftMetrics<TypeConfig> {
        let voters: BTreeSet<_> = voters.iter().copied().map(NodeId).collect();
        let membership = Membership::new_with_defaults(vec![voters], [NodeId(9)]);
        RaftMetrics {
            state: ServerState::Leader,
            vote: Vote::new_committed(7, ME),
            last_applied: Some(LogId { leader_id: CommittedLeaderId::new(7), index: 100 }),
            membership_config: Arc::new(StoredMembership::new(None, membership)),
            ..RaftMetrics::new_initial(ME)
        }
    }

    #[test]
    fn a_lease_outlasts_two_heartbeats_and_ends_before_voters_may_elect() {
        for timing in [RaftTiming::LAN, RaftTiming::WAN] {
            let usable = usable_lease(timing.election_max);
            assert!(usable > timing.heartbeat * 2 && usable < timing.election_max, "{timing}: {usable:?}");
        }
    }

    #[test]
    fn a_lease_needs_all_of_its_conditions() {
        let now = Instant::now();
        let acks = Acks::default();
        acks.note(NodeId(2), 7, now);
        let check = |metrics: &RaftMetrics<TypeConfig>, later_ms| {
            leased_term(metrics, ME, &acks, now + Duration::from_millis(later_ms), USABLE)
        };
        let good = leading(&[1, 2, 3]);
        assert_eq!(check(&good, 0), Some(LeaderTerm(7)));
        assert_eq!(check(&good, 224), Some(LeaderTerm(7)));
        assert_eq!(check(&good, 225), None, "the last quarter of the lease is not used");

        assert_eq!(check(&RaftMetrics { state: ServerState::Follower, ..good.clone() }, 0), None);
        assert_eq!(check(&RaftMetrics { vote: Vote::new(7, ME), ..good.clone() }, 0), None);
        assert_eq!(check(&RaftMetrics { vote: Vote::new_committed(7, NodeId(2)), ..good.clone() }, 0), None);
        assert_eq!(leased_term(&good, ME, &Acks::default(), now, USABLE), None);
        let older = Some(LogId { leader_id: CommittedLeaderId::new(6), index: 100 });
        assert_eq!(
            check(&RaftMetrics { last_applied: older, ..good.clone() }, 0),
            None,
            "writes of term 6 may be missing"
        );
        assert_eq!(check(&RaftMetrics { last_applied: None, ..good }, 0), None);
    }

    #[test]
    fn a_single_voter_always_has_the_lease_and_a_removed_one_never() {
        let (now, acks) = (Instant::now(), Acks::default());
        assert_eq!(leased_term(&leading(&[1]), ME, &acks, now, USABLE), Some(LeaderTerm(7)));
        acks.note(NodeId(2), 7, now);
        acks.note(NodeId(3), 7, now);
        assert_eq!(leased_term(&leading(&[2, 3]), ME, &acks, now, USABLE), None);
    }
}
