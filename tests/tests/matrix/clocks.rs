//! Clocks that jump, and clocks that run at another rate.

use std::time::Duration;

use mc_tests::{Cluster, http_get, until};

use crate::row::Row;

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
        .run(async |round| {
            let leader = round.leader().await;
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

/// A master's clock runs at another rate from its start on; it leads for a while, and hands over by dying.
async fn rate(ppm: i64, role: &'static str) {
    Row::new("monotonic clock 5 % off", role)
        .run(async |round| {
            let follower = round.cluster.follower().await;
            round.cluster.masters[follower].kill9();
            round.cluster.faulty(follower).clock_rate(ppm);
            round.cluster.masters[follower].start();
            round.running.acknowledged(50).await;
            let address = round.cluster.master_raft(follower).to_owned();
            until("it leads", async || {
                mc_tests::mcctl(round.cluster, &["members", "transfer-leader", &address]).await;
                round.cluster.find_leader().await == Some(follower)
            })
            .await;
            round.struck();
            tokio::time::sleep(SPELL).await;
            round.cluster.masters[follower].kill9();
            round.cluster.faulty(follower).clock_rate(0);
            round.cluster.masters[follower].start();
        })
        .await;
}

#[tokio::test]
async fn clock_fast() {
    rate(50_000, "leader, fast").await;
}

#[tokio::test]
async fn clock_slow() {
    rate(-50_000, "leader, slow").await;
}
