//! The members, as a leader sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mc_log::{LogId, MasterNode};
use mc_types::NodeId;
use tokio::time::Instant;

/// A member that has answered within so long is up.
const UP: Duration = Duration::from_secs(1);
/// A member that lacks fewer entries of the log than this has caught up; under load no member has all of them.
pub const CAUGHT_UP: u64 = 1_000;

/// The members at one moment.
#[derive(Clone, Debug)]
pub struct Roster {
    /// This leader.
    pub me: NodeId,
    /// Its term.
    pub term: u64,
    /// The entry that made it so. A change is made only while no other has been made since.
    pub version: Option<LogId>,
    /// A change is half done: majorities of the old and of the new voters are needed.
    pub joint: bool,
    /// That entry is committed: whoever leads next sees these members, too.
    pub committed: bool,
    /// The voters; while a change is half done, those that it leads to.
    pub voters: BTreeSet<NodeId>,
    /// Everybody, learners included.
    pub members: BTreeMap<NodeId, Member>,
}

/// A member, as a leader sees it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Where it is reached.
    pub addresses: MasterNode,
    /// Entries of the leader's log that it is not known to have.
    pub lag: u64,
    /// When the latest message was sent that it has answered in this term.
    pub heard: Option<Instant>,
    /// Duration of a sync of its log at worst; of others, as they last said.
    pub sync: Option<Duration>,
}

impl Roster {
    /// How long `node` has been silent, at most since `since`.
    #[must_use]
    pub fn silence(&self, node: NodeId, since: Instant) -> Duration {
        let heard = self.members.get(&node).and_then(|member| member.heard);
        heard.map_or(since, |heard| heard.max(since)).elapsed()
    }

    /// Whether the member answered within the last second.
    #[must_use]
    pub fn is_up(&self, node: &NodeId) -> bool {
        let heard = self.members.get(node).and_then(|member| member.heard);
        heard.is_some_and(|heard| heard.elapsed() < UP)
    }

    /// Whether the member is up and has caught up.
    #[must_use]
    pub fn is_well(&self, node: &NodeId) -> bool {
        self.is_up(node) && self.members.get(node).is_some_and(|member| member.lag < CAUGHT_UP)
    }

    /// Whether this leader was removed and is about to hand over: it finished what the one before had begun, which was to
    /// remove it. It must not take itself in again, as a learner: Raft lets a learner that leads lead on, and it would
    /// never get its vote, nor a lease, since it is up to the leader to give both.
    #[must_use]
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

    /// Whether a majority of `voters` is up.
    #[must_use]
    pub fn works_with(&self, voters: &BTreeSet<NodeId>) -> bool {
        2 * voters.iter().filter(|voter| self.is_up(voter)).count() > voters.len()
    }

    /// Members with the same Raft address as `node`.
    #[must_use]
    pub fn at_the_address_of(&self, node: NodeId) -> BTreeSet<NodeId> {
        let raft = self.members.get(&node).map(|member| &member.addresses.raft);
        let same = self
            .members
            .iter()
            .filter(|(other, member)| **other != node && Some(&member.addresses.raft) == raft);
        same.map(|(other, _)| *other).collect()
    }
}
