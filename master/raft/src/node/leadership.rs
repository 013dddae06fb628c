//! The leader, as far as this node can tell. openraft names a leader for as long as its term is the newest, also when
//! that leader is dead and no majority is there to elect another: with pre-vote the term does not rise then.

use std::sync::Arc;
use std::time::Duration;

use mc_log::{LogId, MasterNode, Raft};
use mc_types::NodeId;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::election::Elections;
use crate::apply::machine::Machine;
use crate::lease::acks::Acks;
use crate::members::address_book::AddressBook;
use crate::members::removal::{self, Removal};

/// The leader that this node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The highest term it has seen.
    pub term: u64,
    /// The leader of that term, if it is known, was heard lately, and is followed by a majority as far as it can tell.
    pub leader: Option<(NodeId, MasterNode)>,
    /// This node was removed from the cluster: the latest log entry known to set members without it.
    pub removed: Option<LogId>,
}

/// Silence after which no leader is known, in longest election timeouts. A leader is heard every 50 ms, and an election
/// takes two of them.
const SILENCE_FACTOR: u32 = 4;

/// Advice for a master that was removed.
pub const REMOVED_FIX: &str = "stop it, or take it in again with `mcctl members add`";

/// Time of the last message from another leader, and the highest term that such a message had.
///
/// It is set before openraft sees the message, so everything that openraft does because of the message finds it set. A
/// leader that was voted out sets it once more: the answer tells that leader of the newer term, and it stops.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<Mutex<Last>>);

#[derive(Debug, Default)]
struct Last {
    at: Option<Instant>,
    term: u64,
    /// The term of a leader that says that no majority answers it; 0 if none says so.
    deserted: u64,
    /// The highest commit index in a message.
    committed: u64,
}

impl Heard {
    /// Records a message from another node that leads `term`.
    pub(crate) fn leader_of(&self, term: u64) {
        let mut last = self.0.lock();
        last.at = Some(Instant::now());
        last.term = last.term.max(term);
    }

    /// Records a heartbeat of the leader of `term`: its commit index, and whether it says that no majority answers it.
    pub(crate) fn heartbeat_of(&self, term: u64, committed: u64, deserted: bool) {
        self.leader_of(term);
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
    fn leads(&self, term: u64, span: Duration) -> bool {
        let last = self.0.lock();
        last.deserted != term && last.at.is_some_and(|at| at.elapsed() < span)
    }

    /// Returns the newest term of which another leader was heard.
    pub(crate) fn term(&self) -> u64 {
        self.0.lock().term
    }
}

/// News from other masters: who leads, and who is a member.
pub(crate) struct Signs {
    pub(crate) heard: Heard,
    pub(crate) acks: Arc<Acks>,
    pub(crate) removal: Arc<Removal>,
}

/// Publishes who leads, and notes where the members are, until Raft ends.
pub(crate) async fn follow(
    raft: Raft<Machine>,
    me: NodeId,
    signs: Signs,
    election_timeout_max: Duration,
    out: watch::Sender<Leadership>,
    addresses: AddressBook,
    mut elections: Elections,
) {
    let Signs { heard, acks, removal } = signs;
    let silence = election_timeout_max * SILENCE_FACTOR;
    let mut changes = raft.server_metrics();
    // The leader that openraft names, and since when.
    let mut named = (None, Instant::now());
    // Whether this node was among committed members. Before that it is a newcomer, or has just started.
    let mut was_member = false;
    loop {
        let now = {
            let metrics = changes.borrow_and_update();
            elections.saw(metrics.state, Instant::now());
            let membership = metrics.membership_config.membership();
            addresses.record(membership);
            let (term, leader) = (metrics.vote.leader_id.term, metrics.current_leader);
            if named.0 != Some((term, leader)) {
                named = (Some((term, leader)), Instant::now());
            }
            let leads = |leader: &NodeId| match *leader == me {
                true => {
                    let followed = acks.quorum(me, term, membership, Instant::now());
                    let leads =
                        named.1.elapsed() < silence || followed.is_some_and(|sent| sent.elapsed() < silence);
                    acks.note_deserted(term, !leads);
                    leads
                }
                false => heard.leads(term, silence),
            };
            let leader = leader.filter(leads);
            let (newest, committed) = (&metrics.membership_config, &metrics.committed_membership_config);
            was_member |= removal::has(committed, me);
            Leadership {
                term,
                leader: leader.and_then(|id| Some((id, membership.get_node(&id)?.clone()))),
                removed: removal.of(me, newest, committed, was_member),
            }
        };
        if now.removed.is_some() && out.borrow().removed.is_none() {
            tracing::error!("this master was removed from its cluster: {REMOVED_FIX}");
        }
        out.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        // openraft does not report silence as a change.
        if let Ok(Err(_)) = tokio::time::timeout(election_timeout_max, changes.changed()).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_counts_while_it_is_heard_and_says_that_a_majority_follows_it() {
        const SPAN: Duration = Duration::from_millis(1_200);
        let heard = Heard::default();
        assert!(!heard.leads(7, SPAN), "never heard");
        heard.heartbeat_of(7, 40, false);
        assert!(heard.leads(7, SPAN));
        heard.heartbeat_of(7, 41, true);
        assert!(!heard.leads(7, SPAN), "it leads in name only");
        heard.leader_of(7);
        assert!(!heard.leads(7, SPAN), "an append says nothing about the others");
        heard.heartbeat_of(6, 30, false);
        assert!(!heard.leads(7, SPAN), "a message of an older leader");
        assert!(heard.leads(8, SPAN), "the next leader is another one");
        heard.heartbeat_of(7, 41, false);
        assert!(heard.leads(7, SPAN), "the majority is back");
        assert_eq!(heard.committed(), 41);
        tokio::time::advance(SPAN).await;
        assert!(!heard.leads(7, SPAN), "silent");
    }
}
