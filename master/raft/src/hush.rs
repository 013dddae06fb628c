//! Pauses of a leader's messages to a peer that does not answer.
//!
//! If messages get through in one direction only, followers go on hearing a leader that hears none of them. Such a
//! leader can commit nothing and answers no reads, but each of its messages postpones their election. So a peer that
//! does not answer is left alone long enough to stand for election, then tried again for a moment. This repeats until
//! an answer arrives, even a late one: a peer that was only slow is not left alone any longer. If the other peers answer
//! the leader, its silence does that one peer no harm, because its pre-votes are refused.

use std::collections::HashMap;
use std::time::Duration;

use mc_types::NodeId;
use openraft::errors::Unreachable;
use parking_lot::Mutex;
use tokio::time::Instant;

use mc_log::TypeConfig;

#[derive(Debug)]
pub(crate) struct Hush {
    /// Time for which a peer that does not answer is sent messages.
    talk: Duration,
    /// Time for which it is sent nothing after that.
    quiet: Duration,
    in_vain: Mutex<HashMap<NodeId, InVain>>,
}

/// Consecutive calls to one peer that got no answer.
#[derive(Clone, Copy, Debug)]
struct InVain {
    since: Instant,
    last: Instant,
}

impl Hush {
    /// Talks for half of a maximum election timeout, a few heartbeats, and is quiet for two: a voter stands when the
    /// lease of the leader that it heard last is over, which takes one, and its own timeout, which takes one at most.
    pub(crate) fn new(election_max: Duration) -> Self {
        Self { talk: election_max / 2, quiet: election_max * 2, in_vain: Mutex::default() }
    }

    fn cycle(&self) -> Duration {
        self.talk + self.quiet
    }

    /// Records that `peer` answered or called, so its messages arrive.
    pub(crate) fn answered(&self, peer: NodeId) {
        self.in_vain.lock().remove(&peer);
    }

    /// Records that a call to `peer` was sent, as far as this side can tell, and got no answer in time.
    pub(crate) fn no_answer(&self, peer: NodeId) {
        let now = Instant::now();
        let mut in_vain = self.in_vain.lock();
        let entry = in_vain.entry(peer).or_insert(InVain { since: now, last: now });
        // Between two terms that this node leads, nothing is sent.
        if now - entry.last > self.cycle() {
            entry.since = now;
        }
        entry.last = now;
    }

    /// Checks whether to send messages to `peer` now.
    ///
    /// # Errors
    /// openraft's error for a peer that is to be tried again later.
    pub(crate) fn check(&self, peer: NodeId) -> Result<(), Unreachable<TypeConfig>> {
        let Some(InVain { since, last }) = self.in_vain.lock().get(&peer).copied() else { return Ok(()) };
        let cycle = self.cycle();
        let into = since.elapsed().as_nanos().checked_rem(cycle.as_nanos()).unwrap_or(0);
        if last.elapsed() > cycle || into < self.talk.as_nanos() {
            return Ok(());
        }
        Err(Unreachable::from_string(format!("node {peer} does not answer and is left alone for a moment")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(2);

    fn hush() -> Hush {
        Hush::new(Duration::from_millis(300))
    }

    async fn pass(ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_hears_nothing_until_it_can_have_stood() {
        let hush = hush();
        assert!(hush.check(PEER).is_ok());
        let mut talks = String::new();
        for _ in 0..30 {
            match hush.check(PEER) {
                Ok(()) => {
                    hush.no_answer(PEER);
                    talks.push('!');
                }
                Err(_) => talks.push('.'),
            }
            pass(50).await;
        }
        assert_eq!(talks, "!!!............!!!............");
        assert!(hush.check(NodeId(3)).is_ok(), "the others hear it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_it_and_so_does_time() {
        let hush = hush();
        hush.no_answer(PEER);
        pass(300).await;
        assert!(hush.check(PEER).is_err());
        hush.answered(PEER);
        assert!(hush.check(PEER).is_ok());

        hush.no_answer(PEER);
        pass(1_300).await;
        assert!(hush.check(PEER).is_ok(), "an older term's");
        hush.no_answer(PEER);
        pass(100).await;
        assert!(hush.check(PEER).is_ok(), "it counts from the new one's first");
    }
}
