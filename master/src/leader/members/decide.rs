//! Decisions about members, from what a leader knows of them.

use std::collections::BTreeSet;
use std::time::Duration;

use mc_raft::{Member, MembershipChange, MembershipView, can_spare_a_voter};
use mc_types::NodeId;
use tokio::time::Instant;

use crate::formation::PeerState;
use crate::leader::term::Refusal;

/// Silence after which an empty node at a member's address may replace it.
const DEAD_AFTER: Duration = Duration::from_secs(10);
/// Least time between two swaps, so that the leader does not swap again and again when a DNS name resolves to one empty
/// machine after another. It counts from when this master last saw the voters change, whoever led: see [`SeenVoters`].
const SWAP_INTERVAL: Duration = Duration::from_secs(60);

/// Next step that a leader takes about its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Complete a change that the previous leader left half-done.
    Finish,
    /// Make a voter of a learner that has caught up.
    Promote(NodeId),
    /// Replace these dead members by the learner at their address, which has caught up.
    Swap(NodeId, BTreeSet<NodeId>),
    /// Remove a learner whose place another member has taken.
    Forget(NodeId),
    /// Take the vote of a voter that is about to stop, and keep its place for it.
    Release(NodeId),
}

impl Step {
    /// Whether every master of a cluster of `version` knows this step: a build that supports only version 1 would give the
    /// vote back at once.
    pub(super) fn is_known_to(&self, version: u32) -> bool {
        version >= 2 || !matches!(self, Self::Release(_))
    }
}

/// Whether an empty node at the address of `node` may take its place: `node` has left it, or has been silent for long.
pub(super) fn is_free(view: &MembershipView, node: NodeId, since: Instant) -> bool {
    let is_reserved = view.members.get(&node).is_some_and(|member| member.addresses.is_reserved());
    is_reserved || view.silence(node, since) >= DEAD_AFTER
}

/// Decides the next step, if any. `since` is when this leader began to listen, `changed` when this master last saw the
/// voters change.
pub(super) fn next_step(view: &MembershipView, since: Instant, changed: Option<Instant>) -> Option<Step> {
    if view.joint {
        return Some(Step::Finish);
    }
    if view.is_leaving() {
        return None;
    }
    let is_dead = |node: NodeId| view.silence(node, since) >= DEAD_AFTER;
    let comes = |learner: NodeId, member: &Member| {
        view.is_well(&learner) && !member.leaving && !member.addresses.is_reserved()
    };
    for (learner, _) in view.learners().filter(|(learner, member)| comes(*learner, member)) {
        let others = view.at_the_address_of(learner);
        // This takes no vote from any master: the address is new, or the last master there has given up its vote.
        if others.is_disjoint(&view.voters) {
            let voters = view.voters.iter().copied().chain([learner]).collect();
            if view.works_with(&voters) {
                return Some(Step::Promote(learner));
            }
            continue;
        }
        let everybody_else_is_well = view.voters.difference(&others).all(|voter| view.is_well(voter));
        if others.iter().all(|other| is_dead(*other))
            && everybody_else_is_well
            && changed.is_none_or(|at| at.elapsed() >= SWAP_INTERVAL)
        {
            return Some(Step::Swap(learner, others));
        }
    }
    // The member that a learner was to replace is at its address, too. While that is dead itself, it replaces nobody.
    let is_replaced = |learner: NodeId, member: &Member| {
        let others = view.at_the_address_of(learner);
        if member.addresses.is_reserved() {
            // Kept until the vote is back, so that one newcomer after the other can take the place.
            return !others.is_disjoint(&view.voters);
        }
        is_dead(learner) && others.iter().any(|other| !is_dead(*other))
    };
    let replaced = view.learners().find(|(learner, member)| is_replaced(*learner, member));
    if let Some((learner, _)) = replaced {
        return Some(Step::Forget(learner));
    }
    view.voters.iter().copied().find(|voter| may_leave(view, *voter)).map(Step::Release)
}

/// Whether `node` asks to leave and the other voters can do without it: all of them are up and have caught up, and enough
/// of them go on voting ([`can_spare_a_voter`]).
///
/// This leader stays. A leader that is to stop hands over, and the next one lets it go.
fn may_leave(view: &MembershipView, node: NodeId) -> bool {
    let asks = view.members.get(&node).is_some_and(|member| member.leaving) && node != view.me;
    asks && view.committed
        && can_spare_a_voter(view.voters.len(), view.reserved())
        && view.voters.iter().all(|voter| *voter == node || view.is_well(voter))
}

/// Says why a learner that has caught up cannot replace the dead node at its address, if the reason will last.
pub(super) fn held_up(view: &MembershipView, since: Instant) -> Option<String> {
    let is_dead = |node: &NodeId| view.silence(*node, since) >= DEAD_AFTER;
    let (learner, dead) = view
        .learners()
        .map(|(learner, _)| (learner, view.at_the_address_of(learner)))
        .find(|(learner, others)| view.is_well(learner) && !others.is_disjoint(&view.voters))?;
    let others = view.voters.difference(&dead).filter(|voter| is_dead(voter));
    let others: Vec<_> = others.map(ToString::to_string).collect();
    (!others.is_empty()).then(|| {
        format!(
            "master {learner} has caught up, but cannot replace the dead node at its address until {} is up: start \
             it, or remove it with `mcctl members remove` if it is gone for good",
            others.join(", ")
        )
    })
}

/// Returns the change that removes a member; one voter must remain.
///
/// A majority of the remaining voters must be up, or nothing could be committed any more. If the member has caught up,
/// a majority of the remaining voters must have caught up too, or commits would wait for one that lags.
pub(super) fn removal(view: &MembershipView, node: NodeId) -> Result<MembershipChange, Refusal> {
    if !view.voters.contains(&node) {
        return Ok(MembershipChange::Forget(node));
    }
    let remaining: BTreeSet<_> = view.voters.iter().copied().filter(|voter| *voter != node).collect();
    let of = remaining.len();
    if of == 0 {
        return Err(Refusal::Invalid(format!(
            "master {node} is the only voter: without it there is no cluster"
        )));
    }
    let remain = if of == 1 { "voter remains" } else { "voters remain" };
    let up = remaining.iter().filter(|voter| view.is_up(voter)).count();
    if 2 * up <= of {
        return Err(Refusal::Invalid(format!(
            "without {node}, {of} {remain} of which {up} {} up, no majority: start them, or remove those that are gone \
             for good first",
            if up == 1 { "is" } else { "are" },
        )));
    }
    let well = remaining.iter().filter(|voter| view.is_well(voter)).count();
    if view.is_well(&node) && 2 * well <= of {
        return Err(Refusal::Busy(format!(
            "without {node}, {of} {remain} of which {well} {} caught up, no majority: see who lags with `mcctl members list`",
            if well == 1 { "has" } else { "have" },
        )));
    }
    Ok(MembershipChange::Voters(remaining))
}

/// Returns the view, unless a change of the members is under way or this leader is leaving.
///
/// During a change, a member that is being removed still counts, and one that is being added may turn out never to have
/// been a member.
pub(super) fn settled(view: MembershipView) -> Result<MembershipView, Refusal> {
    if view.joint || !view.committed {
        return Err(Refusal::Busy("a change of the members is under way: try again".into()));
    }
    if view.is_leaving() {
        return Err(Refusal::Busy("this leader was removed and is about to hand over: try again".into()));
    }
    Ok(view)
}

/// The node that answered at the recorded address of a dead member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupant {
    /// A member, or a master that advertises another address.
    NobodyNew,
    /// A former member that still has data. It returns only if a person asks for it.
    HasData,
    /// An empty master, which lost its disk.
    Empty,
}

pub(super) fn occupant(view: &MembershipView, dead: &Member, there: &PeerState) -> Occupant {
    if view.members.contains_key(&there.node) || there.addresses.raft != dead.addresses.raft {
        return Occupant::NobodyNew;
    }
    if there.formed { Occupant::HasData } else { Occupant::Empty }
}

/// Whether the node that answered at the dialled address is `node`.
pub(super) fn is_there(dialled: Result<PeerState, String>, node: NodeId) -> bool {
    dialled.is_ok_and(|there| there.node == node)
}

/// Voters of the applied log, and when they last changed. Every master watches them, leading or not, so that the next
/// leader knows when the last one made a swap.
///
/// Any change of the voters counts, because a swap looks like a change that people asked for. A master that was started
/// after a swap takes the voters that it finds for old ones. If it leads within that minute, it waits only until a dead
/// member has been silent long enough. The alternative, a wait of a minute after each start, would keep a dead id in
/// the cluster that long whenever masters restart.
#[derive(Debug, Default)]
pub(super) struct SeenVoters {
    /// Empty until the first look.
    last: BTreeSet<NodeId>,
    pub(super) changed: Option<Instant>,
}

impl SeenVoters {
    pub(super) fn see(&mut self, voters: BTreeSet<NodeId>) {
        if self.last == voters {
            return;
        }
        if !self.last.is_empty() {
            self.changed = Some(Instant::now());
        }
        self.last = voters;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::formation::Instance;
    use mc_log::MasterNode;
    use mc_proto::VERSIONS;
    use mc_raft::CAUGHT_UP;

    const ME: NodeId = NodeId(1);

    /// Members 1, 2 and 3 vote, all at addresses of their own, all well.
    fn view() -> MembershipView {
        let members = (1..=3).map(|node| (NodeId(node), member(&format!("m{node}:1"), 0, Some(0)))).collect();
        MembershipView {
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
            addresses: MasterNode { raft: raft.to_owned(), http: "h:1".to_owned(), ..MasterNode::default() },
            lag,
            heard: silent_s.map(|s| Instant::now() - Duration::from_secs(s)),
            sync: None,
            has_descriptors: true,
            leaving: false,
        }
    }

    fn long_ago() -> Instant {
        Instant::now() - Duration::from_secs(100)
    }

    fn with(mut view: MembershipView, node: u64, member: Member) -> MembershipView {
        view.members.insert(NodeId(node), member);
        view
    }

    fn step(view: &MembershipView) -> Option<Step> {
        next_step(view, long_ago(), None)
    }

    #[test]
    fn a_learner_votes_once_it_has_caught_up_and_a_majority_is_up() {
        assert_eq!(step(&view()), None);
        let behind = with(view(), 4, member("m4:1", CAUGHT_UP, Some(0)));
        assert_eq!(step(&behind), None);
        let ready = with(view(), 4, member("m4:1", CAUGHT_UP - 1, Some(0)));
        assert_eq!(step(&ready), Some(Step::Promote(NodeId(4))));
        assert_eq!(step(&with(view(), 4, member("m4:1", 0, Some(2)))), None, "it is not up");

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
            with(with(view(), 3, member("m3:1", 900, dead)), 4, member("m3:1", 0, Some(0)))
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

        let again = with(with(view(), 3, member("m3:1", 900, None)), 5, member("m3:1", 0, Some(0)));
        assert!(next_step(&again, long_ago(), None).is_some());
        assert_eq!(next_step(&again, long_ago(), seen.changed), None, "not for a minute");
    }

    /// A master at m3:1, alive and well, that is no member.
    fn stranger() -> PeerState {
        PeerState {
            instance: Instance(7),
            node: NodeId(4),
            cluster: None,
            formed: false,
            list: Vec::new(),
            addresses: MasterNode { raft: "m3:1".to_owned(), ..MasterNode::default() },
            versions: VERSIONS,
            software: String::new(),
            cluster_version_max: 1,
            tls: None,
        }
    }

    #[test]
    fn only_an_empty_node_at_the_address_of_a_dead_member_is_taken_in_unasked() {
        let view = view();
        let dead = &view.members[&NodeId(3)];
        assert_eq!(occupant(&view, dead, &stranger()), Occupant::Empty);
        let removed = PeerState { formed: true, ..stranger() };
        assert_eq!(
            occupant(&view, dead, &removed),
            Occupant::HasData,
            "one that was removed and moved there"
        );
        for known in [2, 3] {
            let known = PeerState { node: NodeId(known), ..stranger() };
            assert_eq!(occupant(&view, dead, &known), Occupant::NobodyNew);
        }
        let elsewhere = PeerState { addresses: MasterNode::default(), ..stranger() };
        assert_eq!(occupant(&view, dead, &elsewhere), Occupant::NobodyNew, "Raft would call it elsewhere");
    }

    #[test]
    fn a_swap_needs_the_new_node_at_the_address_at_that_moment() {
        assert!(is_there(Ok(stranger()), NodeId(4)));
        assert!(!is_there(Ok(stranger()), NodeId(3)), "another one has it now");
        assert!(!is_there(Err("nobody answers".to_owned()), NodeId(4)));
    }

    #[test]
    fn voters_are_removed_down_to_one_while_what_remains_is_up_and_has_caught_up() {
        let voters = |ids: &[u64]| MembershipChange::Voters(ids.iter().copied().map(NodeId).collect());
        let mut two = view();
        two.voters = BTreeSet::from([ME, NodeId(2)]);
        assert_eq!(removal(&view(), NodeId(3)), Ok(voters(&[1, 2])));
        assert_eq!(removal(&two, NodeId(2)), Ok(voters(&[1])), "the leader removes the other one");
        assert_eq!(removal(&two, ME), Ok(voters(&[2])), "the leader leaves to the other one");
        assert_eq!(removal(&two, NodeId(3)), Ok(MembershipChange::Forget(NodeId(3))), "a learner");

        let lags = with(two.clone(), 2, member("m2:1", CAUGHT_UP, Some(0)));
        assert!(matches!(removal(&lags, ME), Err(Refusal::Busy(_))), "it has not caught up");
        assert_eq!(removal(&lags, NodeId(2)), Ok(voters(&[1])), "all waits for it already");
        let down = with(two.clone(), 2, member("m2:1", 0, Some(2)));
        assert!(matches!(removal(&down, ME), Err(Refusal::Invalid(_))), "nobody would be there");
        let one_of_three_lags = with(view(), 2, member("m2:1", CAUGHT_UP, Some(0)));
        assert!(matches!(removal(&one_of_three_lags, NodeId(3)), Err(Refusal::Busy(_))));
        let mut one = two;
        one.voters = BTreeSet::from([ME]);
        assert!(matches!(removal(&one, ME), Err(Refusal::Invalid(_))), "without it there is no cluster");
    }

    /// Master 3 asks to leave.
    fn leaving() -> MembershipView {
        with(view(), 3, Member { leaving: true, ..member("m3:1", 0, Some(0)) })
    }

    /// Master 3 has left.
    fn left() -> MembershipView {
        let mut left = view();
        left.voters.remove(&NodeId(3));
        let place = member("m3:1", 0, Some(0));
        with(left, 3, Member { addresses: place.addresses.reserved(), leaving: true, ..place })
    }

    #[test]
    fn a_voter_that_stops_is_let_go_while_the_others_are_well_and_most_remain() {
        assert_eq!(step(&leaving()), Some(Step::Release(NodeId(3))));
        let lags = with(leaving(), 2, member("m2:1", CAUGHT_UP, Some(0)));
        assert_eq!(step(&lags), None);
        let down = with(leaving(), 2, member("m2:1", 0, Some(2)));
        assert_eq!(step(&down), None);
        let all = with(leaving(), 2, Member { leaving: true, ..member("m2:1", 0, Some(0)) });
        let first = step(&all);
        assert_eq!(first, Some(Step::Release(NodeId(2))), "of two that stop, one goes");
        let second = with(left(), 2, Member { leaving: true, ..member("m2:1", 0, Some(0)) });
        assert_eq!(step(&second), None, "the other one keeps its vote, and its data");
        let leader = with(view(), 1, Member { leaving: true, ..member("m1:1", 0, Some(0)) });
        assert_eq!(step(&leader), None, "it hands over first");
        assert_eq!(step(&MembershipView { committed: false, ..leaving() }), None);
        let mut two = leaving();
        two.voters.remove(&NodeId(2));
        two.members.remove(&NodeId(2));
        assert_eq!(step(&two), None, "one of two");
    }

    #[test]
    fn one_that_has_left_gets_no_vote_back_before_it_has_started_again() {
        assert_eq!(step(&left()), None, "it still runs, and has the whole log");
        let restarted = with(left(), 3, member("m3:1", 0, Some(0)));
        assert_eq!(step(&restarted), Some(Step::Promote(NodeId(3))), "with its data, at its address");
        let stops_again = with(left(), 3, Member { leaving: true, ..member("m3:1", 0, Some(0)) });
        assert_eq!(step(&stops_again), None);
    }

    #[test]
    fn an_empty_node_at_a_reserved_place_votes_at_once_and_the_place_is_given_up_then() {
        let since = Instant::now();
        let came = with(left(), 4, member("m3:1", 0, Some(0)));
        let step = |view: &MembershipView| next_step(view, since, Some(since));
        assert_eq!(step(&came), Some(Step::Promote(NodeId(4))), "neither the 10 s nor the minute");
        let behind = with(left(), 4, member("m3:1", CAUGHT_UP, Some(0)));
        assert_eq!(step(&behind), None, "the place is kept meanwhile");
        let died = with(with(left(), 4, member("m3:1", 0, Some(5))), 5, member("m3:1", 0, Some(0)));
        assert_eq!(step(&died), Some(Step::Promote(NodeId(5))), "the first newcomer died");
        let mut votes = came;
        votes.voters.insert(NodeId(4));
        assert_eq!(step(&votes), Some(Step::Forget(NodeId(3))));
    }

    #[test]
    fn a_place_is_free_at_once_if_its_master_has_left_it_and_after_a_long_silence_otherwise() {
        let since = Instant::now() - Duration::from_secs(60);
        let heard = |seconds| with(view(), 3, member("m3:1", 0, Some(seconds)));
        assert!(!is_free(&heard(0), NodeId(3), since));
        assert!(!is_free(&heard(9), NodeId(3), since));
        assert!(is_free(&heard(10), NodeId(3), since));
        assert!(is_free(&left(), NodeId(3), since));
    }

    #[test]
    fn no_vote_is_taken_before_all_masters_know_reserved_places() {
        assert!(!Step::Release(NodeId(3)).is_known_to(1));
        assert!(Step::Release(NodeId(3)).is_known_to(2));
        assert!(Step::Promote(NodeId(3)).is_known_to(1));
    }

    #[test]
    fn what_a_dead_leader_left_half_done_comes_first() {
        let mut half_done = with(view(), 4, member("m4:1", 0, Some(0)));
        half_done.joint = true;
        assert_eq!(step(&half_done), Some(Step::Finish));
    }

    #[test]
    fn a_leader_that_finished_its_own_removal_changes_no_members() {
        let mut leaving = with(view(), 4, member("m4:1", 0, Some(0)));
        leaving.joint = true;
        leaving.voters.remove(&ME);
        assert_eq!(step(&leaving), Some(Step::Finish));
        leaving.joint = false;
        leaving.members.remove(&ME);
        assert_eq!(step(&leaving), None);
        assert!(matches!(settled(leaving), Err(Refusal::Busy(_))), "nor does it take itself in again");
        assert!(settled(view()).is_ok());
    }

    #[test]
    fn a_learner_that_died_is_forgotten_only_when_its_address_has_another() {
        let dead = with(view(), 4, member("m4:1", 5, Some(20)));
        assert_eq!(step(&dead), None, "it may come back");
        let to_replace = with(with(view(), 3, member("m3:1", 9, None)), 4, member("m3:1", 5, Some(20)));
        assert_eq!(step(&to_replace), None, "so may one that is to replace a dead voter");
        let replaced = with(dead, 5, member("m4:1", CAUGHT_UP, Some(0)));
        assert_eq!(step(&replaced), Some(Step::Forget(NodeId(4))));
        let members: BTreeMap<_, _> = replaced.members;
        assert_eq!(members.len(), 5);
    }
}
