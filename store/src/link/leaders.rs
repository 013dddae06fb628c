use mc_proto::v1;
use mc_types::NodeId;

/// A leader as some master named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) node: NodeId,
    /// Client address, host:port.
    pub(crate) address: String,
    pub(crate) term: u64,
}

/// A leader to go over to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Believed {
    pub(crate) leader: Leader,
    /// Every store is told at this moment, as by a watch: they go over one after the other. A store that asked by itself
    /// is alone.
    pub(crate) told_to_all: bool,
}

impl Leader {
    /// The same node leads in the same term.
    pub(crate) fn same_reign(&self, other: &Self) -> bool {
        self.node == other.node && self.term == other.term
    }

    /// Reads what travelled; `None` when it names nobody (a redirect while no leader is known).
    pub(crate) fn read(leader: Option<&v1::Leader>) -> Option<Self> {
        let leader = leader.filter(|leader| !leader.address.is_empty())?;
        Some(Self {
            node: NodeId::from_bytes(&leader.node_id)?,
            address: leader.address.clone(),
            term: leader.term,
        })
    }

    /// Whether this news replaces what was believed. Terms order leaders: each has at most one, so an older
    /// master's belief can never take a store back to a leader that was deposed. Within a term only the address of
    /// the one leader can change.
    pub(crate) fn supersedes(&self, believed: Option<&Self>) -> bool {
        believed.is_none_or(|old| {
            self.term > old.term || (self.term == old.term && self.node == old.node && self != old)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(node: u64, address: &str, term: u64) -> Leader {
        Leader { node: NodeId(node), address: address.into(), term }
    }

    #[test]
    fn only_a_newer_term_or_a_moved_leader_replaces_a_leader() {
        let now = leader(1, "a:1", 7);
        assert!(now.supersedes(None));
        assert!(leader(2, "b:1", 8).supersedes(Some(&now)));
        assert!(leader(1, "c:1", 7).supersedes(Some(&now)), "the same leader moved");
        assert!(!now.clone().supersedes(Some(&now)), "no news");
        assert!(!leader(2, "b:1", 6).supersedes(Some(&now)), "a deposed leader");
        assert!(!leader(2, "b:1", 7).supersedes(Some(&now)), "a term has one leader");
    }

    #[test]
    fn a_redirect_to_nobody_names_nobody() {
        assert_eq!(Leader::read(None), None);
        assert_eq!(Leader::read(Some(&v1::Leader::default())), None);
    }
}
