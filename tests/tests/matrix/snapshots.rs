//! A follower that comes back after the entries that it lacks were purged.

use mc_tests::{Cluster, Link, Mix, Workload, until};

use crate::row::Row;

const EVERY: [&str; 4] = ["--snapshot-log-entries", "400", "--keep-log-entries", "100"];
/// Puts after which the log of a follower that was away ends before that of the leader begins: two entries each.
const PUTS: usize = 600;
/// Bytes a second at which a snapshot is sent that a kill is to meet.
const SLOWLY: u64 = 16 << 10;

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
            let taken =
                |cluster: &Cluster| cluster.masters[follower].output().matches("took a snapshot").count();
            let before = taken(round.cluster);
            round.cluster.masters[follower].kill9();
            round.running.acknowledged(PUTS).await;
            round.cluster.masters[follower].start();
            until("it takes a snapshot", async || taken(round.cluster) > before).await;
            round.struck();
        })
        .await;
}

#[tokio::test]
async fn leader_killed_while_it_sends_a_snapshot() {
    row("leader, killed while a follower is sent one")
        .run(async |round| {
            let leader = round.leader().await;
            let follower = (leader + 1) % 3;
            round.cluster.masters[follower].kill9();
            round.running.acknowledged(PUTS).await;
            round.cluster.links().set(leader, follower, Link::Narrow { bytes_per_second: SLOWLY });
            round.cluster.masters[follower].start();
            let snapshots = round.cluster.master_dir(follower).join("snapshots");
            until("a snapshot is on its way", async || {
                let mut files = std::fs::read_dir(&snapshots).into_iter().flatten().flatten();
                files.any(|file| file.path().extension().is_some_and(|ext| ext == "partial"))
            })
            .await;
            round.cluster.masters[leader].kill9();
            round.hit().await;
            round.struck();
            round.cluster.links().heal();
            round.running.acknowledged(1).await;
            round.cluster.masters[leader].start();
        })
        .await;
}
