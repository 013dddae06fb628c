//! Departure of a node that gives up its vote before it stops.
//!
//! The node says in its answers to heartbeats that it wants to leave. The leader that hears it, whoever leads by then,
//! takes its vote if the others can do without ([`MembershipChange::Leave`](crate::MembershipChange::Leave)). The node
//! stays a member, so its own log tells it when that is committed. No call can be lost or repeated on the way.

use mc_log::{MasterNode, Membership};
use mc_types::NodeId;

/// How far the departure of a node has come, by the committed membership that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The node still votes, and the others could do without its vote.
    Waits,
    /// The node must keep its vote: too few voters would remain.
    Needed,
    /// The node has no vote any more, and its place is reserved.
    Left,
}

/// Whether one of `voters` may give up its vote while `reserved` others have done so: a majority of all of them must go
/// on voting.
///
/// So masters that stop at the same time do not shrink their cluster to nothing. The last ones keep their votes and
/// their data, and are a majority of the voters when they start again.
#[must_use]
pub fn can_spare_a_voter(voters: usize, reserved: usize) -> bool {
    2 * voters.saturating_sub(1) > voters + reserved
}

impl Departure {
    pub(crate) fn of(node: NodeId, committed: &Membership) -> Self {
        let is_reserved = |id: &NodeId| committed.get_node(id).is_some_and(MasterNode::is_reserved);
        let voters: Vec<_> = committed.voter_ids().collect();
        if voters.contains(&node) {
            let reserved = committed.learner_ids().filter(is_reserved).count();
            return if can_spare_a_voter(voters.len(), reserved) { Self::Waits } else { Self::Needed };
        }
        // A member without a vote whose place is not reserved is treated as one that joins.
        if is_reserved(&node) { Self::Left } else { Self::Needed }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn a_majority_of_all_places_keeps_its_votes() {
        for (voters, reserved, spare) in [
            (1, 0, false),
            (2, 0, false),
            (3, 0, true),
            (2, 1, false),
            (4, 0, true),
            (3, 1, false),
            (5, 0, true),
            (4, 1, true),
            (3, 2, false),
        ] {
            assert_eq!(can_spare_a_voter(voters, reserved), spare, "{voters} voters, {reserved} reserved");
        }
    }

    #[test]
    fn a_node_has_left_when_its_place_is_reserved_in_the_committed_membership() {
        let node = |id: u64, reserved: bool| {
            let node = MasterNode { raft: format!("m{id}:1"), http: "h:1".into(), ..MasterNode::default() };
            (NodeId(id), if reserved { node.reserved() } else { node })
        };
        let of = |configs: &[&[u64]], reserved: &[u64]| {
            let nodes: BTreeMap<_, _> = (1..=3).map(|id| node(id, reserved.contains(&id))).collect();
            let voters: Vec<BTreeSet<_>> =
                configs.iter().map(|ids| ids.iter().copied().map(NodeId).collect()).collect();
            Departure::of(NodeId(1), &Membership::new(voters, nodes).unwrap())
        };
        assert_eq!(of(&[&[1, 2, 3]], &[]), Departure::Waits);
        assert_eq!(of(&[&[1, 2, 3], &[2, 3]], &[1]), Departure::Waits, "it votes until that is over");
        assert_eq!(of(&[&[2, 3]], &[1]), Departure::Left);
        assert_eq!(of(&[&[1, 2]], &[3]), Departure::Needed, "another one was first");
        assert_eq!(of(&[&[2, 3]], &[]), Departure::Needed, "a learner that is to get a vote");
    }
}
