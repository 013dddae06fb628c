//! Hand-over from a leader that is out of descriptors to a master that has some.
//!
//! Such a leader accepts no connection, opens no file for its log or a snapshot, and cannot reach a master that it has
//! lost. The bounds of its ports keep floods from taking that many (`ports`). A lowered limit, a system without free
//! descriptors or other use may take the rest.

use std::sync::Arc;
use std::time::Duration;

use mc_raft::MembershipView;
use mc_types::NodeId;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Members;

/// Descriptors without which a master is out of them: one for a snapshot or a file of the log, and one for a connection.
/// The ports' shares leave more than that, also of a limit of 64 (`ports`): a master of three takes 27 besides them.
const SPARE: usize = 2;
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Consecutive looks without descriptors after which a leader hands over.
const LOOKS: u32 = 2;
/// Least time between a change of the leader and a hand-over. A flood of callers follows the leadership, and the master
/// that it left has descriptors again.
const EACH: Duration = Duration::from_secs(60);

/// Tells whether this process has spare descriptors, as of the last half second.
#[derive(Debug, Default)]
pub(crate) struct SpareDescriptors(Mutex<Option<(Instant, bool)>>);

impl SpareDescriptors {
    pub(crate) fn are_there(&self) -> bool {
        let mut last = self.0.lock();
        let now = Instant::now();
        match *last {
            Some((at, there)) if now.duration_since(at) < LOOK_INTERVAL => there,
            _ => {
                let there = mc_process::has_descriptors(SPARE);
                *last = Some((now, there));
                there
            }
        }
    }
}

/// Watches the descriptors until this master stops.
pub(crate) async fn leave_to_a_master_with_descriptors(members: Arc<Members>, spare: Arc<SpareDescriptors>) {
    let mut watch = Watch::default();
    while members.coordinator.pause(LOOK_INTERVAL).await {
        let leader = members.raft.leadership().borrow().leader.as_ref().map(|(node, _)| *node);
        let lacking = if spare.are_there() { None } else { members.raft.membership_view() };
        let Some(node) = watch.look(Instant::now(), leader, lacking.as_ref()) else { continue };
        tracing::warn!(
            "this master is out of descriptors: handing over to {node}, which has some. Raise the limit on open files \
             (LimitNOFILE, ulimit -n), and look who uses them: ls -l /proc/{}/fd",
            std::process::id()
        );
        if let Err(why) = members.coordinator.hand_over(Some(node)).await {
            tracing::warn!("the hand-over was not confirmed: {why}");
        }
    }
}

/// The looks so far.
#[derive(Debug, Default)]
struct Watch {
    /// The last known leader.
    leader: Option<NodeId>,
    /// Time of the last change of the leader, or of the last hand-over that was tried.
    changed: Option<Instant>,
    /// Number of consecutive looks at which this master led without descriptors.
    lacking: u32,
}

impl Watch {
    /// Returns the master to hand over to, if it is time. `lacking` is the view of a leader without descriptors.
    fn look(
        &mut self,
        now: Instant,
        leader: Option<NodeId>,
        lacking: Option<&MembershipView>,
    ) -> Option<NodeId> {
        if let Some(leader) = leader
            && self.leader.replace(leader).is_some_and(|before| before != leader)
        {
            self.changed = Some(now);
        }
        let Some(view) = lacking else {
            self.lacking = 0;
            return None;
        };
        self.lacking += 1;
        let too_early = self.changed.is_some_and(|changed| now.duration_since(changed) < EACH);
        if self.lacking < LOOKS || too_early {
            return None;
        }
        let successor = successor(view)?;
        self.changed = Some(now);
        Some(successor)
    }
}

/// Returns the voter with the longest log of those that have caught up, stay and report free descriptors.
fn successor(view: &MembershipView) -> Option<NodeId> {
    let others = view.voters.iter().filter(|voter| **voter != view.me && view.is_well(voter));
    let with_descriptors = others.filter_map(|voter| Some((*voter, view.members.get(voter)?)));
    let with_descriptors = with_descriptors.filter(|(_, member)| member.has_descriptors && !member.leaving);
    with_descriptors.min_by_key(|(_, member)| member.lag).map(|(voter, _)| voter)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use mc_log::MasterNode;
    use mc_raft::Member;

    const ME: NodeId = NodeId(1);

    /// The view of node 1; each of the others with its lag and whether it reports descriptors.
    fn view(others: &[(u64, bool)]) -> MembershipView {
        let member = |lag, has_descriptors| Member {
            addresses: MasterNode::default(),
            lag,
            heard: Some(Instant::now()),
            sync: None,
            has_descriptors,
            leaving: false,
        };
        let mut members: BTreeMap<_, _> =
            (2..).zip(others).map(|(node, (lag, has))| (NodeId(node), member(*lag, *has))).collect();
        members.insert(ME, member(0, false));
        let voters = members.keys().copied().collect();
        MembershipView { me: ME, term: 1, version: None, joint: false, committed: true, voters, members }
    }

    #[test]
    fn a_voter_that_has_caught_up_and_reports_descriptors_takes_over() {
        assert_eq!(successor(&view(&[(3, true), (2, true)])), Some(NodeId(3)));
        assert_eq!(successor(&view(&[(3, true), (2, false)])), Some(NodeId(2)));
        assert_eq!(successor(&view(&[(1_000_000, true), (2, false)])), None);
        assert_eq!(successor(&view(&[(0, false), (0, false)])), None, "all are flooded");
        let mut leaves = view(&[(3, true), (2, true)]);
        leaves.members.get_mut(&NodeId(3)).unwrap().leaving = true;
        assert_eq!(successor(&leaves), Some(NodeId(2)));
        let mut learner = view(&[(0, true)]);
        learner.voters.remove(&NodeId(2));
        assert_eq!(successor(&learner), None);
    }

    #[test]
    fn a_lack_of_a_moment_is_no_reason() {
        let (mut watch, view, now) = (Watch::default(), view(&[(0, true)]), Instant::now());
        assert_eq!(watch.look(now, Some(ME), Some(&view)), None);
        assert_eq!(watch.look(now, Some(ME), None), None);
        assert_eq!(watch.look(now, Some(ME), Some(&view)), None);
        assert_eq!(watch.look(now, None, Some(&view)), Some(NodeId(2)));
    }

    #[test]
    fn leadership_does_not_circle_when_the_flood_follows_it() {
        // Given: three masters, of which whichever leads is out of descriptors, and the others have some.
        let begun = Instant::now();
        let mut watches = [Watch::default(), Watch::default(), Watch::default()];
        let (mut leader, mut handed_over) = (0, Vec::new());
        // When ten minutes pass.
        for look in 0..1_200 {
            let now = begun + LOOK_INTERVAL * look;
            let of_leader = {
                let mut view = view(&[(0, true), (0, true)]);
                let mine = NodeId(leader as u64 + 1);
                view.me = mine;
                view.members.get_mut(&ME).unwrap().has_descriptors = true;
                view
            };
            let mut next = leader;
            for (master, watch) in watches.iter_mut().enumerate() {
                let lacking = (master == leader).then_some(&of_leader);
                if let Some(to) = watch.look(now, Some(NodeId(leader as u64 + 1)), lacking) {
                    handed_over.push(now);
                    next = to.0 as usize - 1;
                }
            }
            leader = next;
        }
        // Then it moved, and never twice within a minute.
        assert!(handed_over.len() > 5, "{}", handed_over.len());
        assert!(handed_over.windows(2).all(|two| two[1].duration_since(two[0]) >= EACH));
        assert!(handed_over[0].duration_since(begun) < EACH, "the first one need not wait");
    }
}
