//! A follower that comes back after the entries that it lacks were purged, and a new master that never had them.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Cluster, Link, Workload, fill, mcctl, until};

use crate::membership::{added, removed};
use crate::row::{FAILOVER, Row, Who};

const EVERY: [&str; 4] = ["--snapshot-log-entries", "400", "--keep-log-entries", "100"];
/// Puts after which the log of a follower that was away ends before that of the leader begins: two entries each.
const PUTS: usize = 600;
/// Bytes a second at which a snapshot is sent that a kill is to meet, or that is not to arrive. Heartbeats have a
/// connection of their own.
const SLOWLY: u64 = 16 << 10;
/// Objects of which a snapshot takes minutes at that.
const OBJECTS: u64 = 20_000;
/// A learner that lacks so many entries has not caught up.
const LAGS: u64 = 1_000;

fn row(role: &'static str, service: Service) -> Row {
    Row::new("snapshot install under load, log purged", role, service)
        .cluster(|cluster| cluster.master_args(EVERY))
        .workload(Workload::growing(4))
}

#[tokio::test]
async fn snapshot_to_lagging_follower() {
    row("follower", Service::unaffected())
        .run_at(Who::Follower, async |round, follower| {
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
    row("leader, killed while a follower is sent one", FAILOVER)
        .run_at(Who::Leader, async |round, leader| {
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
            round.all_served().await;
            round.cluster.masters[leader].start();
        })
        .await;
}

/// The leader's last entry that is known to be committed.
async fn committed(cluster: &Cluster) -> u64 {
    let leader = cluster.leader().await;
    cluster.status(leader).await.map_or(0, |status| status.committed)
}

/// Waits until the leader has seen that it is up and lags. It must have no vote meanwhile.
async fn lags_without_a_vote(cluster: &Cluster, learner: &str) {
    let admin = cluster.client().await.admin();
    until("it is up and lags", async || {
        let Ok(listed) = admin.list_members().await else { return false };
        let listed = listed.members.into_iter().find(|member| member.raft_address == learner);
        listed.is_some_and(|member| {
            assert!(!member.voter, "it has a vote, and lacks {:?} entries", member.lag_entries);
            member.lag_entries >= Some(LAGS)
                && member.silent.is_some_and(|silent| silent < Duration::from_secs(1))
        })
    })
    .await;
}

/// A master is taken in that answers and cannot catch up. It has no vote as long as that is so, and gets it by itself
/// once its links are wide again. The cluster works as if it were not there.
#[tokio::test]
async fn lagging_learner() {
    row("learner, a fourth master, over links of 16 KiB/s", Service::unaffected())
        .cluster(|cluster| cluster.masters(4))
        .run(async |round| {
            if round.number == 0 {
                fill(&round.cluster.client().await, 0..OBJECTS).await;
            }
            let learner = round.cluster.follower().await;
            let address = removed(round, learner).await;
            let filled = committed(round.cluster).await;
            // The snapshot has all of the above, and the log more entries than a learner may lack.
            until("the log grows", async || committed(round.cluster).await > filled + LAGS).await;
            let links = round.cluster.links();
            let others = links.other_masters(learner);
            for other in &others {
                links.set(*other, learner, Link::Narrow { bytes_per_second: SLOWLY });
            }
            until("it is taken in", async || {
                let add = ["--timeout", "2s", "members", "add", address.as_str()];
                let (code, said) = mcctl(round.cluster, &add).await;
                assert_ne!(code, 0, "it has a vote, and has not caught up: {said}");
                // Taken in, and no voter for those two seconds.
                code == 1
            })
            .await;
            lags_without_a_vote(round.cluster, &address).await;
            round.struck_on_links();
            // What waits on these connections would come as slowly as it was sent.
            let open = links.open();
            links.between(&[learner], &others, Link::Cut);
            until("connections are reset", async || links.open() < open).await;
            links.heal();
            added(round.cluster, &address).await;
        })
        .await;
}
