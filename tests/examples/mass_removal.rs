//! Stalls of those who use the pool while many objects leave a large index: the longest that applying took, and that a
//! leased read and a put had to wait. Real masters on this machine, and beside them a thread that only sleeps: how late it
//! wakes is what the machine itself makes callers wait. `stalls` of mc-eviction measures the same without processes.
//!
//!     cargo build --release --bin mcctl
//!     cargo run --release -p mc-tests --example mass_removal -- evict 1000000 100000

mod common;

use std::time::{Duration, Instant};

use mc_client::{Admin, Client};
use mc_tests::{Cluster, fill, until_within};

use common::{Counts, Load, Loaded, median, ms};

const PATIENCE: Duration = Duration::from_secs(600);
/// Newest objects, which are read. They are leased, so that they stay.
const READ: u64 = 1000;
/// Bytes that an object of one byte takes.
const SLOT: u64 = 64;
/// Fewest bytes that the index keeps of an object.
const LEAST_RECORD: u64 = 64;
/// Share of the pool that the objects take: below the high watermark.
const FILLED: f64 = 0.9;

const USAGE: &str = "usage: mass_removal WHAT OBJECTS GONE, where WHAT is `evict`, `remove_all` or `remove_by_regex`, OBJECTS \
                     the objects in the pool and GONE those that leave it, fewer by at least 1000";

/// Tenant of the objects that are removed.
const CROWD: &str = "crowd";

/// Ways to take objects out of the pool.
#[derive(Clone, Copy)]
enum What {
    /// By lower watermarks.
    Evict,
    /// By one forced `remove_all` of their tenant, which has nothing else, and the sweeps that follow.
    RemoveAll,
    /// By a pattern that they match.
    RemoveByRegex,
}

fn arguments() -> Option<(What, u64, u64)> {
    let mut arguments = std::env::args().skip(1);
    let what = match arguments.next()?.as_str() {
        "evict" => What::Evict,
        "remove_all" => What::RemoveAll,
        "remove_by_regex" => What::RemoveByRegex,
        _ => return None,
    };
    let (objects, gone): (u64, u64) = (arguments.next()?.parse().ok()?, arguments.next()?.parse().ok()?);
    (arguments.next().is_none() && gone.checked_add(READ)? <= objects).then_some((what, objects, gone))
}

#[tokio::main]
async fn main() {
    let Some((what, objects, gone)) = arguments() else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    let segment = ((objects * SLOT) as f64 / FILLED) as u64;
    let cluster =
        Cluster::builder().stores(1).segment(&segment.next_multiple_of(4096).to_string()).start().await;
    let client = cluster.client().await;
    let crowd = cluster.client_builder().tenant(CROWD).connect().await.expect("masters answer");
    let filled = match what {
        What::Evict => fill(&client, 0..objects).await,
        What::RemoveAll | What::RemoveByRegex => {
            fill(&crowd, 0..gone).await + fill(&client, gone..objects).await
        }
    };
    let leader = cluster.leader().await;
    println!("{objects} objects put in {:.1} s", filled.as_secs_f64());

    let load = Load::begin(&client, objects, move |n| objects - 1 - n % READ);
    until_within(PATIENCE, "every object that is read is leased", async || load.reads() as u64 > READ).await;

    let http = cluster.master_http(leader).to_owned();
    let (before, begun) = (Counts::of(&http).await, Instant::now());
    match what {
        What::Evict => evict(&cluster, leader, objects, gone).await,
        What::RemoveAll => remove_all(&cluster, leader, &crowd, gone).await,
        What::RemoveByRegex => {
            assert_eq!(crowd.remove_by_regex("^model", true).await.expect("a removal").objects, gone);
        }
    }
    let took = begun.elapsed();
    let during = Counts::of(&http).await.since(&before);
    let Loaded { reads, puts, wakes, misses } = load.end().await;

    println!("{gone} objects gone in {:.2} s; {misses} reads missed", took.as_secs_f64());
    during.say("meanwhile");
    for (what, spans) in
        [("leased read", &reads), ("put (two commits)", &puts), ("a sleep of 1 ms, too long by", &wakes)]
    {
        let during: Vec<_> = spans.iter().filter(|(at, took)| *at + *took > begun).copied().collect();
        let longest = during.iter().map(|(_, took)| *took).max().unwrap_or_default();
        println!(
            "{what}: longest {:.1} ms of {} calls, p50 {:.2} ms",
            ms(longest),
            during.len(),
            ms(median(&during))
        );
    }
}

/// Removes all objects of the crowd, and waits until the index has swept them.
async fn remove_all(cluster: &Cluster, leader: usize, crowd: &Client, gone: u64) {
    let index_bytes = async || cluster.metric_sum(leader, "mc_index_bytes").await;
    let (before, begun) = (index_bytes().await, Instant::now());
    assert_eq!(crowd.remove_all(true).await.expect("a removal").objects, gone);
    println!("answered after {:.1} ms", ms(begun.elapsed()));
    let swept = before - (gone * LEAST_RECORD) as f64;
    until_within(PATIENCE, "the objects are swept", async || index_bytes().await <= swept).await;
}

/// Lowers the watermarks until so many objects have to go, and waits until they are gone.
async fn evict(cluster: &Cluster, leader: usize, objects: u64, gone: u64) {
    let admin = Admin::connect(&cluster.addresses()).await.expect("masters answer");
    let low = FILLED * (objects - gone) as f64 / objects as f64;
    let evicted = async || cluster.metric_sum(leader, "mc_evicted_objects_total").await;
    let before = evicted().await;
    // Watermarks have four digits, so a few objects more or fewer may go.
    let enough = gone as f64 - 0.001 * objects as f64;
    for (name, share) in [("eviction-low-watermark", low), ("eviction-high-watermark", low + 0.001)] {
        admin.set_config(name, &format!("{share:.4}")).await.expect("a watermark");
    }
    until_within(PATIENCE, "the objects are gone", async || evicted().await - before >= enough).await;
}
