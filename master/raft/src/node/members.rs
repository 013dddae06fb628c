//! Changes of the membership by a leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_log::{LogId, MasterNode};
use mc_types::NodeId;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::Precondition;
use tokio::time::Instant;

use super::RaftNode;
use crate::lease::acks::PeerReport;
use crate::members::address_book::AddressBook;
use crate::members::change::{MembershipChange, MembershipChangeError, keeps_places};
use crate::members::departure::Departure;
use crate::members::membership_view::{Member, MembershipView};

/// Time limit of a change of the membership. A later success shows in the membership.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which the proposed voters must answer before they are proposed; many times that of a heartbeat.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

impl RaftNode {
    /// Returns every member, as recorded in the membership.
    pub fn members(&self) -> BTreeMap<NodeId, MasterNode> {
        let metrics = self.metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        membership.nodes().map(|(node, addresses)| (*node, addresses.clone())).collect()
    }

    /// Returns the members as this leader sees them; `None` on a node that does not lead.
    pub fn membership_view(&self) -> Option<MembershipView> {
        let metrics = self.metrics.borrow_watched();
        if !metrics.state.is_leader() {
            return None;
        }
        let term = metrics.vote.leader_id.term;
        let matching = metrics.replication.as_ref()?;
        let next = metrics.last_log_index.map_or(0, |last| last + 1);
        let membership = metrics.membership_config.membership();
        let members = membership.nodes().map(|(node, addresses)| {
            let mine = *node == self.node;
            let has = matching.get(node).copied().flatten().map_or(0, |id| id.index + 1);
            let lag = if mine { 0 } else { next.saturating_sub(has) };
            let heard = if mine { Some(Instant::now()) } else { self.acks.latest(*node, term) };
            let report = match mine {
                true => PeerReport {
                    sync: self.pace.now().map(|pace| pace.at_worst()),
                    leaving: self.leaving.load(Ordering::Relaxed),
                    ..PeerReport::default()
                },
                false => self.acks.report(*node).unwrap_or_default(),
            };
            let PeerReport { sync, has_descriptors, leaving, .. } = report;
            (*node, Member { addresses: addresses.clone(), lag, heard, sync, has_descriptors, leaving })
        });
        let configs = membership.get_joint_config();
        Some(MembershipView {
            me: self.node,
            term,
            version: *metrics.membership_config.log_id(),
            joint: configs.len() > 1,
            committed: metrics.committed_membership_config.log_id() == metrics.membership_config.log_id(),
            voters: configs.last()?.clone(),
            members: members.collect(),
        })
    }

    /// Returns the voters whose disks are nearly full, if no majority is known to have room. For a leader with room
    /// on its own disk.
    pub fn nearly_full(&self) -> Vec<NodeId> {
        let metrics = self.metrics.borrow_watched();
        self.acks.nearly_full(self.node, metrics.membership_config.membership())
    }

    /// Changes the membership that `view` shows, one change at a time. Returns once the change is committed.
    pub async fn change_members(
        &self,
        view: &MembershipView,
        change: MembershipChange,
    ) -> Result<(), MembershipChangeError> {
        let without = |node: &NodeId| view.voters.iter().copied().filter(|voter| voter != node).collect();
        let voters = match &change {
            MembershipChange::Voters(voters) => Some(voters.clone()),
            MembershipChange::Leave(node) => Some(without(node)),
            MembershipChange::Learner(..) | MembershipChange::Forget(_) => None,
        };
        if let Some(voters) = &voters {
            self.hear_majority(view.term, voters).await?;
        }
        let retain = keeps_places(&change, self.metrics.borrow_watched().membership_config.membership());
        let change = match change {
            MembershipChange::Learner(node, addresses) => {
                ChangeMembers::AddNodes(BTreeMap::from([(node, addresses)]))
            }
            MembershipChange::Voters(voters) => ChangeMembers::ReplaceAllVoters(voters),
            MembershipChange::Forget(node) => ChangeMembers::RemoveNodes(BTreeSet::from([node])),
            MembershipChange::Leave(node) => {
                let Some(member) = view.members.get(&node) else {
                    return Err(MembershipChangeError::Refused(format!("node {node} is no member")));
                };
                // One entry: a reserved place never has a vote, but in the joint configuration that takes it.
                ChangeMembers::Batch(vec![
                    ChangeMembers::SetNodes(BTreeMap::from([(node, member.addresses.reserved())])),
                    ChangeMembers::ReplaceAllVoters(without(&node)),
                ])
            }
        };
        self.change(change, retain, view.version).await
    }

    /// Returns once a majority of `voters` has answered something that was sent after the call.
    ///
    /// From the moment that new voters are proposed, no leader commits anything without a majority of them, and none is
    /// elected without one. If one of them had died just before, no leader could even revert the proposal.
    async fn hear_majority(&self, term: u64, voters: &BTreeSet<NodeId>) -> Result<(), MembershipChangeError> {
        let asked = Instant::now();
        let heard = || self.acks.majority(self.node, term, voters, asked) >= Some(asked);
        if tokio::time::timeout(ANSWER_TIMEOUT, self.acks.until(heard)).await.is_ok() {
            return Ok(());
        }
        if self.membership_view().is_none_or(|view| view.term != term) {
            return Err(MembershipChangeError::NotLeader);
        }
        Err(MembershipChangeError::Refused(format!(
            "no majority of the voters after this change has answered within {ANSWER_TIMEOUT:?}"
        )))
    }

    /// Asks the leader, whichever master that is, to take this node's vote, from now until the node stops.
    pub fn ask_to_leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Returns how far this node's departure has come.
    pub fn departure(&self) -> Departure {
        Departure::of(self.node, self.metrics.borrow_watched().committed_membership_config.membership())
    }

    /// Addresses at which the masters are reached from here.
    pub fn addresses(&self) -> &AddressBook {
        &self.addresses
    }

    /// Records the addresses of members that were met at others than the membership has, and returns these members.
    /// For a leader; the voters stay. Does nothing while a change of the voters is half done.
    pub async fn record_moved(&self) -> Result<BTreeMap<NodeId, MasterNode>, MembershipChangeError> {
        let (moved, version) = {
            let metrics = self.metrics.borrow_watched();
            let config = &metrics.membership_config;
            // openraft would also finish the change under way, without keeping a voter whose place is reserved. The next call
            // comes after the end of the change.
            if config.membership().get_joint_config().len() > 1 {
                return Ok(BTreeMap::new());
            }
            (self.addresses.moved(config.membership()), *config.log_id())
        };
        if !moved.is_empty() {
            self.change(ChangeMembers::SetNodes(moved.clone()), false, version).await?;
        }
        Ok(moved)
    }

    /// Makes a change only if `version` is the last membership. A change that was decided on by an older one could
    /// bring back a member that was removed meanwhile. With `retain`, a voter that has no vote afterwards stays a
    /// member.
    async fn change(
        &self,
        change: ChangeMembers<NodeId, MasterNode>,
        retain: bool,
        version: Option<LogId>,
    ) -> Result<(), MembershipChangeError> {
        let only_if = [Precondition::LastMembershipLogId { last_membership_log_id: version }];
        // openraft changes voters in two steps, and would let another change in between.
        let Ok(_one_at_a_time) = self.changing.try_lock() else {
            return Err(MembershipChangeError::Refused("another change of the members is under way".into()));
        };
        let changed = self.raft().change_membership_if(change, retain, only_if);
        match tokio::time::timeout(CHANGE_TIMEOUT, changed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                Err(MembershipChangeError::NotLeader)
            }
            Ok(Err(RaftError::APIError(error))) => Err(MembershipChangeError::Refused(error.to_string())),
            Ok(Err(RaftError::Fatal(error))) => Err(MembershipChangeError::Unknown(error.to_string())),
            Err(_) => Err(MembershipChangeError::Unknown(format!(
                "no majority of the masters confirmed it within {CHANGE_TIMEOUT:?}"
            ))),
        }
    }
}
