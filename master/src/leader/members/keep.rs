//! A leader's work on its members that no call asks for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mc_raft::{MembershipChange, MembershipChangeError, MembershipView};
use mc_types::{HostPort, NodeId};
use tokio::time::Instant;

use super::Members;
use super::decide::{Occupant, SeenVoters, Step, held_up, is_free, is_there, next_step, occupant};
use crate::config::DEFAULT_RAFT_PORT;
use crate::formation::PeerState;
use crate::metrics::MemberChange;

/// Time between two looks at the members.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Looks after the members until this master stops; only watches while it does not lead.
pub(crate) async fn keep_members(members: Arc<Members>) {
    let mut keeper = Keeper {
        members,
        term: 0,
        since: Instant::now(),
        voters: SeenVoters::default(),
        said: String::new(),
    };
    while keeper.members.coordinator.pause(LOOK_INTERVAL).await {
        let voters = keeper.members.coordinator.read(|applied| applied.membership.voter_ids().collect());
        keeper.voters.see(voters);
        let Some(leading) = keeper.members.coordinator.on_duty() else { continue };
        if keeper.term != leading.term {
            (keeper.term, keeper.since) = (leading.term, Instant::now());
        }
        match keeper.look().await {
            // The next leader, or the next round, continues.
            Ok(()) | Err(MembershipChangeError::NotLeader) => {}
            Err(MembershipChangeError::Refused(why)) => {
                tracing::debug!("a change of the members was not made, trying again: {why}");
            }
            Err(MembershipChangeError::Unknown(why)) => {
                tracing::warn!("a change of the members was not committed, trying again: {why}");
            }
        }
    }
}

struct Keeper {
    members: Arc<Members>,
    term: u64,
    /// When this master began to listen as leader of `term`.
    since: Instant,
    voters: SeenVoters,
    /// The last warning, so that it is logged only once.
    said: String,
}

impl Keeper {
    async fn look(&mut self) -> Result<(), MembershipChangeError> {
        self.record_moved().await?;
        // A view of an older term says nothing about silence in this one.
        let view = self.members.raft.membership_view().filter(|view| view.term == self.term);
        let Some(view) = view else { return Ok(()) };
        let step = next_step(&view, self.since, self.voters.changed);
        let version = self.members.coordinator.read(|applied| applied.state.cluster_version());
        match step.filter(|step| step.is_known_to(version)) {
            Some(Step::Finish) => self.change(&view, MembershipChange::Voters(view.voters.clone())).await,
            Some(Step::Promote(node)) => {
                let voters = view.voters.iter().copied().chain([node]).collect();
                let made = self.change(&view, MembershipChange::Voters(voters)).await;
                self.made(
                    made,
                    MemberChange::Voter,
                    &format!("master {node} has caught up and is a voter now"),
                )
            }
            Some(Step::Swap(node, dead)) => self.swap(&view, node, &dead).await,
            Some(Step::Forget(node)) => {
                let made = self.change(&view, MembershipChange::Forget(node)).await;
                self.made(
                    made,
                    MemberChange::Removed,
                    &format!("{node} is no member any more: another node has its address"),
                )
            }
            Some(Step::Release(node)) => {
                let made = self.change(&view, MembershipChange::Leave(node)).await;
                self.made(
                    made,
                    MemberChange::Left,
                    &format!("master {node} stops and has given up its vote; its address is kept for it"),
                )
            }
            None => {
                if let Some(waits) = held_up(&view, self.since) {
                    self.say(waits);
                }
                self.take_in_the_empty(&view).await
            }
        }
    }

    async fn swap(
        &self,
        view: &MembershipView,
        node: NodeId,
        dead: &BTreeSet<NodeId>,
    ) -> Result<(), MembershipChangeError> {
        let Some(member) = view.members.get(&node) else { return Ok(()) };
        let raft = &member.addresses.raft;
        // Checked right before the change: the recorded name must lead to the node from here, too.
        if !is_there(self.who_is_at(raft).await, node) {
            return Ok(());
        }
        let voters: BTreeSet<_> = view.voters.difference(dead).copied().chain([node]).collect();
        let made = self.change(view, MembershipChange::Voters(voters)).await;
        let old = dead.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let what =
            format!("master {node} has caught up and takes the place of {old} at {raft}, which is gone");
        self.made(made, MemberChange::Swap, &what)
    }

    /// Looks at the addresses of dead members, and of those that have left, for empty nodes, and takes those in.
    async fn take_in_the_empty(&mut self, view: &MembershipView) -> Result<(), MembershipChangeError> {
        let since = self.since;
        for (node, member) in view.members.iter().filter(|(node, _)| is_free(view, **node, since)) {
            let Ok(raft) = HostPort::parse(&member.addresses.raft, DEFAULT_RAFT_PORT) else { continue };
            let Ok(there) = self.members.formation.who_is_at(&raft).await else { continue };
            let met = occupant(view, member, &there);
            if met == Occupant::NobodyNew {
                continue;
            }
            let why_not = match self.members.check_newcomer(&raft, &there).await {
                Err(why) => Some(why.to_string()),
                Ok(()) => (met == Occupant::HasData).then(|| {
                    "it has data, but is no member: empty its data directory, or take it in with `mcctl members \
                     add`"
                        .to_owned()
                }),
            };
            if let Some(why_not) = why_not {
                self.say(format!("the master at {raft} does not replace {node} by itself: {why_not}"));
                continue;
            }
            let made =
                self.change(view, MembershipChange::Learner(there.node, there.addresses.clone())).await;
            let what = format!(
                "the master at {raft} came back empty, as {}: it is taken in and will replace {node}",
                there.node
            );
            return self.made(made, MemberChange::Learner, &what);
        }
        Ok(())
    }

    /// Records the addresses of masters that were found elsewhere than the membership says.
    async fn record_moved(&self) -> Result<(), MembershipChangeError> {
        for (node, addresses) in self.members.raft.record_moved().await? {
            tracing::info!(%node, raft = addresses.raft, client = addresses.client, "recorded a master's new addresses");
        }
        Ok(())
    }

    fn say(&mut self, what: String) {
        if self.said != what {
            tracing::warn!("{what}");
            self.said = what;
        }
    }

    async fn change(
        &self,
        view: &MembershipView,
        change: MembershipChange,
    ) -> Result<(), MembershipChangeError> {
        self.members.raft.change_members(view, change).await
    }

    fn made(
        &self,
        made: Result<(), MembershipChangeError>,
        kind: MemberChange,
        what: &str,
    ) -> Result<(), MembershipChangeError> {
        self.members.note_change(&made, kind, what);
        made
    }

    async fn who_is_at(&self, raft: &str) -> Result<PeerState, String> {
        self.members.who_is_at(raft).await.map(|(_, answer)| answer)
    }
}
