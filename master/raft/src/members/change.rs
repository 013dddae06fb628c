use std::collections::BTreeSet;

use mc_log::{MasterNode, Membership};
use mc_types::NodeId;

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// The node copies the log from now on and has no vote.
    Learner(NodeId, MasterNode),
    /// These nodes vote, and no others. A voter that is not among them is no member any more.
    Voters(BTreeSet<NodeId>),
    /// The node, which is no voter, is no member any more.
    Forget(NodeId),
    /// The voter has no vote any more. It stays a member, and its address is reserved for what starts there next.
    Leave(NodeId),
}

/// Error of a change of the membership.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MembershipChangeError {
    /// The change was certainly not made.
    #[error("{0}")]
    Refused(String),
    /// The change was not made, because this node does not lead.
    #[error("this master does not lead")]
    NotLeader,
    /// The outcome is unknown: the change may still be made.
    #[error("{0}")]
    Unknown(String),
}

/// Whether a voter of `membership` that has no vote after `change` stays a member. It does if its place is reserved,
/// also where the next leader finishes the change. Any other one is forgotten.
pub(crate) fn keeps_places(change: &MembershipChange, membership: &Membership) -> bool {
    let is_reserved = |node: &NodeId| membership.get_node(node).is_some_and(MasterNode::is_reserved);
    match change {
        MembershipChange::Leave(_) => true,
        MembershipChange::Voters(voters) => {
            membership.voter_ids().any(|voter| is_reserved(&voter) && !voters.contains(&voter))
        }
        MembershipChange::Learner(..) | MembershipChange::Forget(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_leader_that_finishes_a_departure_keeps_the_place() {
        let ids = |ids: &[u64]| -> BTreeSet<_> { ids.iter().copied().map(NodeId).collect() };
        let membership = |configs: &[&[u64]], reserved: &[u64]| {
            let node = |id| {
                let node =
                    MasterNode { raft: format!("m{id}:1"), http: "h:1".into(), ..MasterNode::default() };
                (NodeId(id), if reserved.contains(&id) { node.reserved() } else { node })
            };
            let configs = configs.iter().map(|voters| ids(voters)).collect();
            Membership::new(configs, (1..=3).map(node).collect::<BTreeMap<_, _>>()).unwrap()
        };
        let whole = membership(&[&[1, 2, 3]], &[]);
        assert!(keeps_places(&MembershipChange::Leave(NodeId(3)), &whole));
        assert!(!keeps_places(&MembershipChange::Voters(ids(&[1, 2])), &whole), "a removal");
        let half_left = membership(&[&[1, 2, 3], &[1, 2]], &[3]);
        assert!(
            keeps_places(&MembershipChange::Voters(ids(&[1, 2])), &half_left),
            "finished by the next leader"
        );
        let half_removed = membership(&[&[1, 2, 3], &[1, 2]], &[]);
        assert!(!keeps_places(&MembershipChange::Voters(ids(&[1, 2])), &half_removed));
        let left = membership(&[&[1, 2]], &[3]);
        assert!(
            !keeps_places(&MembershipChange::Voters(ids(&[1])), &left),
            "a removal beside a reserved place"
        );
    }
}
