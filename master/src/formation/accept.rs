use mc_types::{ClusterId, NodeId};

use crate::data_dir::Belonging;

/// A call to take part in a new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Founding {
    pub(super) cluster: ClusterId,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) members: Vec<NodeId>,
    /// The cluster id that this node showed to the founder.
    pub(super) replaces: Option<ClusterId>,
}

/// State of the called node that decides whether it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InviteeState {
    pub(super) node: NodeId,
    pub(super) belonging: Option<Belonging>,
    /// The cluster whose Raft runs in this process. It may have voted by now.
    pub(super) bound: Option<ClusterId>,
    /// Whether Raft has, or has had, something on disk.
    pub(super) formed: bool,
}

/// Says why a node does not take part; `None` if it does. Its standing must not change between this answer and the
/// record that follows it.
pub(super) fn refusal(own: &InviteeState, call: &Founding) -> Option<String> {
    if call.to != own.node {
        return Some(format!("this is node {}, the call is for node {}", own.node, call.to));
    }
    if call.cluster.0 == 0 || !call.members.contains(&call.to) {
        return Some("the call names no cluster, or does not name this node as a member".into());
    }
    if call.members.iter().min() != Some(&call.from) {
        return Some(format!("node {} is not the smallest of the members", call.from));
    }
    if let Some(cluster) = own.bound {
        return Some(format!("this node takes part in cluster {cluster}"));
    }
    let current = own.belonging.map(|belonging| belonging.cluster);
    if own.formed {
        return Some(format!("this node has data of cluster {}", current.unwrap_or_default()));
    }
    match own.belonging {
        // The node knows of a cluster that was formed without it. That cluster's data is worth more than a quick start.
        Some(Belonging { cluster, founder: None }) => {
            Some(format!("this node waits to be taken in by cluster {cluster}"))
        }
        _ if current != call.replaces => Some("this node has accepted another founding since".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: InviteeState = InviteeState { node: NodeId(2), belonging: None, bound: None, formed: false };

    /// A founding of cluster 7 by node 1.
    fn call() -> Founding {
        let members = vec![NodeId(1), NodeId(2), NodeId(3)];
        Founding { cluster: ClusterId(7), from: NodeId(1), to: NodeId(2), members, replaces: None }
    }

    fn accepted(cluster: u128, founder: Option<NodeId>) -> InviteeState {
        InviteeState { belonging: Some(Belonging { cluster: ClusterId(cluster), founder }), ..EMPTY }
    }

    fn why(own: InviteeState, call: &Founding) -> String {
        refusal(&own, call).unwrap_or_default()
    }

    #[test]
    fn an_empty_node_takes_part_and_one_that_is_not_meant_does_not() {
        assert_eq!(why(EMPTY, &call()), "");
        let elsewhere = Founding { to: NodeId(3), ..call() };
        assert!(why(EMPTY, &elsewhere).contains("is for node 0000000000000003"));
        let usurper = Founding { from: NodeId(3), ..call() };
        assert!(why(EMPTY, &usurper).contains("not the smallest"));
        let stranger = Founding { members: vec![NodeId(1)], ..call() };
        assert!(why(EMPTY, &stranger).contains("does not name this node"));
    }

    #[test]
    fn a_node_with_raft_state_or_a_running_raft_takes_part_in_no_other() {
        let bound = InviteeState { bound: Some(ClusterId(6)), ..EMPTY };
        assert!(why(bound, &call()).contains("takes part in cluster"));
        assert!(why(InviteeState { formed: true, ..EMPTY }, &call()).contains("has data"));
    }

    #[test]
    fn another_founding_is_accepted_only_over_what_its_founder_saw() {
        let own = accepted(6, Some(NodeId(1)));
        assert!(why(own, &call()).contains("accepted another founding since"));
        let newer = Founding { replaces: Some(ClusterId(6)), ..call() };
        assert_eq!(why(own, &newer), "");
    }

    #[test]
    fn a_node_that_was_taken_in_waits_for_its_cluster() {
        let newer = Founding { replaces: Some(ClusterId(6)), ..call() };
        assert!(why(accepted(6, None), &newer).contains("waits to be taken in by cluster"));
    }
}
