//! Masters far from each other: up to the round trip that `--raft-timing` supports, and beyond.

use std::time::Duration;

use futures::FutureExt as _;
use mc_tests::service::Service;
use mc_tests::{Cluster, http_get, is_ready, until};

use crate::kills::leader_killed;
use crate::membership::{added, removed};
use crate::round::Round;
use crate::row::{Row, Who, apart};

/// Elections take seconds, and a client without a leader for 1 s answers by itself.
const FAR_FAILOVER: Service = Service::interrupted(Duration::from_secs(4))
    .failed(500, "no leader for 1 s")
    .local_only(500, "no leader for 1 s")
    .false_misses(500, "no leader for 1 s")
    .unknown(1, "remove under way");
/// Long enough that nothing of what the cluster did when it formed keeps it going.
const IDLE: Duration = Duration::from_secs(15);

/// Forms, mounts, and is left alone; then clients come, and the term in which it rested goes on.
async fn idle(timing: &'static str, round_trip_ms: u64, fault: &'static str) {
    // A put takes three round trips, and may wait for another one.
    let service = Service::interrupted(Duration::from_millis(500 + 6 * round_trip_ms));
    Row::new(fault, "all masters, idle for 15 s before the first put", service)
        .cluster(|cluster| cluster.master_args(["--raft-timing", timing]))
        .round_trip(Duration::from_millis(round_trip_ms))
        .rest(|cluster| {
            async move {
                let before = term(cluster).await;
                tokio::time::sleep(IDLE).await;
                assert_eq!(term(cluster).await, before, "another leader was elected while nothing happened");
            }
            .boxed_local()
        })
        .run(delayed)
        .await;
}

/// The links delay all the time: waits until they have in this round, too.
async fn delayed(round: &mut Round<'_>) {
    let before = round.cluster.links().bent();
    until("a message is delayed", async || round.cluster.links().bent() > before).await;
    round.struck_on_links();
}

/// The term of the master that leads.
async fn term(cluster: &Cluster) -> u64 {
    let leader = cluster.leader().await;
    cluster.status(leader).await.expect("the leader answers").term
}

rows! {
    lan_10_ms => idle("lan", 10, "round trip of 10 ms");
    lan_30_ms => idle("lan", 30, "round trip of 30 ms");
    lan_60_ms => idle("lan", 60, "round trip of 60 ms");
    lan_75_ms => idle("lan", 75, "round trip of 75 ms, the longest of lan");
    wan_200_ms => idle("wan", 200, "round trip of 200 ms, wan");
    wan_250_ms => idle("wan", 250, "round trip of 250 ms, the longest of wan");
}

/// The leader says that it can't write, wherever somebody looks, and takes it back when the network is as it was.
async fn too_far_for_a_while(cluster: &Cluster) {
    let leader = cluster.leader().await;
    let http = cluster.master_http(leader);
    cluster.links().among_masters(apart(Duration::from_millis(250)));
    until("the leader is not ready, because it can't write", async || {
        let answer = http_get(http, "/readyz").await;
        answer.is_ok_and(|(code, why)| code == 503 && why.contains("this leader can't write"))
    })
    .await;
    let warned = || cluster.masters[leader].output().matches("this leader can't write").count();
    until("the leader warns", async || warned() > 0).await;
    until("status says why", async || {
        let status = cluster.status(leader).await;
        status.is_some_and(|status| status.no_puts.contains("up to 75 ms"))
    })
    .await;
    until("the metric says so", async || {
        cluster.metric(leader, "mc_raft_leader_can_write").await == Some(0.0)
            && cluster
                .metric(leader, "mc_raft_round_trip_seconds")
                .await
                .is_some_and(|seconds| seconds >= 0.25)
    })
    .await;
    assert_eq!(warned(), 1, "one warning");

    cluster.links().among_masters(apart(Duration::from_millis(10)));
    until("the leader is ready again", async || {
        is_ready(http).await && cluster.metric(leader, "mc_raft_leader_can_write").await == Some(1.0)
    })
    .await;
    assert_eq!(cluster.leader().await, leader, "its followers heard it all the time");
}

#[tokio::test]
async fn beyond_the_limit_for_a_while() {
    Row::new(
        "round trip of 250 ms, too long for lan, for a while",
        "all masters, idle",
        Service::unaffected(),
    )
    .round_trip(Duration::from_millis(10))
    .rest(|cluster| too_far_for_a_while(cluster).boxed_local())
    .run(delayed)
    .await;
}

#[tokio::test]
async fn kill_leader_at_75_ms() {
    Row::new("kill -9 at a round trip of 75 ms", "leader", FAR_FAILOVER)
        .round_trip(Duration::from_millis(75))
        .run_at(Who::Leader, leader_killed)
        .await;
}

#[tokio::test]
async fn members_change_at_75_ms() {
    let service = Service::interrupted(Duration::from_millis(950));
    Row::new("members remove, then members add, at a round trip of 75 ms", "follower", service)
        .round_trip(Duration::from_millis(75))
        .run_at(Who::Follower, async |round, follower| {
            let address = removed(round, follower).await;
            added(round.cluster, &address).await;
            delayed(round).await;
        })
        .await;
}
