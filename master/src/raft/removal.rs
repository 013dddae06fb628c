//! How a master learns that it was removed from its cluster.
//!
//! Replication to it ends, as a rule, before it is sent the entry that removes it: as far as it knows it is a member, hears
//! no leader any more, and stands for election. Whom it then asks for a vote tells it. It goes on asking: this is what
//! people are told, and nothing else hangs on it. A master that had no vote does not ask, and is not told.

use std::sync::atomic::{AtomicBool, Ordering};

use mc_base::NodeId;
use parking_lot::Mutex;

use super::{LogId, StoredMembership};

/// What this master heard of its own removal.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    /// The latest members without this node that another master told of: the entry that set them.
    told: Mutex<Option<LogId>>,
    /// Members with this node were committed. Without them before, it is a newcomer or has just started.
    was_member: AtomicBool,
}

impl Removal {
    /// A master has answered: the entry that set the members it knows, if this node is not among them.
    pub(crate) fn told(&self, at: Option<LogId>) {
        let mut told = self.told.lock();
        *told = at.max(*told);
    }

    /// The entry that set the latest members known, if this node was removed. What it knows itself: the newest members
    /// in its log, and the newest that are committed.
    pub(crate) fn of(
        &self,
        me: NodeId,
        newest: &StoredMembership,
        committed: &StoredMembership,
    ) -> Option<LogId> {
        let has_me = |members: &StoredMembership| members.membership().get_node(&me).is_some();
        if has_me(committed) {
            self.was_member.store(true, Ordering::Relaxed);
        } else if !has_me(newest) && self.was_member.load(Ordering::Relaxed) {
            return *committed.log_id();
        }
        // Who knows of older members than those with this node may not have heard that it was taken in.
        let member_as_of = if has_me(newest) { newest.log_id() } else { committed.log_id() };
        self.told.lock().filter(|at| Some(at) > member_as_of.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::raft::Membership;

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
        let removal = Removal::default();
        let of = |removal: &Removal, index| {
            let ours = members(index, &[1, 2, 3]);
            removal.of(ME, &ours, &ours)
        };
        assert_eq!(of(&removal, 6), None);
        removal.told(Some(at(7)));
        removal.told(None);
        removal.told(Some(at(6)));
        assert_eq!(of(&removal, 6), Some(at(7)));
        assert_eq!(of(&removal, 8), None, "taken in again, or told by one that lags");
    }

    #[test]
    fn one_that_has_the_entry_in_its_log_is_told_whether_it_is_committed() {
        let removal = Removal::default();
        let (before, without) = (members(5, &[1, 2, 3]), members(6, &[2, 3]));
        assert_eq!(removal.of(ME, &without, &before), None, "it may be lost again");
        removal.told(Some(at(6)));
        assert_eq!(removal.of(ME, &without, &before), Some(at(6)));
        let unheard = Removal::default();
        assert_eq!(unheard.of(ME, &before, &before), None);
        assert_eq!(unheard.of(ME, &without, &without), Some(at(6)), "a leader that removed itself");
    }

    #[test]
    fn a_newcomer_was_not_removed() {
        let others = members(5, &[2, 3]);
        assert_eq!(Removal::default().of(ME, &others, &others), None);
    }
}
