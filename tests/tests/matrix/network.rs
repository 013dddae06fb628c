//! Links between masters that carry everything, badly.

use std::time::Duration;

use mc_tests::{Link, until};

use crate::row::{Round, Row};

const SPELL: Duration = Duration::from_secs(3);

async fn spell(round: &Round<'_>, link: Link) {
    let links = round.cluster.links();
    links.among_masters(link);
    tokio::time::sleep(SPELL).await;
    // Slow, and it works: puts are acknowledged meanwhile.
    round.running.acknowledged(5).await;
    round.struck_on_links();
    links.heal();
}

#[tokio::test]
async fn delay() {
    let link = Link::Slow { delay: Duration::from_millis(20), jitter: Duration::from_millis(20) };
    Row::new("delay 20 to 40 ms", "all links between masters")
        .run(async |round| spell(round, link).await)
        .await;
}

#[tokio::test]
async fn loss() {
    let link = Link::Lossy { one_in: 100 };
    Row::new("loss of 1 %", "all links between masters").run(async |round| spell(round, link).await).await;
}

#[tokio::test]
async fn narrow() {
    let link = Link::Narrow { bytes_per_second: 128 << 10 };
    Row::new("bandwidth 128 KiB/s", "all links between masters")
        .run(async |round| spell(round, link).await)
        .await;
}

/// The other end is gone and nobody says so: what was connected hears nothing, and is reset much later.
async fn half_open(round: &Round<'_>, master: usize) {
    let links = round.cluster.links();
    links.between(&[master], &links.other_masters(master), Link::Silent);
    round.hit().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let open = links.open();
    links.between(&[master], &links.other_masters(master), Link::Cut);
    until("connections are reset", async || links.open() < open).await;
    round.struck_on_links();
    links.heal();
}

#[tokio::test]
async fn half_open_leader() {
    Row::new("half-open connections", "leader, reset after 5 s")
        .run(async |round| {
            let leader = round.leader().await;
            half_open(round, leader).await;
        })
        .await;
}

#[tokio::test]
async fn half_open_follower() {
    Row::new("half-open connections", "follower, reset after 5 s")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            half_open(round, follower).await;
        })
        .await;
}
