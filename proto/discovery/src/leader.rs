use mc_proto::v1;
use mc_types::NodeId;

/// A leader, as a master named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Node id of the leader.
    pub node: NodeId,
    /// Its client address, host:port.
    pub address: String,
    /// Term in which it leads.
    pub term: u64,
}

impl Leader {
    /// Decodes a leader; `None` if the message names none, or its address is empty or its node id malformed.
    #[must_use]
    pub fn read(leader: Option<&v1::Leader>) -> Option<Self> {
        let leader = leader.filter(|leader| !leader.address.is_empty())?;
        let node = NodeId::from_bytes(&leader.node_id)?;
        Some(Self { node, address: leader.address.clone(), term: leader.term })
    }

    /// Returns whether both are the same node in the same term.
    #[must_use]
    pub fn same_term(&self, other: &Self) -> bool {
        self.node == other.node && self.term == other.term
    }

    /// Returns whether this leader replaces the `known` one.
    ///
    /// Terms order leaders: each term has at most one, so an older master's view never leads back to a deposed leader.
    /// Within a term only the address of the leader can change.
    #[must_use]
    pub fn supersedes(&self, known: Option<&Self>) -> bool {
        known.is_none_or(|known| self.term > known.term || (self.same_term(known) && self != known))
    }
}

/// Witness of the news that a master leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The leader itself, just now.
    Leader,
    /// Another master, from what it last heard.
    Other,
}

/// The leader as its clients know it. The newest term wins, and clients give up a leader that stops answering.
///
/// After clients have given a leader up, they accept it again in the same term only if it names itself. Other masters
/// may still name it, because they learn of a leader's death later than its clients do.
#[derive(Debug, Default)]
pub struct LeaderView {
    current: Option<Leader>,
    newest_term: u64,
    given_up: Option<Leader>,
}

impl LeaderView {
    /// Returns the leader, if one is known.
    #[must_use]
    pub fn current(&self) -> Option<&Leader> {
        self.current.as_ref()
    }

    /// Records that `offered` leads; returns whether this changed the leader.
    pub fn offer(&mut self, offered: Leader, source: Witness) -> bool {
        let believed = if offered.term > self.newest_term {
            true
        } else {
            offered.term == self.newest_term
                && self.current.is_none()
                && (source == Witness::Leader
                    || !self.given_up.as_ref().is_some_and(|gone| gone.same_term(&offered)))
        };
        if believed {
            self.newest_term = offered.term;
            self.given_up = None;
            self.current = Some(offered);
        }
        believed
    }

    /// Gives up a leader that does not answer, or says that it does not lead; returns whether it was the current one.
    pub fn give_up(&mut self, leader: &Leader) -> bool {
        match self.current.take() {
            Some(current) if current.same_term(leader) => {
                self.given_up = Some(current);
                true
            }
            other => {
                self.current = other;
                false
            }
        }
    }

    /// Forgets everything, for a change of the cluster: another cluster counts its own terms.
    pub fn forget(&mut self) {
        *self = Self::default();
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
    fn a_redirect_to_no_master_names_no_leader() {
        assert_eq!(Leader::read(None), None);
        assert_eq!(Leader::read(Some(&v1::Leader::default())), None);
    }

    #[test]
    fn the_newest_term_wins_whichever_master_names_it() {
        let mut view = LeaderView::default();
        assert!(view.offer(leader(1, "a:1", 3), Witness::Other));
        let deposed = leader(2, "b:1", 2);
        assert!(!view.offer(deposed, Witness::Leader), "a leader of an older term only believes it leads");
        assert!(!view.offer(leader(1, "a:1", 3), Witness::Leader), "no news");
        assert!(view.offer(leader(2, "b:1", 4), Witness::Other));
        assert_eq!(view.current(), Some(&leader(2, "b:1", 4)));
    }

    #[test]
    fn a_leader_that_was_given_up_comes_back_only_by_itself_or_with_a_newer_term() {
        let mut view = LeaderView::default();
        let first = leader(1, "a:1", 3);
        view.offer(first.clone(), Witness::Other);
        assert!(view.give_up(&first));
        assert!(!view.offer(first.clone(), Witness::Other), "hearsay of the dead");
        assert_eq!(view.current(), None);
        assert!(view.offer(first.clone(), Witness::Leader), "it was only the connection");
        view.give_up(&first);
        assert!(view.offer(leader(2, "b:1", 4), Witness::Other));
        assert!(!view.give_up(&first), "a late report about the old leader is nothing to the new one");
        assert_eq!(view.current(), Some(&leader(2, "b:1", 4)));
    }

    #[test]
    fn another_cluster_starts_with_its_own_terms() {
        let mut view = LeaderView::default();
        view.offer(leader(1, "a:1", 900), Witness::Leader);
        view.forget();
        assert!(view.offer(leader(7, "g:1", 1), Witness::Other));
    }
}
