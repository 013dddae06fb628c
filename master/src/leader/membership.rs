//! Members of the cluster: what people ask for, and what a leader does about it by itself.
//!
//! A master that is to come is a learner first: it copies the log and has no vote, so that it costs no majority while
//! it catches up. Every learner becomes a voter as soon as it has caught up; there is no other kind. So what remains to
//! be done can be read from the membership alone, and a new leader goes on where the last one stopped.
//!
//! A master that comes back with an empty disk is a new node at the address of a dead one. The leader takes it in
//! without being asked, and the old id goes in the same change that makes the new one a voter: the number of voters,
//! and so the majority, stays what people made it.
//!
//! Why a swap can't lose what was acknowledged. It is a change of the membership like any other: it is committed by a
//! majority of the old voters and by one of the new, and before that nothing counts the new node. The old id never
//! votes again, because the only disk that knew its vote is gone; if the leader is wrong about that, the old node is a
//! member that was removed, which Raft is made for. The conditions below are there to keep a leader from doing so in
//! vain, or in a hurry: what comes is empty, what goes has been silent, nobody else is missing, and there was no swap
//! within the last minute, of whichever leader.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mc_proto::{VERSIONS, common_version, v1};
use mc_raft::{Change, ChangeError, Member, Roster};
use mc_types::{HostPort, NodeId};
use tokio::time::Instant;

use super::Coordinator;
use crate::api::Refusal;
use crate::formation::Answer;
use crate::metrics::MemberChange;
use crate::peers::DEFAULT_RAFT_PORT;

/// Between two looks at the members.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// A leader of that age has heard from every member that is up.
const HEARD_FROM_ALL: Duration = Duration::from_secs(1);
/// A member that has not answered for so long may be replaced by an empty node at its address.
const DEAD_AFTER: Duration = Duration::from_secs(10);
/// At most one swap in so long: a name that leads to one empty machine after the other is not chased. Counted from when
/// this master last saw the voters change, whoever led: see [`SeenVoters`].
const SWAP_INTERVAL: Duration = Duration::from_secs(60);

/// Next step of a leader about its members.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The leader before died half-way through a change.
    Finish,
    /// A learner has caught up.
    Promote(NodeId),
    /// A learner has caught up and stands at the address of these, which are dead.
    Swap(NodeId, BTreeSet<NodeId>),
    /// A dead learner whose place a live member has taken.
    Forget(NodeId),
}

/// `since`: when this leader began to listen. `changed`: when this master last saw the voters change.
fn next_step(roster: &Roster, since: Instant, changed: Option<Instant>) -> Option<Step> {
    if roster.joint {
        return Some(Step::Finish);
    }
    if roster.is_leaving() {
        return None;
    }
    let is_dead = |node: NodeId| roster.silence(node, since) >= DEAD_AFTER;
    for (learner, _) in roster.learners().filter(|(learner, _)| roster.is_well(learner)) {
        let others = roster.at_the_address_of(learner);
        if others.is_empty() {
            let voters = roster.voters.iter().copied().chain([learner]).collect();
            if roster.works_with(&voters) {
                return Some(Step::Promote(learner));
            }
            continue;
        }
        let everybody_else_is_well = roster.voters.difference(&others).all(|voter| roster.is_well(voter));
        if others.iter().all(|other| is_dead(*other))
            && everybody_else_is_well
            && changed.is_none_or(|at| at.elapsed() >= SWAP_INTERVAL)
        {
            return Some(Step::Swap(learner, others));
        }
    }
    // What it was to replace is at its address, too, as long as that is dead itself.
    let is_replaced =
        |learner: NodeId| roster.at_the_address_of(learner).iter().any(|other| !is_dead(*other));
    let mut dead = roster.learners().map(|(learner, _)| learner).filter(|learner| is_dead(*learner));
    dead.find(|learner| is_replaced(*learner)).map(Step::Forget)
}

/// Why a learner that is ready does not take the place of the dead node at its address, if that will last.
fn held_up(roster: &Roster, since: Instant) -> Option<String> {
    let is_dead = |node: &NodeId| roster.silence(*node, since) >= DEAD_AFTER;
    let (learner, dead) = roster
        .learners()
        .map(|(learner, _)| (learner, roster.at_the_address_of(learner)))
        .find(|(learner, others)| roster.is_well(learner) && !others.is_disjoint(&roster.voters))?;
    let others = roster.voters.difference(&dead).filter(|voter| is_dead(voter));
    let others: Vec<_> = others.map(ToString::to_string).collect();
    (!others.is_empty()).then(|| {
        format!(
            "master {learner} has caught up and takes the place of the dead node at its address only once {} is up, too: \
             start it, or remove it with `mcctl members remove` if it is gone for good",
            others.join(", ")
        )
    })
}

/// The change that removes a member, down to a cluster of one. A majority of the voters that remain must be up, or nothing
/// could be committed any more. A member that has caught up goes only where a majority of the others has, too, or all
/// would wait until one that lags has the log.
fn removal(roster: &Roster, node: NodeId) -> Result<Change, Refusal> {
    if !roster.voters.contains(&node) {
        return Ok(Change::Forget(node));
    }
    let remaining: BTreeSet<_> = roster.voters.iter().copied().filter(|voter| *voter != node).collect();
    let of = remaining.len();
    if of == 0 {
        return Err(Refusal::Invalid(format!(
            "master {node} is the only voter: without it there is no cluster"
        )));
    }
    let remain = if of == 1 { "voter remains" } else { "voters remain" };
    let up = remaining.iter().filter(|voter| roster.is_up(voter)).count();
    if 2 * up <= of {
        return Err(Refusal::Invalid(format!(
            "without {node}, {of} {remain} of which {up} {} up, no majority: start them, or remove those that are gone \
             for good first",
            if up == 1 { "is" } else { "are" },
        )));
    }
    let well = remaining.iter().filter(|voter| roster.is_well(voter)).count();
    if roster.is_well(&node) && 2 * well <= of {
        return Err(Refusal::Busy(format!(
            "without {node}, {of} {remain} of which {well} {} caught up, no majority: see who lags with `mcctl members list`",
            if well == 1 { "has" } else { "have" },
        )));
    }
    Ok(Change::Voters(remaining))
}

/// The roster, unless the members are just being changed: one that is being removed still counts as a member, one that is
/// being added may yet turn out never to have been. Nor from a leader that is leaving.
fn settled(roster: Roster) -> Result<Roster, Refusal> {
    if roster.joint || !roster.committed {
        return Err(Refusal::Busy("a change of the members is under way: try again".into()));
    }
    if roster.is_leaving() {
        return Err(Refusal::Busy("this leader was removed and is about to hand over: try again".into()));
    }
    Ok(roster)
}

/// The node that answered at the recorded address of a dead member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// A member, or a master that is to be called elsewhere.
    NobodyNew,
    /// No member, and with data: it was one once. Whoever wants it back asks for it.
    HasData,
    /// A master that lost its disk.
    Empty,
}

fn found(roster: &Roster, dead: &Member, there: &Answer) -> Found {
    if roster.members.contains_key(&there.node) || there.addresses.raft != dead.addresses.raft {
        return Found::NobodyNew;
    }
    if there.formed { Found::HasData } else { Found::Empty }
}

/// Whether `node` is at the address that was dialled.
fn is_there(dialled: Result<Answer, String>, node: NodeId) -> bool {
    dialled.is_ok_and(|there| there.node == node)
}

/// The voters as the applied log has them, which every master watches, leading or not: so the next leader knows when
/// the last one swapped.
///
/// Any change of the voters counts, for they don't tell a swap from what people asked for. A master that was started
/// after a swap takes the voters that it finds for old ones: if it leads within that minute, it waits only for as long
/// as a dead member must be silent. Waiting for a minute after each start instead would keep a dead id in the cluster
/// for so long whenever masters restart.
#[derive(Debug, Default)]
struct SeenVoters {
    /// Empty before any were seen.
    last: BTreeSet<NodeId>,
    changed: Option<Instant>,
}

impl SeenVoters {
    fn see(&mut self, voters: BTreeSet<NodeId>) {
        if self.last == voters {
            return;
        }
        if !self.last.is_empty() {
            self.changed = Some(Instant::now());
        }
        self.last = voters;
    }
}

/// Looks after the members until this master stops; only watches while it does not lead.
pub(crate) async fn keep_members(coordinator: Arc<Coordinator>) {
    let mut keeper = Keeper {
        coordinator,
        term: 0,
        since: Instant::now(),
        voters: SeenVoters::default(),
        said: String::new(),
    };
    loop {
        tokio::select! {
            () = keeper.coordinator.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        let voters = keeper.coordinator.index.read(|applied| applied.membership.voter_ids().collect());
        keeper.voters.see(voters);
        let Some(leading) = keeper.coordinator.on_duty() else { continue };
        if keeper.term != leading.term {
            (keeper.term, keeper.since) = (leading.term, Instant::now());
        }
        match keeper.look().await {
            // Another leader, or the next look, goes on.
            Ok(()) | Err(ChangeError::NotLeader) => {}
            Err(ChangeError::Refused(why)) => {
                tracing::debug!("a change of the members was not made, trying again: {why}");
            }
            Err(ChangeError::Unknown(why)) => {
                tracing::warn!("a change of the members was not committed, trying again: {why}");
            }
        }
    }
}

struct Keeper {
    coordinator: Arc<Coordinator>,
    term: u64,
    /// When the term began here.
    since: Instant,
    voters: SeenVoters,
    /// The last complaint, so that it is made once.
    said: String,
}

impl Keeper {
    async fn look(&mut self) -> Result<(), ChangeError> {
        self.record_moved().await?;
        // What was not heard in an older term says nothing.
        let roster = self.coordinator.raft.roster().filter(|roster| roster.term == self.term);
        let Some(roster) = roster else { return Ok(()) };
        match next_step(&roster, self.since, self.voters.changed) {
            Some(Step::Finish) => self.change(&roster, Change::Voters(roster.voters.clone())).await,
            Some(Step::Promote(node)) => {
                let voters = roster.voters.iter().copied().chain([node]).collect();
                let made = self.change(&roster, Change::Voters(voters)).await;
                self.made(
                    made,
                    MemberChange::Voter,
                    &format!("master {node} has caught up and is a voter now"),
                )
            }
            Some(Step::Swap(node, dead)) => self.swap(&roster, node, &dead).await,
            Some(Step::Forget(node)) => {
                let made = self.change(&roster, Change::Forget(node)).await;
                self.made(
                    made,
                    MemberChange::Removed,
                    &format!("learner {node} is dead and another node has its address"),
                )
            }
            None => {
                if let Some(waits) = held_up(&roster, self.since) {
                    self.say(waits);
                }
                self.take_in_the_empty(&roster).await
            }
        }
    }

    async fn swap(&self, roster: &Roster, node: NodeId, dead: &BTreeSet<NodeId>) -> Result<(), ChangeError> {
        let Some(member) = roster.members.get(&node) else { return Ok(()) };
        let raft = &member.addresses.raft;
        // The recorded name still leads to it, from here too.
        if !is_there(self.who_is_at(raft).await, node) {
            return Ok(());
        }
        let voters: BTreeSet<_> = roster.voters.difference(dead).copied().chain([node]).collect();
        let made = self.change(roster, Change::Voters(voters)).await;
        let old = dead.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let what =
            format!("master {node} has caught up and takes the place of {old} at {raft}, which is gone");
        self.made(made, MemberChange::Swap, &what)
    }

    /// Looks at the addresses of dead members for empty nodes, and takes those in.
    async fn take_in_the_empty(&mut self, roster: &Roster) -> Result<(), ChangeError> {
        let since = self.since;
        let dead = roster.members.iter().filter(|(node, _)| roster.silence(**node, since) >= DEAD_AFTER);
        for (node, member) in dead {
            let Ok(raft) = HostPort::parse(&member.addresses.raft, DEFAULT_RAFT_PORT) else { continue };
            let Ok(there) = self.coordinator.formation.who_is_at(&raft).await else { continue };
            let met = found(roster, member, &there);
            if met == Found::NobodyNew {
                continue;
            }
            let why_not = match self.coordinator.check_newcomer(&raft, &there).await {
                Err(why) => Some(why.to_string()),
                Ok(()) => (met == Found::HasData).then(|| {
                    "it is not empty, and no member (any more): empty its data directory, or take it in with `mcctl \
                     members add`"
                        .to_owned()
                }),
            };
            if let Some(why_not) = why_not {
                self.say(format!("the master at {raft} does not replace {node} by itself: {why_not}"));
                continue;
            }
            let made = self.change(roster, Change::Learner(there.node, there.addresses.clone())).await;
            let what = format!(
                "the master at {raft} came back empty, as {}: it is taken in and will replace {node}",
                there.node
            );
            return self.made(made, MemberChange::Learner, &what);
        }
        Ok(())
    }

    /// Replicates the addresses of masters that were met elsewhere than the membership says.
    async fn record_moved(&self) -> Result<(), ChangeError> {
        for (node, addresses) in self.coordinator.raft.record_moved().await? {
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

    async fn change(&self, roster: &Roster, change: Change) -> Result<(), ChangeError> {
        self.coordinator.raft.change_members(roster, change).await
    }

    fn made(&self, made: Result<(), ChangeError>, kind: MemberChange, what: &str) -> Result<(), ChangeError> {
        self.coordinator.note_change(&made, kind, what);
        made
    }

    async fn who_is_at(&self, raft: &str) -> Result<Answer, String> {
        self.coordinator.who_is_at(raft).await.map(|(_, answer)| answer)
    }
}

impl Coordinator {
    /// Takes the master at a Raft address in, as a learner that becomes a voter by itself once it has caught up. Nothing
    /// to do for one that is a member.
    pub(crate) async fn add_member(&self, raft: &str) -> Result<v1::AddMemberReply, Refusal> {
        self.lead().await?;
        let (raft, there) = self.who_is_at(raft).await.map_err(Refusal::Invalid)?;
        let node = there.node;
        let roster = self.settled_roster()?;
        if !roster.members.contains_key(&node) {
            self.check_newcomer(&raft, &there).await?;
            let made = self.raft.change_members(&roster, Change::Learner(node, there.addresses)).await;
            let what = format!(
                "the master at {raft}, {node}, is taken in: it copies the index, then it gets a vote"
            );
            self.note_change(&made, MemberChange::Learner, &what);
            made.map_err(|error| self.change_refused(error))?;
        }
        let member = self.members().into_iter().find(|member| member.node_id == node.to_bytes()[..]);
        Ok(v1::AddMemberReply { member })
    }

    /// Whether the node that answered at `raft` may become a member, or why not.
    async fn check_newcomer(&self, raft: &HostPort, there: &Answer) -> Result<(), Refusal> {
        if let Some(theirs) = there.cluster.filter(|theirs| *theirs != self.cluster) {
            return Err(Refusal::Invalid(format!(
                "the master at {raft} belongs to cluster {theirs}, this is {}: stop it and empty its data directory first",
                self.cluster
            )));
        }
        let (versions, at) = (&there.versions, self.index.read(|applied| applied.state.cluster_version()));
        if common_version(VERSIONS, versions.clone()).is_none() || there.cluster_version_max < at {
            return Err(Refusal::Invalid(format!(
                "the master at {raft} ({}) speaks protocol versions {versions:?} and supports cluster version {}, the \
                 cluster is at {at} and speaks {VERSIONS:?}: upgrade it",
                there.software, there.cluster_version_max
            )));
        }
        if there.addresses.raft.is_empty() {
            // One that has only just started finds itself in a moment.
            return Err(Refusal::Busy(format!(
                "the master at {raft} does not know its own address: start it with --peers that names the masters of \
                 this cluster and itself, or with --advertise"
            )));
        }
        // Raft will call it there.
        match self.who_is_at(&there.addresses.raft).await {
            Ok((_, answer)) if answer.node == there.node => Ok(()),
            Ok((at, _)) => Err(Refusal::Invalid(format!(
                "the master at {raft} says that it is reached at {at}, where another one answers"
            ))),
            Err(why) => Err(Refusal::Invalid(format!(
                "the master at {raft} says that it is reached elsewhere: {why}"
            ))),
        }
    }

    /// Removes a member for good. A leader that is asked to remove itself hands over first, and the next one does it.
    pub(crate) async fn remove_member(&self, node: NodeId) -> Result<v1::RemoveMemberReply, Refusal> {
        let leading = self.lead().await?;
        let roster = self.settled_roster()?;
        if !roster.members.contains_key(&node) {
            return Ok(v1::RemoveMemberReply { removed: false });
        }
        if leading.age() < HEARD_FROM_ALL {
            return Err(Refusal::Busy(
                "this master has just begun to lead and has not heard from all yet".into(),
            ));
        }
        let change = removal(&roster, node)?;
        if node == roster.me {
            self.hand_over(None).await?;
            return Err(self.not_leader());
        }
        let made = self.raft.change_members(&roster, change).await;
        self.note_change(
            &made,
            MemberChange::Removed,
            &format!("master {node} is no member any more, as asked"),
        );
        made.map_err(|error| self.change_refused(error))?;
        Ok(v1::RemoveMemberReply { removed: true })
    }

    /// The members, unless they are just being changed, or this leader is none any more.
    fn settled_roster(&self) -> Result<Roster, Refusal> {
        settled(self.raft.roster().ok_or_else(|| self.not_leader())?)
    }

    async fn who_is_at(&self, raft: &str) -> Result<(HostPort, Answer), String> {
        let raft = HostPort::parse(raft, DEFAULT_RAFT_PORT).map_err(|error| error.to_string())?;
        match self.formation.who_is_at(&raft).await {
            Ok(answer) => Ok((raft, answer)),
            Err(why) => Err(format!("no master answers at the Raft address {raft}: {why}")),
        }
    }

    fn change_refused(&self, error: ChangeError) -> Refusal {
        match error {
            ChangeError::NotLeader => self.not_leader(),
            ChangeError::Refused(why) => Refusal::Busy(format!("the members were not changed: {why}")),
            ChangeError::Unknown(why) => Refusal::Unknown(why),
        }
    }

    fn note_change(&self, made: &Result<(), ChangeError>, kind: MemberChange, what: &str) {
        if made.is_ok() {
            tracing::info!("{what}");
            self.metrics.member_changed(kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::formation::Instance;
    use mc_log::MasterNode;
    use mc_raft::CAUGHT_UP;

    const ME: NodeId = NodeId(1);

    /// Members 1, 2 and 3 vote, all at addresses of their own, all well.
    fn roster() -> Roster {
        let members = (1..=3).map(|node| (NodeId(node), member(&format!("m{node}:1"), 0, Some(0)))).collect();
        Roster {
            me: ME,
            term: 1,
            version: None,
            joint: false,
            committed: true,
            voters: (1..=3).map(NodeId).collect(),
            members,
        }
    }

    fn member(raft: &str, lag: u64, silent_s: Option<u64>) -> Member {
        Member {
            addresses: MasterNode { raft: raft.to_owned(), ..MasterNode::default() },
            lag,
            heard: silent_s.map(|s| Instant::now() - Duration::from_secs(s)),
            sync: None,
        }
    }

    fn long_ago() -> Instant {
        Instant::now() - Duration::from_secs(100)
    }

    fn with(mut roster: Roster, node: u64, member: Member) -> Roster {
        roster.members.insert(NodeId(node), member);
        roster
    }

    fn step(roster: &Roster) -> Option<Step> {
        next_step(roster, long_ago(), None)
    }

    #[test]
    fn a_learner_votes_once_it_has_caught_up_and_a_majority_is_up() {
        assert_eq!(step(&roster()), None);
        let behind = with(roster(), 4, member("m4:1", CAUGHT_UP, Some(0)));
        assert_eq!(step(&behind), None);
        let ready = with(roster(), 4, member("m4:1", CAUGHT_UP - 1, Some(0)));
        assert_eq!(step(&ready), Some(Step::Promote(NodeId(4))));
        assert_eq!(step(&with(roster(), 4, member("m4:1", 0, Some(2)))), None, "it is not up");

        let one_down = with(ready.clone(), 3, member("m3:1", 0, Some(5)));
        assert_eq!(step(&one_down), Some(Step::Promote(NodeId(4))), "three of four are up");
        let mut two_of_two = ready;
        two_of_two.voters = BTreeSet::from([ME, NodeId(2)]);
        two_of_two.members.remove(&NodeId(3));
        let down = with(two_of_two, 2, member("m2:1", 0, Some(5)));
        assert_eq!(step(&down), Some(Step::Promote(NodeId(4))), "two of three are up");
    }

    #[test]
    fn a_dead_id_gives_way_to_a_node_at_its_address_and_never_a_live_one() {
        let came_back = |dead: Option<u64>| {
            with(with(roster(), 3, member("m3:1", 900, dead)), 4, member("m3:1", 0, Some(0)))
        };
        let swap = Some(Step::Swap(NodeId(4), BTreeSet::from([NodeId(3)])));
        assert_eq!(step(&came_back(Some(10))), swap);
        assert_eq!(step(&came_back(None)), swap, "not heard in all of this term");
        assert_eq!(step(&came_back(Some(9))), None);
        assert_eq!(
            next_step(&came_back(None), Instant::now(), None),
            None,
            "this leader has only begun to listen"
        );
        let changed = |s| Some(Instant::now() - Duration::from_secs(s));
        assert_eq!(next_step(&came_back(None), long_ago(), changed(59)), None, "one swap a minute");
        assert_eq!(next_step(&came_back(None), long_ago(), changed(60)), swap);
        let another_lags = with(came_back(None), 2, member("m2:1", CAUGHT_UP, Some(0)));
        assert_eq!(step(&another_lags), None);
        let another_down = with(came_back(None), 2, member("m2:1", 0, Some(2)));
        assert_eq!(step(&another_down), None);
    }

    #[test]
    fn whoever_takes_over_knows_of_the_last_leader_s_swap() {
        let voters = |ids: &[u64]| ids.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        let mut seen = SeenVoters::default();
        seen.see(BTreeSet::new());
        seen.see(voters(&[1, 2, 3]));
        assert_eq!(seen.changed, None, "the first that a master finds");
        seen.see(voters(&[1, 2, 3]));
        assert_eq!(seen.changed, None);
        seen.see(voters(&[1, 2, 4]));
        assert!(seen.changed.is_some(), "seen by one that did not lead");

        let again = with(with(roster(), 3, member("m3:1", 900, None)), 5, member("m3:1", 0, Some(0)));
        assert!(next_step(&again, long_ago(), None).is_some());
        assert_eq!(next_step(&again, long_ago(), seen.changed), None, "not for a minute");
    }

    /// A master at m3:1, alive and well, that is no member.
    fn stranger() -> Answer {
        Answer {
            instance: Instance(7),
            node: NodeId(4),
            cluster: None,
            formed: false,
            list: Vec::new(),
            addresses: MasterNode { raft: "m3:1".to_owned(), ..MasterNode::default() },
            versions: VERSIONS,
            software: String::new(),
            cluster_version_max: 1,
        }
    }

    #[test]
    fn only_an_empty_node_at_the_address_of_a_dead_member_is_taken_in_unasked() {
        let roster = roster();
        let dead = &roster.members[&NodeId(3)];
        assert_eq!(found(&roster, dead, &stranger()), Found::Empty);
        let removed = Answer { formed: true, ..stranger() };
        assert_eq!(found(&roster, dead, &removed), Found::HasData, "one that was removed and moved there");
        for known in [2, 3] {
            let known = Answer { node: NodeId(known), ..stranger() };
            assert_eq!(found(&roster, dead, &known), Found::NobodyNew);
        }
        let elsewhere = Answer { addresses: MasterNode::default(), ..stranger() };
        assert_eq!(found(&roster, dead, &elsewhere), Found::NobodyNew, "Raft would call it elsewhere");
    }

    #[test]
    fn a_swap_needs_the_new_node_at_the_address_at_that_moment() {
        assert!(is_there(Ok(stranger()), NodeId(4)));
        assert!(!is_there(Ok(stranger()), NodeId(3)), "another one has it now");
        assert!(!is_there(Err("nobody answers".to_owned()), NodeId(4)));
    }

    #[test]
    fn voters_are_removed_down_to_one_while_what_remains_is_up_and_has_caught_up() {
        let voters = |ids: &[u64]| Change::Voters(ids.iter().copied().map(NodeId).collect());
        let mut two = roster();
        two.voters = BTreeSet::from([ME, NodeId(2)]);
        assert_eq!(removal(&roster(), NodeId(3)), Ok(voters(&[1, 2])));
        assert_eq!(removal(&two, NodeId(2)), Ok(voters(&[1])), "the leader removes the other one");
        assert_eq!(removal(&two, ME), Ok(voters(&[2])), "the leader leaves to the other one");
        assert_eq!(removal(&two, NodeId(3)), Ok(Change::Forget(NodeId(3))), "a learner");

        let lags = with(two.clone(), 2, member("m2:1", CAUGHT_UP, Some(0)));
        assert!(matches!(removal(&lags, ME), Err(Refusal::Busy(_))), "it has not caught up");
        assert_eq!(removal(&lags, NodeId(2)), Ok(voters(&[1])), "all waits for it already");
        let down = with(two.clone(), 2, member("m2:1", 0, Some(2)));
        assert!(matches!(removal(&down, ME), Err(Refusal::Invalid(_))), "nobody would be there");
        let one_of_three_lags = with(roster(), 2, member("m2:1", CAUGHT_UP, Some(0)));
        assert!(matches!(removal(&one_of_three_lags, NodeId(3)), Err(Refusal::Busy(_))));
        let mut one = two;
        one.voters = BTreeSet::from([ME]);
        assert!(matches!(removal(&one, ME), Err(Refusal::Invalid(_))), "without it there is no cluster");
    }

    #[test]
    fn what_a_dead_leader_left_half_done_comes_first() {
        let mut half_done = with(roster(), 4, member("m4:1", 0, Some(0)));
        half_done.joint = true;
        assert_eq!(step(&half_done), Some(Step::Finish));
    }

    #[test]
    fn a_leader_that_finished_its_own_removal_changes_no_members() {
        let mut leaving = with(roster(), 4, member("m4:1", 0, Some(0)));
        leaving.joint = true;
        leaving.voters.remove(&ME);
        assert_eq!(step(&leaving), Some(Step::Finish));
        leaving.joint = false;
        leaving.members.remove(&ME);
        assert_eq!(step(&leaving), None);
        assert!(matches!(settled(leaving), Err(Refusal::Busy(_))), "nor does it take itself in again");
        assert!(settled(roster()).is_ok());
    }

    #[test]
    fn a_learner_that_died_is_forgotten_only_when_its_address_has_another() {
        let dead = with(roster(), 4, member("m4:1", 5, Some(20)));
        assert_eq!(step(&dead), None, "it may come back");
        let to_replace = with(with(roster(), 3, member("m3:1", 9, None)), 4, member("m3:1", 5, Some(20)));
        assert_eq!(step(&to_replace), None, "so may one that is to replace a dead voter");
        let replaced = with(dead, 5, member("m4:1", CAUGHT_UP, Some(0)));
        assert_eq!(step(&replaced), Some(Step::Forget(NodeId(4))));
        let members: BTreeMap<_, _> = replaced.members;
        assert_eq!(members.len(), 5);
    }
}
