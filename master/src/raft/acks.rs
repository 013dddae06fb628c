//! When a majority last followed this leader: what its lease and its quorum reads rest on.
//!
//! openraft keeps the same account, and its is not exact. It knows a pipelined append by the id of its last entry, and an
//! append without entries has the id of the one before it: a late answer to that one also acknowledges the empty one
//! behind it. A leader that was stopped, sent an empty append when it woke up and then read the answers of before its
//! sleep took them for the answer to that: its lease seemed fresh, while another leader had been elected. The simulation
//! found it (docs/simulation.md). Here every answer is paired with its own request, in the order of the stream.

use std::collections::HashMap;
use std::time::Duration;

use mc_base::NodeId;
use openraft::raft::{StreamAppendError, StreamAppendResult};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Membership, TypeConfig};

/// What a peer said of itself holds for so long; it says it with every heartbeat's answer.
const SAID_LATELY: Duration = Duration::from_secs(1);

/// For each peer, when the latest of the messages was sent that it took from this node as the leader of a term.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    latest: Mutex<HashMap<NodeId, Ack>>,
    /// What a sync of each peer's log takes, and when it said so.
    syncs: Mutex<HashMap<NodeId, (Instant, Duration)>>,
    noted: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Ack {
    term: u64,
    sent: Instant,
}

impl Acks {
    /// `peer` has taken what was sent at `sent`, or before that, in `term`.
    pub(super) fn note(&self, peer: NodeId, term: u64, sent: Instant) {
        let mut latest = self.latest.lock();
        let ack = latest.entry(peer).or_insert(Ack { term, sent });
        if (term, sent) > (ack.term, ack.sent) {
            *ack = Ack { term, sent };
        }
        drop(latest);
        self.noted.notify_waiters();
    }

    /// `peer` has answered an append; one that names a newer term was not taken.
    pub(crate) fn answered(
        &self,
        peer: NodeId,
        term: u64,
        sent: Instant,
        result: &StreamAppendResult<TypeConfig>,
    ) {
        if !matches!(result, Err(StreamAppendError::HigherVote(_))) {
            self.note(peer, term, sent);
        }
    }

    /// `peer` has said what a sync of its log takes, if it had any lately.
    pub(super) fn note_sync(&self, peer: NodeId, us: Option<u64>) {
        let mut syncs = self.syncs.lock();
        match us {
            Some(us) => drop(syncs.insert(peer, (Instant::now(), Duration::from_micros(us)))),
            None => drop(syncs.remove(&peer)),
        }
    }

    /// What a sync of `peer`'s log takes, as it said in the last second.
    pub(super) fn sync(&self, peer: NodeId) -> Option<Duration> {
        let (said, takes) = self.syncs.lock().get(&peer).copied()?;
        (said.elapsed() < SAID_LATELY).then_some(takes)
    }

    /// When the latest of the messages was sent that `peer` has answered in `term`.
    pub(super) fn latest(&self, peer: NodeId, term: u64) -> Option<Instant> {
        self.latest.lock().get(&peer).filter(|ack| ack.term == term).map(|ack| ack.sent)
    }

    /// The latest time at or after which a majority was sent something that it took from `me`, the leader of `term`, who
    /// agrees with itself at `now`. While the membership changes, a majority of the old and of the new voters.
    pub(crate) fn quorum(
        &self,
        me: NodeId,
        term: u64,
        membership: &Membership,
        now: Instant,
    ) -> Option<Instant> {
        let latest = self.latest.lock();
        let sent = |voter: &NodeId| {
            let ack = latest.get(voter).filter(|ack| ack.term == term);
            if *voter == me { Some(now) } else { ack.map(|ack| ack.sent) }
        };
        let of_majority = |voters: &std::collections::BTreeSet<NodeId>| {
            let mut times: Vec<_> = voters.iter().map(sent).collect();
            times.sort_unstable_by(|a, b| b.cmp(a));
            times.get(voters.len() / 2).copied().flatten()
        };
        // `None` is less than any time, and no voters at all make no leader.
        membership.get_joint_config().iter().map(of_majority).min().flatten()
    }

    /// Returns when `reached` says so, which is asked now and after everything that is noted.
    pub(crate) async fn until(&self, mut reached: impl FnMut() -> bool) {
        loop {
            // Listens before it asks: what is noted in between is not missed.
            let noted = self.noted.notified();
            tokio::pin!(noted);
            noted.as_mut().enable();
            if reached() {
                return;
            }
            noted.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ME: NodeId = NodeId(1);

    fn membership(configs: &[&[u64]]) -> Membership {
        let voters = configs.iter().map(|voters| voters.iter().copied().map(NodeId).collect()).collect();
        let nodes: BTreeMap<_, _> =
            (1..=9).map(|node| (NodeId(node), super::super::MasterNode::default())).collect();
        Membership::new(voters, nodes).unwrap()
    }

    #[test]
    fn the_majority_s_oldest_message_counts() {
        let acks = Acks::default();
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let quorum = |configs: &[&[u64]]| acks.quorum(ME, 7, &membership(configs), at(100));
        assert_eq!(quorum(&[&[1]]), Some(at(100)), "a single voter agrees with itself");
        assert_eq!(quorum(&[&[1, 2, 3]]), None);
        acks.note(NodeId(2), 7, at(10));
        assert_eq!(quorum(&[&[1, 2, 3]]), Some(at(10)));
        acks.note(NodeId(3), 7, at(30));
        acks.note(NodeId(2), 7, at(5));
        assert_eq!(quorum(&[&[1, 2, 3]]), Some(at(30)));
        assert_eq!(quorum(&[&[1, 2, 3, 4, 5]]), Some(at(10)), "an older message changes nothing");
        assert_eq!(quorum(&[&[1, 2, 3], &[1, 4, 5]]), None, "both majorities are needed");
        assert_eq!(quorum(&[&[2, 3, 4]]), Some(at(10)), "a leader that is no voter does not count itself");
        acks.note(NodeId(3), 6, at(90));
        assert_eq!(quorum(&[&[1, 2, 3]]), Some(at(30)), "nor is one of another term");
        acks.note(NodeId(3), 8, at(90));
        assert_eq!(quorum(&[&[1, 2, 3]]), Some(at(10)));
    }
}
