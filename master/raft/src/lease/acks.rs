//! Time at which a majority last followed this leader, for its lease and its quorum reads.
//!
//! openraft keeps the same record, but not exactly. It knows a pipelined append by the id of its last entry, and an
//! append without entries has the id of the one before it: a late answer to that one also acknowledges the empty one
//! behind it. A leader that was stopped, sent an empty append when it woke up and then read the answers of before its
//! sleep took them for the answer to that: its lease seemed fresh, while another leader had been elected. The
//! simulation found it (docs/simulation.md). Here every answer is paired with its own request, in the order of the
//! stream.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_types::NodeId;
use openraft::raft::{StreamAppendError, StreamAppendResult};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use mc_log::{LogId, Membership, TypeConfig};

/// Time for which a peer's report on itself is valid; each answer to a heartbeat brings a new one.
const SAID_LATELY: Duration = Duration::from_secs(1);

/// For each peer, the time at which the latest message was sent that it accepted from this node as leader of a term.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    latest: Mutex<HashMap<NodeId, Ack>>,
    /// Each peer's latest report on itself.
    reports: Mutex<HashMap<NodeId, TimedReport>>,
    /// Time of each peer's last answer to a heartbeat, and its round trip.
    round_trips: Mutex<HashMap<NodeId, (Instant, Duration)>>,
    /// Latest term that this node led in which no majority answers it any more; 0 if a majority does.
    deserted: AtomicU64,
    /// The last entry that each peer has acknowledged.
    held: Mutex<HashMap<NodeId, Acknowledged>>,
    /// Peer that was last found to have lost an entry that it had acknowledged.
    lost: watch::Sender<Option<LostEntries>>,
    noted: Notify,
}

/// The last entry that a peer has acknowledged to the leader of a term.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    term: u64,
    last: LogId,
    /// When the acknowledgement was read.
    since: Instant,
}

/// A peer that no longer has an entry that it acknowledged in the same term.
///
/// openraft counts the entry as held for the rest of the term, unless it is told to allow such a loss. It sends the peer
/// nothing that the peer could take, and with another voter down it never has a majority again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostEntries {
    pub(crate) peer: NodeId,
    pub(crate) term: u64,
    /// The last entry that it has acknowledged.
    pub(crate) acknowledged: LogId,
    /// The entry that it was asked for and does not have.
    pub(crate) missing: LogId,
}

impl fmt::Display for LostEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, acknowledged, missing, .. } = self;
        write!(
            f,
            "node {peer} does not have log entry {missing}, although it acknowledged all up to {acknowledged}: its log has \
             lost entries. That follows from a loss of power with --log-sync none, or from a disk that loses what was synced"
        )
    }
}

#[derive(Clone, Copy, Debug)]
struct Ack {
    term: u64,
    sent: Instant,
}

/// A peer's report on itself, in its answer to a heartbeat.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerReport {
    /// Duration of a sync of its log, if there was one lately.
    pub(crate) sync: Option<Duration>,
    /// Whether its disk is nearly full.
    pub(crate) nearly_full: bool,
    /// Whether it can open files and connections. Older builds do not say so.
    pub(crate) has_descriptors: bool,
    /// Whether it asks the leader to take its vote.
    pub(crate) leaving: bool,
}

#[derive(Clone, Copy, Debug)]
struct TimedReport {
    at: Instant,
    report: PeerReport,
}

impl Acks {
    /// Records that `peer` accepted a message that was sent at `sent` in `term`.
    pub(crate) fn note(&self, peer: NodeId, term: u64, sent: Instant) {
        let mut latest = self.latest.lock();
        let ack = latest.entry(peer).or_insert(Ack { term, sent });
        if (term, sent) > (ack.term, ack.sent) {
            *ack = Ack { term, sent };
        }
        drop(latest);
        self.noted.notify_waiters();
    }

    /// Records an answer of `peer` to an append. With a newer term in it, the append was not accepted.
    ///
    /// # Errors
    /// [`LostEntries`]: the answer proves that the peer has lost entries, and must not reach openraft before openraft
    /// allows the loss ([`Self::forget`]).
    pub(crate) fn answered(
        &self,
        peer: NodeId,
        term: u64,
        sent: Instant,
        result: &StreamAppendResult<TypeConfig>,
    ) -> Result<(), LostEntries> {
        if !matches!(result, Err(StreamAppendError::HigherVote(_))) {
            self.note(peer, term, sent);
        }
        match result {
            Ok(Some(last)) => self.holds(peer, term, *last),
            Err(StreamAppendError::Conflict(missing)) => {
                // An answer to a request from before the acknowledgement may come late, over another connection.
                let held = self.held.lock().get(&peer).copied();
                let lost = held.filter(|held| {
                    held.term == term && missing.index <= held.last.index && held.since < sent
                });
                if let Some(Acknowledged { last: acknowledged, .. }) = lost {
                    let lost = LostEntries { peer, term, acknowledged, missing: *missing };
                    // Also if it is known: the same peer may lose the same entries twice, and two peers overwrite each
                    // other here. Each answer until the loss is forgotten brings it again.
                    self.lost.send_replace(Some(lost));
                    return Err(lost);
                }
            }
            Ok(None) | Err(StreamAppendError::HigherVote(_)) => {}
        }
        Ok(())
    }

    /// Records that `peer` has acknowledged all entries up to `last` to the leader of `term`.
    pub(crate) fn holds(&self, peer: NodeId, term: u64, last: LogId) {
        let held = Acknowledged { term, last, since: Instant::now() };
        let mut all = self.held.lock();
        let known = all.entry(peer).or_insert(held);
        if (term, last) > (known.term, known.last) {
            *known = held;
        }
    }

    /// Forgets what the peer has acknowledged, after openraft was told to allow the loss: the peer's next conflict
    /// reaches it.
    pub(crate) fn forget(&self, lost: &LostEntries) {
        let mut all = self.held.lock();
        if all.get(&lost.peer).is_some_and(|held| held.term == lost.term) {
            all.remove(&lost.peer);
        }
    }

    /// Follows the peers that are found to have lost entries.
    pub(crate) fn losses(&self) -> watch::Receiver<Option<LostEntries>> {
        self.lost.subscribe()
    }

    /// Records that `peer` answered a heartbeat that was sent at `sent`.
    pub(crate) fn note_round_trip(&self, peer: NodeId, sent: Instant) {
        let now = Instant::now();
        self.round_trips.lock().insert(peer, (now, now.duration_since(sent)));
    }

    /// Returns the round trip of `peer`'s last answer to a heartbeat, if it came in the last second.
    pub(crate) fn round_trip(&self, peer: NodeId) -> Option<Duration> {
        let (at, round_trip) = self.round_trips.lock().get(&peer).copied()?;
        (at.elapsed() < SAID_LATELY).then_some(round_trip)
    }

    /// Returns the time in which a majority of `voters` answers a heartbeat of `me`, by the last answers.
    pub(crate) fn round_trip_of_majority(&self, me: NodeId, voters: &BTreeSet<NodeId>) -> Option<Duration> {
        let own = |voter: &NodeId| (*voter == me).then_some(Duration::ZERO);
        let mut answered: Vec<_> =
            voters.iter().filter_map(|voter| own(voter).or_else(|| self.round_trip(*voter))).collect();
        answered.sort_unstable();
        answered.get(voters.len() / 2).copied()
    }

    /// Records `peer`'s report on itself.
    pub(crate) fn note_report(&self, peer: NodeId, report: PeerReport) {
        self.reports.lock().insert(peer, TimedReport { at: Instant::now(), report });
    }

    /// Returns `peer`'s report on itself, if it came in the last second.
    pub(crate) fn report(&self, peer: NodeId) -> Option<PeerReport> {
        lately(&self.reports.lock(), peer)
    }

    /// The voters that said in the last second that their disks are nearly full, if those that said otherwise are no
    /// majority with `me`. As long as one disk is full, a voter that reports nothing counts as full too: its disk may
    /// be the one that every entry still needs for a majority.
    pub(crate) fn nearly_full(&self, me: NodeId, membership: &Membership) -> Vec<NodeId> {
        let reports = self.reports.lock();
        let said =
            |voter: NodeId| lately(&reports, voter).filter(|_| voter != me).map(|report| report.nearly_full);
        let full: Vec<_> = membership.voter_ids().filter(|voter| said(*voter) == Some(true)).collect();
        if full.is_empty() {
            return full;
        }
        let has_room = |voter: &&NodeId| **voter == me || said(**voter) == Some(false);
        let majority = |voters: &BTreeSet<NodeId>| voters.iter().filter(has_room).count() > voters.len() / 2;
        if membership.get_joint_config().iter().all(majority) { Vec::new() } else { full }
    }

    /// Returns the send time of the latest message that `peer` has answered in `term`.
    pub(crate) fn latest(&self, peer: NodeId, term: u64) -> Option<Instant> {
        self.latest.lock().get(&peer).filter(|ack| ack.term == term).map(|ack| ack.sent)
    }

    /// Returns the latest time such that a majority accepted a message that `me`, the leader of `term`, sent at or
    /// after it. `me` counts as having accepted one at `now`. While the membership changes, this takes a majority of
    /// the old voters and one of the new voters.
    pub(crate) fn quorum(
        &self,
        me: NodeId,
        term: u64,
        membership: &Membership,
        now: Instant,
    ) -> Option<Instant> {
        let of_majority = |voters: &BTreeSet<NodeId>| self.majority(me, term, voters, now);
        // `None` is less than any time, and no voters at all make no leader.
        membership.get_joint_config().iter().map(of_majority).min().flatten()
    }

    /// Like [`Self::quorum`], for a majority of `voters`.
    pub(crate) fn majority(
        &self,
        me: NodeId,
        term: u64,
        voters: &BTreeSet<NodeId>,
        now: Instant,
    ) -> Option<Instant> {
        let latest = self.latest.lock();
        let sent = |voter: &NodeId| {
            let ack = latest.get(voter).filter(|ack| ack.term == term);
            if *voter == me { Some(now) } else { ack.map(|ack| ack.sent) }
        };
        let mut times: Vec<_> = voters.iter().map(sent).collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        times.get(voters.len() / 2).copied().flatten()
    }

    /// Records whether a majority still answers this node, the leader of `term`.
    pub(crate) fn note_deserted(&self, term: u64, deserted: bool) {
        self.deserted.store(if deserted { term } else { 0 }, Ordering::Relaxed);
    }

    /// Whether no majority answers this node any more as the leader of `term`.
    pub(crate) fn is_deserted(&self, term: u64) -> bool {
        self.deserted.load(Ordering::Relaxed) == term
    }

    /// Returns when `reached` returns true. It is called now and after each record.
    pub(crate) async fn until(&self, mut reached: impl FnMut() -> bool) {
        loop {
            // Subscribed before the check, so that no record in between is missed.
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

fn lately(reports: &HashMap<NodeId, TimedReport>, peer: NodeId) -> Option<PeerReport> {
    reports.get(&peer).filter(|reported| reported.at.elapsed() < SAID_LATELY).map(|reported| reported.report)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ME: NodeId = NodeId(1);

    fn membership(configs: &[&[u64]]) -> Membership {
        let voters = configs.iter().map(|voters| voters.iter().copied().map(NodeId).collect()).collect();
        let nodes: BTreeMap<_, _> =
            (1..=9).map(|node| (NodeId(node), mc_log::MasterNode::default())).collect();
        Membership::new(voters, nodes).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn full_disks_count_while_no_majority_says_that_it_has_room() {
        let acks = Acks::default();
        let full = |configs: &[&[u64]]| acks.nearly_full(ME, &membership(configs));
        let note = |node, nearly_full| {
            acks.note_report(NodeId(node), PeerReport { nearly_full, ..PeerReport::default() });
        };
        assert!(full(&[&[1, 2, 3]]).is_empty(), "nobody has said anything yet");
        note(2, true);
        note(3, false);
        assert!(full(&[&[1, 2, 3]]).is_empty(), "two of three have room");
        assert_eq!(full(&[&[1, 2]]), [NodeId(2)]);
        assert_eq!(full(&[&[1, 2, 4]]), [NodeId(2)], "one of three is silent");
        assert_eq!(full(&[&[1, 2, 3], &[1, 2]]), [NodeId(2)], "both majorities are needed");
        note(3, true);
        assert_eq!(full(&[&[1, 2, 3]]), [NodeId(2), NodeId(3)]);
        assert!(full(&[&[1, 4, 5]]).is_empty(), "they are no voters");

        tokio::time::advance(SAID_LATELY).await;
        assert!(full(&[&[1, 2, 3]]).is_empty(), "that was a while ago");
    }

    #[tokio::test(start_paused = true)]
    async fn descriptors_are_there_while_a_peer_says_so() {
        let acks = Acks::default();
        let has = |node| acks.report(NodeId(node)).is_some_and(|report| report.has_descriptors);
        let note = |has_descriptors| {
            acks.note_report(NodeId(2), PeerReport { has_descriptors, ..PeerReport::default() });
        };
        assert!(!has(2), "an older build does not say");
        note(true);
        assert!(has(2) && !has(3));
        note(false);
        assert!(!has(2));
        note(true);
        tokio::time::advance(SAID_LATELY).await;
        assert!(!has(2), "that was a while ago");
    }

    #[tokio::test(start_paused = true)]
    async fn the_round_trip_of_a_majority_is_that_of_its_slowest_member() {
        let acks = Acks::default();
        let voters = |ids: &[u64]| ids.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        let of = |ids: &[u64]| acks.round_trip_of_majority(ME, &voters(ids));
        assert_eq!((of(&[1]), of(&[1, 2, 3])), (Some(Duration::ZERO), None));
        let sent = Instant::now();
        tokio::time::advance(Duration::from_millis(10)).await;
        acks.note_round_trip(NodeId(2), sent);
        tokio::time::advance(Duration::from_millis(20)).await;
        acks.note_round_trip(NodeId(3), sent);
        assert_eq!(of(&[1, 2, 3]), Some(Duration::from_millis(10)));
        assert_eq!(of(&[1, 2, 3, 4, 5]), Some(Duration::from_millis(30)));
        tokio::time::advance(SAID_LATELY).await;
        assert_eq!(of(&[1, 2, 3]), None, "that was a while ago");
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

    #[tokio::test(start_paused = true)]
    async fn a_peer_has_lost_entries_if_it_lacks_what_it_acknowledged_before_it_was_asked() {
        const PEER: NodeId = NodeId(2);
        let acks = Acks::default();
        let id = |index| LogId::new_term_index(7, index);
        let conflict = |index| Err(StreamAppendError::Conflict(id(index)));
        let early = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(acks.answered(PEER, 7, early, &conflict(9)), Ok(()), "it has acknowledged nothing");
        assert_eq!(acks.answered(PEER, 7, early, &Ok(Some(id(5)))), Ok(()));
        tokio::time::advance(Duration::from_millis(1)).await;
        let later = Instant::now();
        assert_eq!(acks.answered(PEER, 7, early, &conflict(5)), Ok(()), "a late answer");
        assert_eq!(acks.answered(PEER, 7, later, &conflict(6)), Ok(()), "it never had that");
        assert_eq!(acks.answered(NodeId(3), 7, later, &conflict(5)), Ok(()), "another peer");
        assert_eq!(acks.answered(PEER, 8, later, &conflict(5)), Ok(()), "another term");
        let lost = LostEntries { peer: PEER, term: 7, acknowledged: id(5), missing: id(4) };
        assert_eq!(acks.answered(PEER, 7, later, &conflict(4)), Err(lost));
        let mut losses = acks.losses();
        assert_eq!(*losses.borrow_and_update(), Some(lost));
        assert_eq!(acks.answered(PEER, 7, later, &conflict(4)), Err(lost));
        assert!(losses.has_changed().unwrap(), "until it is forgotten, each answer is acted on");
        acks.forget(&LostEntries { term: 6, ..lost });
        assert_eq!(acks.answered(PEER, 7, later, &conflict(4)), Err(lost), "another term's loss was allowed");
        acks.forget(&lost);
        assert_eq!(acks.answered(PEER, 7, later, &conflict(4)), Ok(()), "openraft allows it");
        assert_eq!(acks.answered(PEER, 7, later, &Ok(Some(id(5)))), Ok(()), "it has them again");
        tokio::time::advance(Duration::from_millis(1)).await;
        let later = Instant::now();
        assert_eq!(acks.answered(PEER, 7, later, &conflict(4)), Err(lost), "it has lost them twice");
        acks.holds(PEER, 8, LogId::new_term_index(3, 2));
        assert_eq!(acks.answered(PEER, 7, later, &conflict(4)), Ok(()), "of a term that is over");
    }
}
