//! Links between masters that carry everything, badly.

use std::time::Duration;

use mc_client::{Put, PutOptions};
use mc_tests::service::Service;
use mc_tests::{Link, until};
use tokio::time::Instant;

use crate::round::Round;
use crate::row::{FAILOVER, Row, Who};

const SPELL: Duration = Duration::from_secs(3);
/// A put takes several messages between masters.
const SLOWED: Service = Service::interrupted(Duration::from_millis(800));
/// A message waits behind a second's worth of other bytes.
const NARROW: Service = Service::interrupted(Duration::from_secs(2));
const BANDWIDTH: u64 = 128 << 10;
/// Keys, and bytes of each, that take nearly a second over such links: longer than an election.
const MANY: usize = 30;
const KEY: usize = 3_900;

async fn spell(round: &Round<'_>, link: Link) {
    let links = round.cluster.links();
    links.among_masters(link);
    round.spell(SPELL).await;
    // Slow, and it works: clients are served meanwhile.
    round.all_served().await;
    round.struck_on_links();
    links.heal();
}

#[tokio::test]
async fn delay() {
    let link = Link::Slow { delay: Duration::from_millis(20), jitter: Duration::from_millis(20) };
    Row::new("delay 20 to 40 ms", "all links between masters", SLOWED)
        .run(async |round| spell(round, link).await)
        .await;
}

#[tokio::test]
async fn loss() {
    let link = Link::Lossy { one_in: 100 };
    Row::new("loss of 1 %", "all links between masters", SLOWED)
        .run(async |round| spell(round, link).await)
        .await;
}

#[tokio::test]
async fn narrow() {
    let link = Link::Narrow { bytes_per_second: BANDWIDTH };
    Row::new("bandwidth 128 KiB/s", "all links between masters", NARROW)
        .run(async |round| {
            let client = round.cluster.client().await;
            let key = |n: usize| format!("{}-{n:->KEY$}", round.number);
            let keys: Vec<String> = (0..MANY).map(key).collect();
            let puts: Vec<(&str, &[u8])> = keys.iter().map(|key| (&**key, &b"value"[..])).collect();
            round.cluster.links().among_masters(link);
            let begun = Instant::now();
            for put in client.batch_put(&puts, &PutOptions::default()).await {
                assert_eq!(put.unwrap(), Put::Stored);
            }
            // A majority has those keys in its log: no faster than one follower could get them.
            let least = Duration::from_secs_f64((MANY * KEY) as f64 / BANDWIDTH as f64);
            assert!(begun.elapsed() >= least / 2, "the links are not narrow");
            spell(round, link).await;
        })
        .await;
}

/// The other end is gone and nobody says so: what was connected hears nothing, and is reset much later.
async fn half_open(round: &mut Round<'_>, master: usize) {
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

rows! {
    half_open_leader => Row::new("half-open connections", "leader, reset after 5 s", FAILOVER).run_at(Who::Leader, half_open);
    half_open_follower => Row::new("half-open connections", "follower, reset after 5 s", Service::unaffected()).run_at(Who::Follower, half_open);
}
