//! Answers of a leader to candidates. They keep its own account of who follows it in step with openraft's.
//!
//! A leased read relies on [`Acks`], and on this node voting for nobody else meanwhile. openraft decides on votes by
//! an account of its own that lacks late answers, so it would grant a vote while the lease here still holds.
//! Therefore a leader that a majority follows, and that can write, refuses candidates before openraft is asked. A
//! leader that can't write is of no use: openraft may vote for another one. Leased reads pause before openraft is
//! asked. They end for good if it grants the vote, because the voters of a new leader do not wait for this lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mc_log::TypeConfig;
use mc_types::NodeId;
use openraft::RaftMetrics;
use tokio::time::Instant;

use super::acks::Acks;
use super::writable::Writing;

/// Whether leased reads are given up, for a moment or for the rest of a term. A check of the lease ends with
/// [`Self::permits`].
///
/// This is enough: when a read passes the check, this node leads by a lease that it has not broken. So the read is
/// ordered before anything that a later leader commits. A vote that is granted later breaks the lease later. All
/// accesses are `SeqCst`: a check sees the pause, or it came before the question to openraft.
#[derive(Debug, Default)]
pub(crate) struct LeaseRevocation {
    /// Latest term in which leases have ended for good, as have those of all earlier terms.
    revoked: AtomicU64,
    /// Number of votes that openraft is deciding on.
    pending: AtomicUsize,
}

impl LeaseRevocation {
    /// Ends leased reads in `term`: leadership is handed over, or a later term has this node's vote.
    pub(crate) fn revoke(&self, term: u64) {
        self.revoked.fetch_max(term, Ordering::SeqCst);
    }

    /// Whether a lease of `term` may be used at this moment.
    pub(crate) fn permits(&self, term: u64) -> bool {
        // The order matters: a vote that was granted before the first load has set `yielded` before the second one.
        self.pending.load(Ordering::SeqCst) == 0 && self.revoked.load(Ordering::SeqCst) < term
    }

    /// Pauses leased reads while openraft decides on a vote for `term`. The caller must not be cancelled before it
    /// knows the outcome.
    pub(crate) fn pause_for_vote(self: &Arc<Self>, term: u64) -> PendingVote {
        self.pending.fetch_add(1, Ordering::SeqCst);
        PendingVote { revocation: self.clone(), term, refused: false }
    }
}

/// A vote that openraft is deciding on. If it is dropped without [`Self::refused`], it counts as granted.
#[derive(Debug)]
pub(crate) struct PendingVote {
    revocation: Arc<LeaseRevocation>,
    term: u64,
    refused: bool,
}

impl PendingVote {
    pub(crate) fn refused(mut self) {
        self.refused = true;
    }
}

impl Drop for PendingVote {
    fn drop(&mut self) {
        if !self.refused {
            self.revocation.revoke(self.term.saturating_sub(1));
        }
        self.revocation.pending.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether this node refuses candidates without asking openraft: it leads, can write, and a majority may still rely
/// on it. `lease` is the whole lease, including the part that reads do not use.
pub(crate) fn refuses_candidates(
    writing: Writing,
    metrics: &RaftMetrics<TypeConfig>,
    me: NodeId,
    acks: &Acks,
    now: Instant,
    lease: Duration,
) -> bool {
    let term = metrics.vote.leader_id.term;
    let followed = || acks.quorum(me, term, metrics.membership_config.membership(), now);
    writing == Writing::Open && followed().is_some_and(|sent| now < sent + lease)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use mc_log::{Membership, StoredMembership, Vote};

    const ME: NodeId = NodeId(1);
    const LEASE: Duration = Duration::from_millis(300);

    #[test]
    fn a_leader_refuses_candidates_while_both_accounts_are_fresh() {
        let now = Instant::now();
        let membership = Membership::new_with_defaults(vec![BTreeSet::from([ME, NodeId(2), NodeId(3)])], []);
        let leading = RaftMetrics {
            vote: Vote::new_committed(7, ME),
            membership_config: Arc::new(StoredMembership::new(None, membership)),
            ..RaftMetrics::new_initial(ME)
        };
        let acks = Acks::default();
        let holds = |writing, at| refuses_candidates(writing, &leading, ME, &acks, at, LEASE);
        assert!(!holds(Writing::Open, now), "nobody follows it, as far as it can tell");
        acks.note(NodeId(2), 7, now);
        assert!(holds(Writing::Open, now));
        assert!(!holds(Writing::Refused, now), "it is followed and can't write");
        assert!(!holds(Writing::NotLeader, now));
        assert!(!holds(Writing::Open, now + LEASE), "it was followed a while ago");
    }

    #[test]
    fn leased_reads_pause_while_a_vote_is_decided_on_and_end_with_a_granted_one() {
        let revocation = Arc::new(LeaseRevocation::default());
        assert!(revocation.permits(7));
        let pending = revocation.pause_for_vote(9);
        assert!(!revocation.permits(7));
        pending.refused();
        assert!(revocation.permits(7));

        drop(revocation.pause_for_vote(9));
        assert!(!revocation.permits(8), "a vote for term 9 ends every lease of an earlier one");
        assert!(revocation.permits(9), "and is a candidate's own, too");
        revocation.revoke(9);
        assert!(!revocation.permits(9));
    }
}
