use mc_log::Membership;
use mc_types::NodeId;

/// A node's part in a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRole {
    /// The node is no member.
    None,
    /// The node copies the log and has no vote.
    Learner,
    /// The node votes, and another member has the same address: one of the two replaces the other.
    SharesAddress(NodeId),
    /// The node votes, and no other member has its address.
    Voter,
}

impl MemberRole {
    /// Returns the role of `node`. While a change is half done, it must vote before and after it.
    pub(crate) fn of(node: NodeId, membership: &Membership) -> Self {
        let Some(addresses) = membership.get_node(&node) else { return Self::None };
        if !membership.get_joint_config().iter().all(|voters| voters.contains(&node)) {
            return Self::Learner;
        }
        let same =
            |(other, there): &(&NodeId, &mc_log::MasterNode)| **other != node && there.raft == addresses.raft;
        membership.nodes().find(same).map_or(Self::Voter, |(other, _)| Self::SharesAddress(*other))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use mc_log::MasterNode;

    /// Members with these addresses, and the voters of each configuration.
    fn roles(configs: &[&[u64]], members: &[(u64, &str)]) -> Vec<MemberRole> {
        let voters: Vec<BTreeSet<_>> =
            configs.iter().map(|voters| voters.iter().copied().map(NodeId).collect()).collect();
        let at = |raft: &str| MasterNode { raft: raft.to_owned(), ..MasterNode::default() };
        let nodes: BTreeMap<_, _> = members.iter().map(|(node, raft)| (NodeId(*node), at(raft))).collect();
        let membership = Membership::new(voters, nodes).unwrap();
        members.iter().map(|(node, _)| MemberRole::of(NodeId(*node), &membership)).collect()
    }

    #[test]
    fn a_wiped_master_has_its_role_once_the_dead_id_is_gone_and_the_others_keep_theirs() {
        let old = [(1, "a"), (2, "b"), (3, "c")];
        assert_eq!(roles(&[&[1, 2, 3]], &old), [MemberRole::Voter; 3]);
        let learner = [(1, "a"), (2, "b"), (3, "c"), (4, "c")];
        assert_eq!(
            roles(&[&[1, 2, 3]], &learner),
            [MemberRole::Voter, MemberRole::Voter, MemberRole::SharesAddress(NodeId(4)), MemberRole::Learner]
        );
        assert_eq!(
            roles(&[&[1, 2, 3], &[1, 2, 4]], &learner),
            [MemberRole::Voter, MemberRole::Voter, MemberRole::Learner, MemberRole::Learner],
            "half-way, neither of the two votes for certain"
        );
        assert_eq!(
            roles(&[&[1, 2, 4]], &learner)[3],
            MemberRole::SharesAddress(NodeId(3)),
            "it votes, and the old id is still a member"
        );
        assert_eq!(roles(&[&[1, 2, 4]], &[(1, "a"), (2, "b"), (4, "c")]), [MemberRole::Voter; 3]);
    }

    #[test]
    fn a_node_outside_of_the_membership_has_no_role() {
        let membership = Membership::new_with_defaults(vec![[NodeId(1)].into()], []);
        assert_eq!(MemberRole::of(NodeId(2), &membership), MemberRole::None);
        assert_eq!(MemberRole::of(NodeId(1), &Membership::default()), MemberRole::None);
    }
}
