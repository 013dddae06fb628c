use mc_proto::v1::Leader;
use mc_types::NodeId;

/// A leader and where it was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderAt {
    pub(crate) node: NodeId,
    pub(crate) address: String,
    pub(crate) term: u64,
}

impl LeaderAt {
    /// `None` when the message names none: no address, or an id that is not one.
    pub(crate) fn read(leader: &Leader) -> Option<Self> {
        let node = NodeId::from_bytes(&leader.node_id)?;
        (!leader.address.is_empty()).then(|| Self {
            node,
            address: leader.address.clone(),
            term: leader.term,
        })
    }

    pub(crate) fn same_reign(&self, other: &Self) -> bool {
        self.node == other.node && self.term == other.term
    }
}

/// Source of the news that somebody leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The leader, just now.
    Itself,
    /// Another master, from what it last heard.
    Other,
}

/// The leader, as far as this client knows: the newest term wins.
///
/// A leader that stopped answering is given up; masters that still name it for the same term are not believed, only
/// it itself is, since the others learn of a leader's death later than its clients do.
#[derive(Debug, Default)]
pub(crate) struct LeaderView {
    current: Option<LeaderAt>,
    newest_term: u64,
    given_up: Option<LeaderAt>,
}

impl LeaderView {
    pub(crate) fn current(&self) -> Option<&LeaderAt> {
        self.current.as_ref()
    }

    /// Whether this changed who leads.
    pub(crate) fn offer(&mut self, offered: LeaderAt, source: Source) -> bool {
        let believed = if offered.term > self.newest_term {
            true
        } else {
            offered.term == self.newest_term
                && self.current.is_none()
                && (source == Source::Itself
                    || !self.given_up.as_ref().is_some_and(|gone| gone.same_reign(&offered)))
        };
        if believed {
            self.newest_term = offered.term;
            self.given_up = None;
            self.current = Some(offered);
        }
        believed
    }

    /// The leader does not answer, or says that it is none. Whether this changed who leads.
    pub(crate) fn give_up(&mut self, leader: &LeaderAt) -> bool {
        match self.current.take() {
            Some(current) if current.same_reign(leader) => {
                self.given_up = Some(current);
                true
            }
            other => {
                self.current = other;
                false
            }
        }
    }

    /// Another cluster counts its own terms.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(node: u64, term: u64) -> LeaderAt {
        LeaderAt { node: NodeId(node), address: format!("m{node}:1"), term }
    }

    #[test]
    fn the_newest_term_wins_whoever_names_it() {
        let mut view = LeaderView::default();
        assert!(view.offer(leader(1, 3), Source::Other));
        assert!(
            !view.offer(leader(2, 2), Source::Itself),
            "a leader of an older term only believes it leads"
        );
        assert!(!view.offer(leader(1, 3), Source::Itself), "no news");
        assert!(view.offer(leader(2, 4), Source::Other));
        assert_eq!(view.current(), Some(&leader(2, 4)));
    }

    #[test]
    fn a_leader_given_up_comes_back_only_by_itself_or_with_a_newer_term() {
        let mut view = LeaderView::default();
        view.offer(leader(1, 3), Source::Other);
        assert!(view.give_up(&leader(1, 3)));
        assert!(!view.offer(leader(1, 3), Source::Other), "hearsay of the dead");
        assert_eq!(view.current(), None);
        assert!(view.offer(leader(1, 3), Source::Itself), "it was only the connection");
        view.give_up(&leader(1, 3));
        assert!(view.offer(leader(2, 4), Source::Other));
        assert!(!view.give_up(&leader(1, 3)), "a late report about the old leader is nothing to the new one");
        assert_eq!(view.current(), Some(&leader(2, 4)));
    }

    #[test]
    fn a_new_cluster_starts_its_terms_anew() {
        let mut view = LeaderView::default();
        view.offer(leader(1, 900), Source::Itself);
        view.forget();
        assert!(view.offer(leader(7, 1), Source::Other));
    }
}
