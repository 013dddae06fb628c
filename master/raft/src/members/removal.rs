//! Discovery by a master that it was removed from its cluster.
//!
//! Usually replication to a master ends before it is sent the entry that removes it. It then takes itself for a
//! member, hears no leader any more, and stands for election. The masters that it asks for a vote tell it about the
//! removal. It keeps asking: the answer is only shown to people. A master without a vote does not ask, and is not
//! told.

use mc_types::NodeId;
use parking_lot::Mutex;

use mc_log::{LogId, StoredMembership};

/// News of this master's own removal: for the latest members without this node that another master reported, the
/// entry that set them.
#[derive(Debug, Default)]
pub(crate) struct RemovalNotice(Mutex<Option<LogId>>);

impl RemovalNotice {
    /// Notes a master's answer: the entry that set the members it knows, if this node is not among them.
    pub(crate) fn note(&self, at: Option<LogId>) {
        let mut latest = self.0.lock();
        *latest = at.max(*latest);
    }

    /// Returns the entry that set the latest known members, if this node was removed. This node knows the newest
    /// members in its log, the newest committed ones, and whether it was among committed ones since it started.
    pub(crate) fn of(
        &self,
        me: NodeId,
        newest: &StoredMembership,
        committed: &StoredMembership,
        was_member: bool,
    ) -> Option<LogId> {
        if !has(newest, me) && !has(committed, me) && was_member {
            return *committed.log_id();
        }
        // A master that knows only older members than those with this node may not have heard that this node was
        // added.
        let member_as_of = if has(newest, me) { newest.log_id() } else { committed.log_id() };
        self.0.lock().filter(|at| Some(at) > member_as_of.as_ref())
    }
}

/// Whether `node` is a member, with a vote or without.
pub(crate) fn has(members: &StoredMembership, node: NodeId) -> bool {
    members.membership().get_node(&node).is_some()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use mc_log::Membership;

    const ME: NodeId = NodeId(1);

    fn at(index: u64) -> LogId {
        LogId::new_term_index(2, index)
    }

    fn members(index: u64, voters: &[u64]) -> StoredMembership {
        let voters: BTreeSet<_> = voters.iter().map(|id| NodeId(*id)).collect();
        StoredMembership::new(Some(at(index)), Membership::new_with_defaults(vec![voters], []))
    }

    #[test]
    fn only_newer_members_than_one_knows_remove_one() {
        let removal = RemovalNotice::default();
        let of = |removal: &RemovalNotice, index| {
            let ours = members(index, &[1, 2, 3]);
            removal.of(ME, &ours, &ours, true)
        };
        assert_eq!(of(&removal, 6), None);
        removal.note(Some(at(7)));
        removal.note(None);
        removal.note(Some(at(6)));
        assert_eq!(of(&removal, 6), Some(at(7)));
        assert_eq!(of(&removal, 8), None, "taken in again, or told by one that lags");
    }

    #[test]
    fn one_that_has_the_entry_in_its_log_is_told_whether_it_is_committed() {
        let removal = RemovalNotice::default();
        let (before, without) = (members(5, &[1, 2, 3]), members(6, &[2, 3]));
        assert_eq!(removal.of(ME, &without, &before, true), None, "it may be lost again");
        removal.note(Some(at(6)));
        assert_eq!(removal.of(ME, &without, &before, true), Some(at(6)));
        let unheard = RemovalNotice::default();
        assert_eq!(unheard.of(ME, &before, &before, true), None);
        assert_eq!(unheard.of(ME, &without, &without, true), Some(at(6)), "a leader that removed itself");
    }

    #[test]
    fn a_newcomer_was_not_removed() {
        let others = members(5, &[2, 3]);
        assert_eq!(RemovalNotice::default().of(ME, &others, &others, false), None);
    }
}
