//! Masters that give up their votes before they stop.

use mc_raft::testing::Pool;
use mc_raft::{Departure, MembershipChange, SnapshotLimits};
use mc_testkit::{eventually, until};
use mc_types::NodeId;

use super::*;

/// Three masters, and the places of the leader and of a follower that knows that it votes.
async fn started() -> (Pool, usize, usize) {
    let pool = Pool::formed(3, SnapshotLimits::default()).await;
    let leads = pool.leader().await;
    let follows = (leads + 1) % 3;
    until("it knows that it votes", async || pool.node(follows).departure() == Departure::Waits).await;
    (pool, leads, follows)
}

/// The leader takes the vote of one that asks for it.
async fn release(pool: &Pool, leads: usize, node: NodeId) {
    let leader = pool.node(leads);
    let asks = || leader.membership_view().filter(|view| view.members[&node].leaving);
    let view = eventually("the leader hears that it leaves", async || asks()).await;
    leader.change_members(&view, MembershipChange::Leave(node)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_leaves_when_its_vote_is_taken() {
    let (pool, leads, follows) = started().await;
    let node = pool.node(follows);
    node.ask_to_leave();
    let (left, ()) = tokio::join!(leave(&node, None), release(&pool, leads, node.node_id()));
    assert!(left);
}

/// It has come back without its vote, and its leader may be giving it the vote: a mark would empty a voter's directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_has_no_vote_does_not_leave_although_its_place_is_reserved() {
    let (pool, leads, follows) = started().await;
    let node = pool.node(follows);
    node.ask_to_leave();
    release(&pool, leads, node.node_id()).await;
    until("its place is reserved", async || node.departure() == Departure::Left).await;
    assert!(!leave(&node, None).await);
}

/// A leader takes no vote from itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_elected_while_it_leaves_hands_over_again() {
    let (pool, leads, follows) = started().await;
    let node = pool.node(follows);
    let elected = async {
        // A leader hands over only to a master that it has heard lately.
        let transfer = async || pool.node(leads).transfer_leader(Some(node.node_id())).await.ok();
        let now = eventually("it takes over", transfer).await;
        node.ask_to_leave();
        until("another one leads", async || {
            let leadership = node.leadership().borrow().clone();
            leadership.term > now.term
                && leadership.leader.is_some_and(|(leader, _)| leader != node.node_id())
        })
        .await;
    };
    tokio::select! {
        left = leave(&node, None) => panic!("it ended as {left} while it led"),
        () = elected => {}
    }
}
