use mc_log::MasterNode;
use mc_raft::Leadership;
use mc_types::NodeId;

/// A leader as this master knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownLeader {
    pub(crate) node: NodeId,
    /// host:port of its client API.
    pub(crate) address: String,
    pub(crate) term: u64,
}

impl KnownLeader {
    pub(super) fn of(leader: Option<&(NodeId, MasterNode)>, term: u64) -> Option<Self> {
        leader.map(|(node, master)| Self { node: *node, address: master.client.clone(), term })
    }

    /// The leader that Raft follows.
    pub(crate) fn in_force(now: &Leadership) -> Option<Self> {
        Self::of(now.leader.as_ref(), now.term)
    }
}
