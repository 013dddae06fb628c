//! Clocks that jump, and clocks that run at another rate.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Cluster, Link, http_get, report, until};
use tokio::time::Instant;

use crate::partitions::leader_alone;
use crate::row::{FAILOVER, Row, Who};
use crate::witness::Witness;

const HOUR: i64 = 3_600;
/// All masters are restarted, one after the other, before the partition.
const SERVICE: Service = FAILOVER.unknown(4, "removes under way");
/// How long a clock is off: drifting apart takes time.
const SPELL: Duration = Duration::from_secs(2);

/// Sets each master's wall clock off by so much, and waits until those that are off have been looked at.
async fn set_off(cluster: &Cluster, by: impl Fn(usize) -> i64) {
    for master in 0..cluster.masters.len() {
        cluster.faulty(master).wall_clock(by(master));
    }
    for master in (0..cluster.masters.len()).filter(|master| by(*master) != 0) {
        let before = cluster.faulty(master).struck();
        until("it looks at its clock", async || {
            // What is answered over HTTP is dated.
            let _ = http_get(cluster.master_http(master), "/livez").await;
            cluster.faulty(master).struck() > before
        })
        .await;
    }
}

/// The leader's clock first goes forward alone, then back by two hours while those of the others go forward: its time
/// has been on both sides of theirs.
#[tokio::test]
async fn wall_clock_jumps() {
    Row::new(
        "wall clock jumps by an hour",
        "leader, forward, then back; then the others the other way",
        Service::unaffected(),
    )
    .run_at(Who::Leader, async |round, leader| {
        set_off(round.cluster, |master| if master == leader { HOUR } else { 0 }).await;
        round.hit().await;
        round.spell(SPELL).await;
        set_off(round.cluster, |master| if master == leader { -HOUR } else { HOUR }).await;
        round.struck();
        round.spell(SPELL).await;
        set_off(round.cluster, |_| 0).await;
    })
    .await;
}

/// Starts a master again, with a clock that is off by so many millionths.
async fn restarted(cluster: &mut Cluster, master: usize, ppm: i64) {
    cluster.masters[master].kill9();
    cluster.faulty(master).clock_rate(ppm);
    cluster.masters[master].start();
    cluster.ready().await;
}

async fn made_leader(cluster: &Cluster, master: usize) {
    until("it leads", async || {
        mc_tests::mcctl(cluster, &["members", "transfer-leader", cluster.master_raft(master)]).await;
        cluster.find_leader().await == Some(master)
    })
    .await;
}

/// The masters' clocks run at different rates; the one with a rate of its own leads, and is cut off from the others. By a slow
/// clock its lease lasts longer than the others, whose clocks are fast, promised not to vote.
async fn rates(role: &'static str, leader_ppm: i64, others_ppm: i64) {
    Row::new("monotonic clocks 10 % apart, partition", role, SERVICE)
        .run_at(Who::Follower, async |round, follower| {
            for master in 0..round.cluster.masters.len() {
                let ppm = if master == follower { leader_ppm } else { others_ppm };
                restarted(round.cluster, master, ppm).await;
            }
            made_leader(round.cluster, follower).await;
            tokio::time::sleep(SPELL).await;
            leader_alone(round, |links, leader| {
                links.between(&[leader], &links.other_masters(leader), Link::Silent);
            })
            .await;
            for master in 0..round.cluster.masters.len() {
                restarted(round.cluster, master, 0).await;
            }
        })
        .await;
}

rows! {
    clock_fast => rates("leader alone, fast, all others slow", 50_000, -50_000);
    clock_slow => rates("leader alone, slow, all others fast", -50_000, 50_000);
}

/// By how much the leader's clock is slow and the others' fast, in millionths, where no lease can hold: the leader's lasts 560 ms, the
/// others elect another one after 280 to 375 ms.
const FAR_APART: i64 = 600_000;
/// Partitions until one has to show it: the others may have heard the leader last when its lease had begun long before.
const CUTS: usize = 10;

/// The rows above would find a lease that a clock makes too long: with clocks far enough apart, the witness has an answer of the old
/// leader to a call that was sent when another one led.
#[tokio::test]
async fn clocks_too_far_apart_would_be_found() {
    let mut cluster = Cluster::builder().faulty().start().await;
    let leader = cluster.leader().await;
    for master in 0..cluster.masters.len() {
        restarted(&mut cluster, master, if master == leader { -FAR_APART } else { FAR_APART }).await;
    }
    let (mut cuts, mut found) = (0, false);
    while !found && cuts < CUTS {
        cuts += 1;
        made_leader(&cluster, leader).await;
        let witness = Witness::of(&cluster, leader).await;
        let links = cluster.links();
        links.between(&[leader], &links.other_masters(leader), Link::Silent);
        until("another master leads", async || cluster.find_leader().await.is_some_and(|now| now != leader))
            .await;
        let led = Instant::now();
        witness.was_asked_since(led).await;
        found = witness.has_read_since(led);
        links.heal();
    }
    report(&serde_json::json!({ "test": std::thread::current().name(), "cuts": cuts, "found": found }));
    assert!(found, "no lease was outrun in {cuts} partitions: the rows of clocks can't fail");
}
