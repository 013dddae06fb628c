//! Hand-over from a leader whose disk has become slow to a master with a healthy disk.
//!
//! A slow disk does not stop the cluster: the other masters commit without it. But a leader's proposals wait for its
//! own disk whenever one of the others is away, and its votes and snapshots always do. A slow disk is also often about
//! to fail.

use std::sync::Arc;
use std::time::Duration;

use mc_log::Pace;
use mc_raft::MembershipView;
use mc_types::NodeId;
use tokio::time::Instant;

use super::Members;

/// Time between two looks at the disks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Median sync time above which a leader's disk may be slow.
const SLOW: Duration = Duration::from_millis(200);
/// Time out of the last two seconds that a slow disk has spent on syncs at least.
const SPENT: Duration = Duration::from_secs(1);
/// Number of syncs needed to call a disk slow. Fewer suffice if the latest one took [`SPENT`] or longer.
const SYNCS: usize = 3;
/// Median sync time below which a disk is healthy.
const WELL: Duration = Duration::from_millis(50);
/// Pause after a hand-over that was not confirmed.
const NEXT_TRY: Duration = Duration::from_secs(30);

/// Watches the disks until this master stops; does nothing while it does not lead.
pub(crate) async fn leave_to_a_better_disk(members: Arc<Members>) {
    let mut not_before = Instant::now();
    while members.coordinator.pause(LOOK_INTERVAL).await {
        if members.coordinator.on_duty().is_none() || Instant::now() < not_before {
            continue;
        }
        let (Some(own), Some(view)) = (members.raft.sync_pace().now(), members.raft.membership_view()) else {
            continue;
        };
        let Some((node, theirs)) = successor(own, &view) else { continue };
        tracing::warn!(
            "this master's disk is slow: the median sync takes {} ms; handing over to {node}, whose syncs take {} ms",
            own.median.as_millis(),
            theirs.as_millis()
        );
        members.metrics.slow_disk_handovers.increment(1);
        if let Err(why) = members.coordinator.hand_over(Some(node)).await {
            // With a stuck disk, this master may not learn that the hand-over succeeded.
            tracing::warn!("the hand-over was not confirmed: {why}");
            not_before = Instant::now() + NEXT_TRY;
        }
    }
}

/// Returns a better leader, if the disk of this master, with pace `own`, is slow: of the other voters that have caught
/// up and stay, the one with the fastest disk, and its median sync time.
///
/// Returns `None` unless the others with healthy disks are a majority by themselves. A vote is written before it
/// counts, so the vote of a master with a slow disk comes too late, and an election that needs it has no winner.
fn successor(own: Pace, view: &MembershipView) -> Option<(NodeId, Duration)> {
    if own.median <= SLOW || own.spent < SPENT || (own.syncs < SYNCS && own.latest < SPENT) {
        return None;
    }
    let others = view.voters.iter().filter(|voter| **voter != view.me && view.is_well(voter));
    let well: Vec<_> = others
        .filter_map(|voter| view.members.get(voter).map(|member| (*voter, member)))
        .filter_map(|(voter, member)| Some((voter, member.sync?, member.leaving)))
        .filter(|(_, sync, _)| *sync < WELL)
        .collect();
    if 2 * well.len() <= view.voters.len() {
        return None;
    }
    // One that is about to stop still votes.
    let stay = well.into_iter().filter(|(_, _, leaving)| !leaving);
    stay.map(|(voter, sync, _)| (voter, sync)).min_by_key(|(_, sync)| *sync)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use mc_log::MasterNode;
    use mc_raft::Member;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn view(syncs: &[Option<u64>]) -> MembershipView {
        let member = |sync: Option<u64>| Member {
            addresses: MasterNode::default(),
            lag: 0,
            heard: Some(Instant::now()),
            sync: sync.map(ms),
            has_descriptors: true,
            leaving: false,
        };
        let members: BTreeMap<_, _> =
            (1..).zip(syncs).map(|(node, sync)| (NodeId(node), member(*sync))).collect();
        let voters = members.keys().copied().collect();
        MembershipView {
            me: NodeId(1),
            term: 1,
            version: None,
            joint: false,
            committed: true,
            voters,
            members,
        }
    }

    #[test]
    fn the_best_disk_of_those_that_are_up_takes_over() {
        let slow = Pace { median: ms(201), spent: ms(1_000), latest: ms(1), syncs: 3 };
        let all = view(&[Some(1), Some(49), Some(20)]);
        assert_eq!(successor(slow, &all), Some((NodeId(3), ms(20))));
        assert_eq!(successor(Pace { median: ms(200), ..slow }, &all), None);
        assert_eq!(successor(Pace { spent: ms(999), ..slow }, &all), None);
        assert_eq!(successor(Pace { syncs: 2, ..slow }, &all), None, "a slow sync or two");
        let stuck = Pace { syncs: 1, latest: ms(1_000), ..slow };
        assert_eq!(successor(stuck, &all), Some((NodeId(3), ms(20))));

        assert_eq!(successor(slow, &view(&[Some(1), Some(50), None])), None, "no better, or not known");
        assert_eq!(successor(slow, &view(&[Some(1), Some(1)])), None, "its own vote would be needed");
        assert_eq!(successor(slow, &view(&[Some(1), Some(1), None])), None, "here, too");
        let five = view(&[Some(1), Some(9), Some(8), Some(7), Some(300)]);
        assert_eq!(successor(slow, &five), Some((NodeId(4), ms(7))));
        let mut leaves = five.clone();
        leaves.members.get_mut(&NodeId(4)).unwrap().leaving = true;
        assert_eq!(successor(slow, &leaves), Some((NodeId(3), ms(8))), "one that is about to stop");
        let mut behind = five;
        behind.members.get_mut(&NodeId(4)).unwrap().lag = 1_000_000;
        assert_eq!(successor(slow, &behind), None);
    }
}
