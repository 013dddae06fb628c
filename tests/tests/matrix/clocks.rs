//! Clocks that jump, and clocks that run at another rate.

use std::time::Duration;

use mc_tests::{Cluster, Link, http_get, until};

use crate::partitions::leader_alone;
use crate::row::{Round, Row, Who};

const HOUR: i64 = 3_600;
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
    Row::new("wall clock jumps by an hour", "leader, forward, then back; then the others the other way")
        .run_at(Who::Leader, async |round, leader| {
            set_off(round.cluster, |master| if master == leader { HOUR } else { 0 }).await;
            round.hit().await;
            tokio::time::sleep(SPELL).await;
            set_off(round.cluster, |master| if master == leader { -HOUR } else { HOUR }).await;
            round.struck();
            tokio::time::sleep(SPELL).await;
            set_off(round.cluster, |_| 0).await;
        })
        .await;
}

/// Starts a master again, with a clock that is off by so many millionths.
async fn restarted(round: &mut Round<'_>, master: usize, ppm: i64) {
    round.cluster.masters[master].kill9();
    round.cluster.faulty(master).clock_rate(ppm);
    round.cluster.masters[master].start();
    round.cluster.ready().await;
}

/// The masters' clocks run at different rates; the one with a rate of its own leads, and is cut off from the others. By a slow
/// clock its lease lasts longer than the others, whose clocks are fast, promised not to vote.
async fn rates(role: &'static str, leader_ppm: i64, others_ppm: i64) {
    Row::new("monotonic clocks 10 % apart, partition", role)
        .run_at(Who::Follower, async |round, follower| {
            for master in 0..round.cluster.masters.len() {
                restarted(round, master, if master == follower { leader_ppm } else { others_ppm }).await;
            }
            let address = round.cluster.master_raft(follower).to_owned();
            until("it leads", async || {
                mc_tests::mcctl(round.cluster, &["members", "transfer-leader", &address]).await;
                round.cluster.find_leader().await == Some(follower)
            })
            .await;
            tokio::time::sleep(SPELL).await;
            leader_alone(round, |links, leader| {
                links.between(&[leader], &links.other_masters(leader), Link::Silent);
            })
            .await;
            for master in 0..round.cluster.masters.len() {
                restarted(round, master, 0).await;
            }
        })
        .await;
}

rows! {
    clock_fast => rates("leader alone, fast, all others slow", 50_000, -50_000);
    clock_slow => rates("leader alone, slow, all others fast", -50_000, 50_000);
}
