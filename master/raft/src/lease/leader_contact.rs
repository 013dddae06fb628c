use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time of the last message from another leader, and the highest term that such a message had.
///
/// It is set before openraft sees the message, so everything that openraft does because of the message finds it set. A
/// leader that was voted out sets it once more: the answer tells that leader of the newer term, and it stops.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaderContact(Arc<Mutex<LastMessage>>);

#[derive(Debug, Default)]
struct LastMessage {
    at: Option<Instant>,
    term: u64,
    /// Term of a leader that reports that no majority answers it; 0 if none does.
    deserted: u64,
    /// The highest commit index in a message.
    committed: u64,
}

impl LeaderContact {
    /// Records a message from another node that leads `term`.
    pub(crate) fn message_of(&self, term: u64) {
        let mut last = self.0.lock();
        last.at = Some(Instant::now());
        last.term = last.term.max(term);
    }

    /// Records a heartbeat of the leader of `term`: its commit index, and whether it says that no majority answers it.
    pub(crate) fn heartbeat_of(&self, term: u64, committed: u64, deserted: bool) {
        self.message_of(term);
        let mut last = self.0.lock();
        last.committed = last.committed.max(committed);
        if deserted {
            last.deserted = last.deserted.max(term);
        } else if term >= last.deserted {
            last.deserted = 0;
        }
    }

    /// Returns the highest commit index that a leader has named.
    pub(crate) fn committed(&self) -> u64 {
        self.0.lock().committed
    }

    /// Whether the leader of `term` was heard within `span`, and does not say that no majority answers it.
    pub(crate) fn leads(&self, term: u64, span: Duration) -> bool {
        let last = self.0.lock();
        last.deserted != term && last.at.is_some_and(|at| at.elapsed() < span)
    }

    /// Returns the newest term of which another leader was heard.
    pub(crate) fn term(&self) -> u64 {
        self.0.lock().term
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_counts_while_it_is_heard_and_says_that_a_majority_follows_it() {
        const SPAN: Duration = Duration::from_millis(1_200);
        let leader_contact = LeaderContact::default();
        assert!(!leader_contact.leads(7, SPAN), "never heard");
        leader_contact.heartbeat_of(7, 40, false);
        assert!(leader_contact.leads(7, SPAN));
        leader_contact.heartbeat_of(7, 41, true);
        assert!(!leader_contact.leads(7, SPAN), "it leads in name only");
        leader_contact.message_of(7);
        assert!(!leader_contact.leads(7, SPAN), "an append says nothing about the others");
        leader_contact.heartbeat_of(6, 30, false);
        assert!(!leader_contact.leads(7, SPAN), "a message of an older leader");
        assert!(leader_contact.leads(8, SPAN), "the next leader is another one");
        leader_contact.heartbeat_of(7, 41, false);
        assert!(leader_contact.leads(7, SPAN), "the majority is back");
        assert_eq!(leader_contact.committed(), 41);
        tokio::time::advance(SPAN).await;
        assert!(!leader_contact.leads(7, SPAN), "silent");
    }
}
