//! A follower whose log has lost entries that it acknowledged, as after a loss of power with `--log-sync none`.

use mc_testkit::until;

use crate::apply::snapshot_limits::SnapshotLimits;
use crate::testing::Pool;

/// With a third voter down, the leader can commit nothing without that follower.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_lost_what_it_acknowledged_gets_it_again_in_the_same_term() {
    let mut pool = Pool::formed(3, SnapshotLimits::default()).await;
    let first = pool.write(0).await;
    let leader = pool.leader().await;
    let (follower, down) = ((leader + 1) % 3, (leader + 2) % 3);
    let last = pool.write(1).await;
    assert_eq!(last.leader_id, first.leader_id);
    pool.converge(last).await;
    pool.stop(down).await;
    // Acknowledged by the follower, because the leader alone is no majority.
    let last = pool.write(2).await;
    pool.stop(follower).await;
    assert_eq!(pool.members[follower].log.lose_last(), Some(last));
    pool.start(follower).await.unwrap();

    let after = pool.write(3).await;
    assert_eq!(after.leader_id, last.leader_id);
    let said = pool.node(leader).lost_entries().unwrap();
    assert!(said.contains(&format!("acknowledged all up to {last}")), "{said}");
    until("the follower to have it again", async || {
        pool.node(follower).index().read(|applied| applied.last_applied >= Some(after))
    })
    .await;
    // A term that ended meanwhile shows in the next entry.
    assert_eq!(pool.write(4).await.leader_id, last.leader_id, "the leader still leads");
    pool.start(down).await.unwrap();
    pool.converge(after).await;
}
