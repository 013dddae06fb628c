//! Clocks that jump, and clocks that run at another rate.

use std::time::Duration;

use crate::row::Row;

const HOUR: i64 = 3_600;
/// Seconds that a round lasts: drifting apart takes time.
const SPELL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn wall_clock_jumps() {
    Row::new("wall clock jumps by an hour", "leader, then all others the other way")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let way = if round.number.is_multiple_of(2) { HOUR } else { -HOUR };
            for master in 0..round.cluster.masters.len() {
                round.cluster.faulty(master).wall_clock(if master == leader { way } else { 0 });
            }
            tokio::time::sleep(SPELL).await;
            for master in 0..round.cluster.masters.len() {
                round.cluster.faulty(master).wall_clock(if master == leader { 0 } else { -way });
            }
            tokio::time::sleep(SPELL).await;
            round.struck();
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
            mc_tests::until("it leads", async || {
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
