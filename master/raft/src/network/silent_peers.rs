//! Pauses of a leader's messages to a peer that does not answer.
//!
//! If messages get through in one direction only, followers go on hearing a leader that hears none of them. Such a
//! leader can commit nothing and answers no reads, but each of its messages postpones their election. So a peer that
//! does not answer is left alone long enough to stand for election, then tried again for a moment. This repeats until
//! an answer arrives, even a late one: a peer that was only slow is not left alone any longer. If the other peers answer
//! the leader, its silence does that one peer no harm, because its pre-votes are refused.
//!
//! The pauses of all such peers coincide. A voter votes for no other one while it has heard the leader lately, so of two
//! followers that are left alone at different times neither could be elected.

use std::collections::HashMap;
use std::time::Duration;

use mc_types::NodeId;
use openraft::errors::Unreachable;
use parking_lot::Mutex;
use tokio::time::Instant;

use mc_log::TypeConfig;

/// The peers that do not answer, and when they are sent messages.
#[derive(Debug)]
pub(crate) struct SilentPeers {
    /// Time for which a silent peer still gets messages in each cycle.
    send_for: Duration,
    /// Time for which it gets no messages after that.
    pause_for: Duration,
    silent: Mutex<Silent>,
}

#[derive(Debug, Default)]
struct Silent {
    /// When the cycles of messages and pauses began: when the first of these peers was found not to answer.
    since: Option<Instant>,
    /// Peers whose latest calls got no answer.
    peers: HashMap<NodeId, SilentSince>,
}

/// Consecutive calls to one peer that got no answer.
#[derive(Clone, Copy, Debug)]
struct SilentSince {
    first: Instant,
    last: Instant,
}

impl SilentPeers {
    /// Sends for half of a maximum election timeout, a few heartbeats, and pauses for two: a voter stands when the
    /// lease of the leader that it heard last is over, which takes one, and its own timeout, which takes one at most.
    pub(crate) fn new(election_max: Duration) -> Self {
        Self { send_for: election_max / 2, pause_for: election_max * 2, silent: Mutex::default() }
    }

    fn cycle(&self) -> Duration {
        self.send_for + self.pause_for
    }

    /// Records that `peer` answered or called, so its messages arrive.
    pub(crate) fn answered(&self, peer: NodeId) {
        self.silent.lock().peers.remove(&peer);
    }

    /// Records that a call to `peer` was sent, as far as this side can tell, and got no answer in time.
    pub(crate) fn no_answer(&self, peer: NodeId) {
        let now = Instant::now();
        let mut silent = self.silent.lock();
        // Between two terms that this node leads, nothing is sent.
        silent.peers.retain(|_, calls| now - calls.last <= self.cycle());
        if silent.peers.is_empty() {
            silent.since = Some(now);
        }
        silent.peers.entry(peer).or_insert(SilentSince { first: now, last: now }).last = now;
    }

    /// Checks whether to send messages to `peer` now. One that has just ceased to answer is sent messages for one full
    /// period, whatever the period of the others is: it may only be slow, and its late answer ends this.
    ///
    /// # Errors
    /// openraft's error for a peer that is to be tried again later.
    pub(crate) fn check(&self, peer: NodeId) -> Result<(), Unreachable<TypeConfig>> {
        let (since, calls) = {
            let silent = self.silent.lock();
            (silent.since, silent.peers.get(&peer).copied())
        };
        let (Some(since), Some(SilentSince { first, last })) = (since, calls) else { return Ok(()) };
        let cycle = self.cycle();
        let into = since.elapsed().as_nanos().checked_rem(cycle.as_nanos()).unwrap_or(0);
        if last.elapsed() > cycle || first.elapsed() < self.send_for || into < self.send_for.as_nanos() {
            return Ok(());
        }
        Err(Unreachable::from_string(format!("node {peer} does not answer and is left alone for a moment")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(2);

    fn silent_peers() -> SilentPeers {
        SilentPeers::new(Duration::from_millis(300))
    }

    async fn pass(ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_hears_nothing_until_it_can_have_stood() {
        let silent_peers = silent_peers();
        assert!(silent_peers.check(PEER).is_ok());
        let mut talks = String::new();
        for _ in 0..30 {
            match silent_peers.check(PEER) {
                Ok(()) => {
                    silent_peers.no_answer(PEER);
                    talks.push('!');
                }
                Err(_) => talks.push('.'),
            }
            pass(50).await;
        }
        assert_eq!(talks, "!!!............!!!............");
        assert!(silent_peers.check(NodeId(3)).is_ok(), "the others hear it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_it_and_so_does_time() {
        let silent_peers = silent_peers();
        silent_peers.no_answer(PEER);
        pass(300).await;
        assert!(silent_peers.check(PEER).is_err());
        silent_peers.answered(PEER);
        assert!(silent_peers.check(PEER).is_ok());

        silent_peers.no_answer(PEER);
        pass(1_300).await;
        assert!(silent_peers.check(PEER).is_ok(), "an older term's");
        silent_peers.no_answer(PEER);
        pass(100).await;
        assert!(silent_peers.check(PEER).is_ok(), "it counts from the new one's first");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_has_just_ceased_to_answer_is_sent_messages_while_others_are_left_alone() {
        let (silent_peers, other) = (silent_peers(), NodeId(3));
        silent_peers.no_answer(PEER);
        pass(300).await;
        silent_peers.no_answer(other);
        assert!(silent_peers.check(PEER).is_err());
        pass(149).await;
        assert!(silent_peers.check(other).is_ok(), "it may only be slow");
        pass(1).await;
        assert!(silent_peers.check(other).is_err(), "it is left alone with the others from here on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_ceases_to_answer_after_all_others_answered_is_left_alone_for_a_whole_pause() {
        let silent_peers = silent_peers();
        silent_peers.no_answer(PEER);
        pass(300).await;
        silent_peers.answered(PEER);
        silent_peers.no_answer(PEER);
        pass(150).await;
        for _ in 0..12 {
            assert!(silent_peers.check(PEER).is_err());
            pass(50).await;
        }
        assert!(silent_peers.check(PEER).is_ok(), "it is tried again");
    }

    /// A follower stands once it has heard nothing for one maximum election timeout, and its own timeout is over; the
    /// other one votes for it if it has heard nothing for as long. Whenever the second link is cut, both hear nothing
    /// at once for two maximum timeouts.
    #[tokio::test(start_paused = true)]
    async fn followers_that_are_cut_off_one_after_the_other_are_left_alone_together() {
        const STEP: u64 = 5;
        for apart in (0..1_500).step_by(25) {
            let (silent_peers, other) = (silent_peers(), NodeId(3));
            let (mut both_quiet, mut longest) = (0, 0);
            for now in (0..6_000).step_by(5) {
                let mut pause_for = true;
                for (peer, cut_at) in [(PEER, 0), (other, apart)] {
                    let sent = silent_peers.check(peer).is_ok();
                    pause_for &= !sent;
                    if sent && now >= cut_at {
                        silent_peers.no_answer(peer);
                    }
                }
                both_quiet = if pause_for { both_quiet + STEP } else { 0 };
                longest = longest.max(both_quiet);
                pass(STEP).await;
            }
            assert!(longest >= 590, "cut off {apart} ms apart, both heard nothing for {longest} ms at most");
        }
    }
}
