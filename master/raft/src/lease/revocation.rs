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
pub(crate) struct Ballots {
    /// Leases of this term and of earlier ones are over.
    yielded: AtomicU64,
    /// Number of votes that openraft is deciding on.
    open: AtomicUsize,
}

impl Ballots {
    /// Ends leased reads in `term`: leadership is handed over, or a later term has this node's vote.
    pub(crate) fn yield_term(&self, term: u64) {
        self.yielded.fetch_max(term, Ordering::SeqCst);
    }

    /// Whether a lease of `term` may be used at this moment.
    pub(crate) fn permits(&self, term: u64) -> bool {
        // The order matters: a question that is over by the first load has left its mark before the second.
        self.open.load(Ordering::SeqCst) == 0 && self.yielded.load(Ordering::SeqCst) < term
    }

    /// Pauses leased reads while openraft decides on a vote for `term`. The caller must not be cancelled before it
    /// knows the outcome.
    pub(crate) fn ask(self: &Arc<Self>, term: u64) -> Asked {
        self.open.fetch_add(1, Ordering::SeqCst);
        Asked { ballots: self.clone(), term, refused: false }
    }
}

/// A vote that openraft is deciding on. If it is dropped without [`Self::refused`], it counts as granted.
#[derive(Debug)]
pub(crate) struct Asked {
    ballots: Arc<Ballots>,
    term: u64,
    refused: bool,
}

impl Asked {
    pub(crate) fn refused(mut self) {
        self.refused = true;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.refused {
            self.ballots.yield_term(self.term.saturating_sub(1));
        }
        self.ballots.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether this node refuses candidates without asking openraft: it leads, can write, and a majority may still rely
/// on it. `lease` is the whole lease, including the part that reads do not use.
pub(crate) fn holds_office(
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
        let holds = |writing, at| holds_office(writing, &leading, ME, &acks, at, LEASE);
        assert!(!holds(Writing::Open, now), "nobody follows it, as far as it can tell");
        acks.note(NodeId(2), 7, now);
        assert!(holds(Writing::Open, now));
        assert!(!holds(Writing::Refused, now), "it is followed and can't write");
        assert!(!holds(Writing::NotLeader, now));
        assert!(!holds(Writing::Open, now + LEASE), "it was followed a while ago");
    }

    #[test]
    fn leased_reads_pause_while_a_vote_is_decided_on_and_end_with_a_granted_one() {
        let ballots = Arc::new(Ballots::default());
        assert!(ballots.permits(7));
        let asked = ballots.ask(9);
        assert!(!ballots.permits(7));
        asked.refused();
        assert!(ballots.permits(7));

        drop(ballots.ask(9));
        assert!(!ballots.permits(8), "a vote for term 9 ends every lease of an earlier one");
        assert!(ballots.permits(9), "and is a candidate's own, too");
        ballots.yield_term(9);
        assert!(!ballots.permits(9));
    }
}
