//! A follower that comes back after the entries that it lacks were purged.

use mc_tests::{Mix, Workload, until};

use crate::row::Row;

const EVERY: [&str; 4] = ["--snapshot-log-entries", "1000", "--keep-log-entries", "100"];

fn row(role: &'static str) -> Row {
    // Nothing is ever removed: whatever a purge or a snapshot forgets is missed.
    Row::new("snapshot install under load, log purged", role)
        .cluster(|cluster| cluster.master_args(EVERY))
        .workload(Workload::new(4).keys(100_000).sizes(1..512).mix(Mix::GROWING))
}

#[tokio::test]
async fn snapshot_to_lagging_follower() {
    row("follower")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            round.cluster.masters[follower].kill9();
            round.running.acknowledged(1_500).await;
            round.cluster.masters[follower].start();
            until("it has caught up", async || {
                let status = round.cluster.status(follower).await;
                status.is_some_and(|status| {
                    status.role == "follower" && status.applied + 1_000 > status.committed
                })
            })
            .await;
            assert!(round.cluster.masters[follower].output().contains("took a snapshot"), "it was sent one");
            round.struck();
        })
        .await;
}

#[tokio::test]
async fn leader_killed_while_it_sends_a_snapshot() {
    row("leader, killed while a follower is sent one")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let follower = (leader + 1) % 3;
            round.cluster.masters[follower].kill9();
            round.running.acknowledged(1_500).await;
            round.cluster.masters[follower].start();
            until("it answers", async || round.cluster.status(follower).await.is_some()).await;
            round.cluster.masters[leader].kill9();
            round.struck();
            round.running.acknowledged(1).await;
            round.cluster.masters[leader].start();
        })
        .await;
}
