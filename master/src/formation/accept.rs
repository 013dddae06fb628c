use mc_base::{ClusterId, NodeId};

use crate::identity::Identity;

/// A call to take part in a new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Founding {
    pub(super) cluster: ClusterId,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) members: Vec<NodeId>,
    /// What the founder saw this node belong to.
    pub(super) replaces: Option<ClusterId>,
}

/// Why this node does not take part; `None` when it does. Called with the identity locked: nothing changes between
/// this answer and the record that follows it.
pub(super) fn refusal(
    identity: &Identity,
    bound: Option<ClusterId>,
    has_state: bool,
    call: &Founding,
) -> Option<String> {
    if call.to != identity.node() {
        return Some(format!("this is node {}, the call is for node {}", identity.node(), call.to));
    }
    if call.cluster.0 == 0 || !call.members.contains(&call.to) {
        return Some("the call names no cluster, or does not name this node as a member".into());
    }
    if call.members.iter().min() != Some(&call.from) {
        return Some(format!("node {} is not the smallest of the members", call.from));
    }
    // Bound: Raft may have voted in that cluster by now.
    if let Some(cluster) = bound {
        return Some(format!("this node takes part in cluster {cluster}"));
    }
    let belonging = identity.belonging();
    let current = belonging.map(|belonging| belonging.cluster);
    if has_state || identity.formed() {
        return Some(format!("this node has data of cluster {}", current.unwrap_or_default()));
    }
    match belonging {
        // It knows of a cluster that was formed without it: that cluster's data is worth more than a quick start.
        Some(belonging) if belonging.founder.is_none() => {
            Some(format!("this node waits to be taken in by cluster {}", belonging.cluster))
        }
        _ if current != call.replaces => Some("this node has accepted another founding since".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Belonging;
    use mc_base::crashsafe::DirectoryLock;

    struct Node {
        _dir: tempfile::TempDir,
        identity: Identity,
    }

    fn node() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::open(&DirectoryLock::acquire(dir.path()).unwrap()).unwrap();
        Node { _dir: dir, identity }
    }

    /// A founding of cluster 7 by node 1 (random ids are larger, but for luck of 1 in 2^63).
    fn call(node: &Node) -> Founding {
        let to = node.identity.node();
        Founding { cluster: ClusterId(7), from: NodeId(1), to, members: vec![NodeId(1), to], replaces: None }
    }

    fn why(node: &Node, bound: Option<u128>, has_state: bool, call: &Founding) -> String {
        refusal(&node.identity, bound.map(ClusterId), has_state, call).unwrap_or_default()
    }

    #[test]
    fn an_empty_node_takes_part_and_one_that_is_not_meant_does_not() {
        let node = node();
        let call = call(&node);
        assert_eq!(why(&node, None, false, &call), "");
        let wrong = Founding { to: NodeId(2), members: vec![NodeId(1), NodeId(2)], ..call.clone() };
        assert!(why(&node, None, false, &wrong).contains("is for node 0000000000000002"));
        let usurper =
            Founding { from: NodeId(3), members: vec![NodeId(1), NodeId(3), call.to], ..call.clone() };
        assert!(why(&node, None, false, &usurper).contains("not the smallest"));
        let stranger = Founding { members: vec![NodeId(1)], ..call };
        assert!(why(&node, None, false, &stranger).contains("does not name this node"));
    }

    #[test]
    fn a_node_with_raft_state_or_a_running_raft_takes_part_in_no_other() {
        let mut node = node();
        let call = call(&node);
        assert!(why(&node, Some(6), false, &call).contains("takes part in cluster"));
        assert!(why(&node, None, true, &call).contains("has data"));
        node.identity.record_formed().unwrap();
        assert!(why(&node, None, false, &call).contains("has data"));
    }

    #[test]
    fn another_founding_is_accepted_only_over_what_its_founder_saw() {
        let mut node = node();
        let first = call(&node);
        node.identity.belong(Belonging { cluster: ClusterId(6), founder: Some(NodeId(1)) }).unwrap();
        assert!(why(&node, None, false, &first).contains("accepted another founding since"));
        let newer = Founding { replaces: Some(ClusterId(6)), ..first };
        assert_eq!(why(&node, None, false, &newer), "");
    }

    #[test]
    fn a_node_that_was_taken_in_waits_for_its_cluster() {
        let mut node = node();
        node.identity.belong(Belonging { cluster: ClusterId(6), founder: None }).unwrap();
        let call = Founding { replaces: Some(ClusterId(6)), ..call(&node) };
        assert!(why(&node, None, false, &call).contains("waits to be taken in by cluster"));
    }
}
