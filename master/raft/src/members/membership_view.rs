//! The members, as a leader sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mc_log::{LogId, MasterNode};
use mc_types::NodeId;
use tokio::time::Instant;

/// Time since its last answer within which a member counts as up.
const UP: Duration = Duration::from_secs(1);
/// Number of missing log entries below which a member counts as caught up. Under load no member has all of them.
pub const CAUGHT_UP: u64 = 1_000;

/// The members at one moment.
#[derive(Clone, Debug)]
pub struct MembershipView {
    /// Id of this leader.
    pub me: NodeId,
    /// Its term.
    pub term: u64,
    /// The entry that set these members. A change is made only if no other one was made since.
    pub version: Option<LogId>,
    /// Whether a change is half done: majorities of the old and of the new voters are needed.
    pub joint: bool,
    /// Whether that entry is committed, so that any next leader sees these members, too.
    pub committed: bool,
    /// The voters; while a change is half done, those after the change.
    pub voters: BTreeSet<NodeId>,
    /// All members, learners included.
    pub members: BTreeMap<NodeId, Member>,
}

/// A member, as a leader sees it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its addresses.
    pub addresses: MasterNode,
    /// Number of entries of the leader's log that it is not known to have.
    pub lag: u64,
    /// Time at which the latest message was sent that it has answered in this term.
    pub heard: Option<Instant>,
    /// Longest recent sync of its log; for other nodes, as they last reported.
    pub sync: Option<Duration>,
    /// Whether it has reported lately that it can open files and connections. Nothing of the leader itself.
    pub has_descriptors: bool,
    /// Whether it is about to stop and asks for its vote to be taken.
    pub leaving: bool,
}

impl MembershipView {
    /// Returns the time for which `node` has been silent, at most since `since`.
    pub fn silence(&self, node: NodeId, since: Instant) -> Duration {
        let heard = self.members.get(&node).and_then(|member| member.heard);
        heard.map_or(since, |heard| heard.max(since)).elapsed()
    }

    /// Whether the member answered within the last second.
    pub fn is_up(&self, node: &NodeId) -> bool {
        let heard = self.members.get(node).and_then(|member| member.heard);
        heard.is_some_and(|heard| heard.elapsed() < UP)
    }

    /// Whether the member is up and has caught up.
    pub fn is_well(&self, node: &NodeId) -> bool {
        self.is_up(node) && self.members.get(node).is_some_and(|member| member.lag < CAUGHT_UP)
    }

    /// Whether this leader was removed and is about to hand over, because it finished its predecessor's change that
    /// removed it. It must not add itself again as a learner. Raft lets a learner that leads go on leading, but gives
    /// it neither vote nor lease, and only the leader could change that.
    pub fn is_leaving(&self) -> bool {
        !self.joint && !self.voters.contains(&self.me)
    }

    /// Members without a vote.
    pub fn learners(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.members
            .iter()
            .filter(|(node, _)| !self.voters.contains(node))
            .map(|(node, member)| (*node, member))
    }

    /// Number of places that masters have left and will come back to: see [`MasterNode::reserved`].
    pub fn reserved(&self) -> usize {
        self.learners().filter(|(_, member)| member.addresses.is_reserved()).count()
    }

    /// Whether a majority of `voters` is up.
    #[must_use]
    pub fn works_with(&self, voters: &BTreeSet<NodeId>) -> bool {
        2 * voters.iter().filter(|voter| self.is_up(voter)).count() > voters.len()
    }

    /// Members with the same Raft address as `node`.
    pub fn at_the_address_of(&self, node: NodeId) -> BTreeSet<NodeId> {
        let raft = self.members.get(&node).map(|member| &member.addresses.raft);
        let same = self
            .members
            .iter()
            .filter(|(other, member)| **other != node && Some(&member.addresses.raft) == raft);
        same.map(|(other, _)| *other).collect()
    }
}
