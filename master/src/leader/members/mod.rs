//! Members of the cluster: changes that people ask for, and changes that the leader makes itself.
//!
//! A new master is a learner first: it copies the log and has no vote, so that it costs no majority while it catches
//! up. Every learner becomes a voter as soon as it has caught up; there is no other kind. So the membership alone shows
//! what remains to be done, and a new leader goes on where the last one stopped.
//!
//! A master that comes back with an empty disk is a new node at the address of a dead one. The leader takes it in
//! without being asked. The old id leaves in the same change that makes the new one a voter, so the number of voters,
//! and with it the majority, stays as people configured it.
//!
//! A swap cannot lose acknowledged data. It is a change of the membership like any other: a majority of the old voters
//! and one of the new commit it, and before that the new node counts for nothing. The old id never votes again, because
//! the only disk that knew its vote is gone. If the leader is wrong about that, the old node is a removed member, and
//! Raft handles those. A leader swaps only if the new node is empty, the old one has been silent, every
//! other voter is up, and no leader has made a swap within the last minute. So it makes no swap that fails or that is
//! not needed.
//!
//! A removed master can be added again with its data, if a person asks for it. To Raft it is a follower that was away: it
//! still has its vote, so it votes no second time in a term that it voted in, and the leader asks it for the entry that
//! its log shares with its own before it counts anything that it has. The master is never taken in unasked, since the
//! one who removed it may be waiting to take its machine away. Data of another cluster is refused: its log shares
//! nothing with this one.

mod decide;
mod descriptors;
mod keep;
mod slow_disk;

use std::sync::Arc;
use std::time::Duration;

use mc_log::MasterNode;
use mc_proto::{VERSIONS, common_version};
use mc_raft::{Applied, Member, MembershipChange, MembershipChangeError, MembershipView, RaftNode};
use mc_types::{HostPort, NodeId};

use crate::config::DEFAULT_RAFT_PORT;
use crate::formation::{Formation, PeerState};
use crate::leader::term::{Coordinator, Refusal};
use crate::metrics::{MasterMetrics, MemberChange};
use decide::{removal, settled};
pub(crate) use descriptors::{SpareDescriptors, leave_to_a_master_with_descriptors};
pub(crate) use keep::keep_members;
pub(crate) use slow_disk::leave_to_a_better_disk;

/// Age of a term at which its leader has heard from every member that is up.
const HEARD_FROM_ALL: Duration = Duration::from_secs(1);

/// A member as its cluster knows it.
#[derive(Clone, Debug)]
pub(crate) struct MemberState {
    pub(crate) node: NodeId,
    pub(crate) addresses: MasterNode,
    pub(crate) voter: bool,
    /// How well the member follows, as far as the leader knows.
    pub(crate) seen: Option<Following>,
}

/// How well a member follows its leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Following {
    /// Entries of the leader's log that the member is not known to have.
    pub(crate) lag: u64,
    /// Time since the leader sent the latest message that the member has answered; `None` if it has answered none.
    pub(crate) silent: Option<Duration>,
}

impl MemberState {
    /// Returns the members of an applied index.
    pub(crate) fn of(applied: &Applied) -> Vec<Self> {
        let membership = applied.membership.membership();
        let voters: Vec<_> = membership.voter_ids().collect();
        let member = |(node, addresses): (&NodeId, &MasterNode)| Self {
            node: *node,
            addresses: addresses.clone(),
            voter: voters.contains(node),
            seen: None,
        };
        membership.nodes().map(member).collect()
    }
}

/// Serves and changes the cluster's members.
pub(crate) struct Members {
    coordinator: Arc<Coordinator>,
    raft: Arc<RaftNode>,
    metrics: Arc<MasterMetrics>,
    /// Asks other masters for their identity.
    formation: Arc<Formation>,
}

impl Members {
    pub(crate) fn new(
        coordinator: Arc<Coordinator>,
        raft: Arc<RaftNode>,
        metrics: Arc<MasterMetrics>,
        formation: Arc<Formation>,
    ) -> Self {
        Self { coordinator, raft, metrics, formation }
    }

    /// Returns the members and how well they follow.
    pub(crate) async fn list(&self) -> Result<Vec<MemberState>, Refusal> {
        self.coordinator.lead().await?;
        let mut members = self.coordinator.read(MemberState::of);
        let view = self.raft.membership_view();
        let seen = |member: &Member| Following {
            lag: member.lag,
            silent: member.heard.map(|heard| heard.elapsed()),
        };
        for member in &mut members {
            member.seen = view.as_ref().and_then(|view| view.members.get(&member.node)).map(seen);
        }
        Ok(members)
    }

    /// Hands leadership to `to`, or to the voter that has most of the log. Returns once that master leads.
    pub(crate) async fn transfer_leader(&self, to: Option<NodeId>) -> Result<(), Refusal> {
        let leading = self.coordinator.lead().await?;
        // A leader that can't write has all the more reason to hand over.
        if let Err(why) = self.coordinator.log_call(&leading).await {
            tracing::warn!("the audit logs have no line of this transfer of the leadership: {why}");
        }
        self.coordinator.hand_over(to).await
    }

    /// Takes in the master at a Raft address, as a learner that becomes a voter once it has caught up. Does nothing if
    /// it already is a member.
    pub(crate) async fn add(&self, raft: &str) -> Result<Option<MemberState>, Refusal> {
        let leading = self.coordinator.lead().await?;
        let (raft, there) = self.who_is_at(raft).await.map_err(Refusal::Invalid)?;
        let node = there.node;
        let view = self.settled_view()?;
        if !view.members.contains_key(&node) {
            self.check_newcomer(&raft, &there).await?;
            self.coordinator.log_call(&leading).await?;
            let made =
                self.raft.change_members(&view, MembershipChange::Learner(node, there.addresses)).await;
            let what = format!(
                "the master at {raft}, {node}, is taken in: it copies the index, then it gets a vote"
            );
            self.note_change(&made, MemberChange::Learner, &what);
            made.map_err(|error| self.change_refused(error))?;
        }
        let members = self.coordinator.read(MemberState::of);
        Ok(members.into_iter().find(|member| member.node == node))
    }

    /// Checks that the node that answered at `raft` may become a member.
    async fn check_newcomer(&self, raft: &HostPort, there: &PeerState) -> Result<(), Refusal> {
        if let Some(theirs) = there.cluster.filter(|theirs| *theirs != self.coordinator.cluster()) {
            return Err(Refusal::Invalid(format!(
                "the master at {raft} belongs to cluster {theirs}, this is {}: stop it and empty its data directory first",
                self.coordinator.cluster()
            )));
        }
        let (versions, at) =
            (&there.versions, self.coordinator.read(|applied| applied.state.cluster_version()));
        if common_version(VERSIONS, versions.clone()).is_none() || there.cluster_version_max < at {
            return Err(Refusal::Invalid(format!(
                "the master at {raft} ({}) speaks protocol versions {versions:?} and supports cluster version {}, the \
                 cluster is at {at} and speaks {VERSIONS:?}: upgrade it",
                there.software, there.cluster_version_max
            )));
        }
        if there.addresses.raft.is_empty() {
            // A master that has only just started learns its own address in a moment.
            return Err(Refusal::Busy(format!(
                "the master at {raft} does not know its own address: start it with --peers that names the masters of \
                 this cluster and itself, or with --advertise"
            )));
        }
        // Raft will call the node at this address.
        match self.who_is_at(&there.addresses.raft).await {
            Ok((_, answer)) if answer.node == there.node => Ok(()),
            Ok((at, _)) => Err(Refusal::Invalid(format!(
                "the master at {raft} advertises {at}, where another master answers: correct its --peers or \
                 --advertise"
            ))),
            Err(why) => Err(Refusal::Invalid(format!(
                "the master at {raft} cannot be reached at the address that it advertises: {why}"
            ))),
        }
    }

    /// Removes a member for good; returns false if it was none.
    ///
    /// A leader that is asked to remove itself hands over first and refuses, so that the caller asks the next leader.
    pub(crate) async fn remove(&self, node: NodeId) -> Result<bool, Refusal> {
        let leading = self.coordinator.lead().await?;
        let view = self.settled_view()?;
        if !view.members.contains_key(&node) {
            return Ok(false);
        }
        if leading.age() < HEARD_FROM_ALL {
            return Err(Refusal::Busy("this leader is new and has not heard from all masters yet".into()));
        }
        let change = removal(&view, node)?;
        if node == view.me {
            self.coordinator.hand_over(None).await?;
            return Err(self.coordinator.not_leader());
        }
        self.coordinator.log_call(&leading).await?;
        let made = self.raft.change_members(&view, change).await;
        self.note_change(
            &made,
            MemberChange::Removed,
            &format!("master {node} is no member any more, as asked"),
        );
        made.map_err(|error| self.change_refused(error))?;
        Ok(true)
    }

    /// Returns the members, unless a change of them is under way or this leader was removed.
    fn settled_view(&self) -> Result<MembershipView, Refusal> {
        settled(self.raft.membership_view().ok_or_else(|| self.coordinator.not_leader())?)
    }

    async fn who_is_at(&self, raft: &str) -> Result<(HostPort, PeerState), String> {
        let raft = HostPort::parse(raft, DEFAULT_RAFT_PORT).map_err(|error| error.to_string())?;
        match self.formation.who_is_at(&raft).await {
            Ok(answer) => Ok((raft, answer)),
            Err(why) => Err(format!("no master answers at the Raft address {raft}: {why}")),
        }
    }

    fn change_refused(&self, error: MembershipChangeError) -> Refusal {
        match error {
            MembershipChangeError::NotLeader => self.coordinator.not_leader(),
            MembershipChangeError::Refused(why) => {
                Refusal::Busy(format!("the members were not changed: {why}"))
            }
            MembershipChangeError::Unknown(why) => Refusal::Unknown(why),
        }
    }

    fn note_change(&self, made: &Result<(), MembershipChangeError>, kind: MemberChange, what: &str) {
        if made.is_ok() {
            tracing::info!("{what}");
            self.metrics.member_changed(kind);
        }
    }
}
