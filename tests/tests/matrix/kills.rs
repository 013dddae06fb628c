//! kill -9.

use crate::row::Row;

#[tokio::test]
async fn kill_leader() {
    Row::new("kill -9", "leader")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            round.cluster.masters[leader].kill9();
            round.struck();
            round.running.acknowledged(1).await;
            round.cluster.masters[leader].start();
        })
        .await;
}

#[tokio::test]
async fn kill_follower() {
    Row::new("kill -9", "follower")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            round.cluster.masters[follower].kill9();
            round.struck();
            round.running.acknowledged(50).await;
            round.cluster.masters[follower].start();
        })
        .await;
}

#[tokio::test]
async fn kill_two_followers() {
    Row::new("kill -9", "two followers of three")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let [one, other] = [(leader + 1) % 3, (leader + 2) % 3];
            round.cluster.masters[one].kill9();
            round.cluster.masters[other].kill9();
            round.struck();
            // Without a majority nothing is acknowledged: of what the clients try, nothing is, or it is never lost.
            round.running.operations(20).await;
            round.service_is_owed();
            round.cluster.masters[one].start();
            round.running.acknowledged(1).await;
            round.cluster.masters[other].start();
        })
        .await;
}

#[tokio::test]
async fn kill_all() {
    Row::new("kill -9", "all masters")
        .run(async |round| {
            for master in &mut round.cluster.masters {
                master.kill9();
            }
            round.struck();
            round.service_is_owed();
            round.cluster.masters.iter_mut().for_each(mc_tests::Process::start);
        })
        .await;
}
