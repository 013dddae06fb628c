//! The leader, as far as this node can tell. openraft names a leader for as long as its term is the newest, also when
//! that leader is dead and no majority is there to elect another: with pre-vote the term does not rise then.

use std::sync::Arc;
use std::time::Duration;

use mc_log::{LogId, MasterNode, Raft};
use mc_types::NodeId;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;
use tokio::time::Instant;

use super::election::Elections;
use crate::apply::state_machine::StateMachine;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::LeaderContact;
use crate::members::address_book::AddressBook;
use crate::members::removal::{self, RemovalNotice};

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

/// The task that finds out who leads, as far as this node can tell.
pub(crate) struct LeadershipWatch {
    pub(crate) raft: Raft<StateMachine>,
    pub(crate) me: NodeId,
    pub(crate) leader_contact: LeaderContact,
    pub(crate) acks: Arc<Acks>,
    pub(crate) removal: Arc<RemovalNotice>,
    pub(crate) election_max: Duration,
    pub(crate) addresses: AddressBook,
}

impl LeadershipWatch {
    /// Publishes who leads, and records the members' addresses, until Raft ends.
    pub(crate) async fn run(self, mut elections: Elections, out: watch::Sender<Leadership>) {
        let Self { raft, me, leader_contact, acks, removal, election_max, addresses } = self;
        let silence = election_max * SILENCE_FACTOR;
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
                        let leads = named.1.elapsed() < silence
                            || followed.is_some_and(|sent| sent.elapsed() < silence);
                        acks.note_deserted(term, !leads);
                        leads
                    }
                    false => leader_contact.leads(term, silence),
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
            if let Ok(Err(_)) = tokio::time::timeout(election_max, changes.changed()).await {
                return;
            }
        }
    }
}
