use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mc_client::{Put, PutOptions};
use mc_tests::{Cluster, Faults, http_get, until_within};
use tokio::task::JoinSet;

const CLIENTS: usize = 24;
const CALLERS_OF_EACH: usize = 100;
const BATCH: usize = 8;
const KEY_BYTES: usize = 200;
const FLOOD: Duration = Duration::from_secs(6);
/// A master's memory may grow by so much: the proposals in flight, a few times over, and what the flood has put.
const GROWTH: u64 = 512 << 20;

/// One figure of a master's metrics.
async fn metric(cluster: &Cluster, master: usize, name: &str) -> f64 {
    let (_, metrics) = http_get(cluster.master_http(master), "/metrics").await.expect("the master answers");
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

/// Bytes of memory that a process has in use.
fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it runs");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4096
}

/// Sleeps again and again on a thread of its own, and says whether a sleep took so much longer than asked for that no
/// master could have kept its leadership either.
fn watch_the_machine() -> Arc<AtomicBool> {
    let late = Arc::new(AtomicBool::new(false));
    let says = Arc::downgrade(&late);
    std::thread::spawn(move || {
        while let Some(late) = says.upgrade() {
            let asked = Instant::now();
            std::thread::sleep(Duration::from_millis(10));
            if asked.elapsed() > Duration::from_millis(100) {
                late.store(true, Ordering::Relaxed);
            }
        }
    });
    late
}

/// Far more callers than a master takes proposals of at once. What is too much is refused, memory is bounded, and nobody
/// takes the leader for dead because request work keeps it from its heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_proposals_is_refused_in_part_and_costs_neither_leadership_nor_memory() {
    let cluster = Cluster::builder().faulty().segment("1gb").start().await;
    let mut faults = Faults::new();
    let refused = faults.plan("proposals are refused");
    let leader = cluster.leader().await;
    let before = cluster.status(leader).await.expect("the leader answers");
    let resident_before: Vec<u64> = cluster.masters.iter().map(|master| resident(master.pid())).collect();

    let slept_too_long = watch_the_machine();

    let mut callers = JoinSet::new();
    for number in 0..CLIENTS {
        let client = cluster.client().await;
        for caller in 0..CALLERS_OF_EACH {
            let client = client.clone();
            callers.spawn(async move {
                let (began, mut stored, mut slowest) = (Instant::now(), 0, Duration::ZERO);
                for call in 0.. {
                    if began.elapsed() > FLOOD {
                        break;
                    }
                    let key = |n| format!("{number}/{caller}/{call}/{n:0>width$}", width = KEY_BYTES - 20);
                    let keys: Vec<String> = (0..BATCH).map(key).collect();
                    let puts: Vec<(&[u8], &[u8])> =
                        keys.iter().map(|key| (key.as_bytes(), &b"v"[..])).collect();
                    let options = PutOptions { deadline: Duration::from_secs(5), ..PutOptions::default() };
                    let asked = Instant::now();
                    for answer in client.batch_put(&puts, &options).await {
                        match answer {
                            Ok(Put::Stored) => stored += 1,
                            Ok(other) => panic!("a new key was put, and the answer is {other:?}"),
                            // Too much at a time, or too late: nothing is promised.
                            Err(_) => {}
                        }
                    }
                    slowest = slowest.max(asked.elapsed());
                }
                (stored, slowest)
            });
        }
    }
    // Nothing is committed for a moment, whatever this machine's speed: proposals pile up to the bound.
    let followers = cluster.links().other_masters(leader);
    followers.iter().for_each(|master| cluster.faulty(*master).stick_syncs(true));
    until_within(Duration::from_secs(30), "proposals are refused", async || {
        metric(&cluster, leader, "mc_master_proposals_refused_total").await > 0.0
    })
    .await;
    followers.iter().for_each(|master| cluster.faulty(*master).stick_syncs(false));
    let ended = callers.join_all().await;
    let stored: usize = ended.iter().map(|(stored, _)| stored).sum();
    let slowest = ended.iter().map(|(_, slowest)| *slowest).max().unwrap_or_default();
    let refusals = metric(&cluster, leader, "mc_master_proposals_refused_total").await;
    println!(
        "{stored} keys stored by {} callers, {refusals} calls refused, slowest {slowest:?}",
        ended.len()
    );
    if refusals > 0.0 {
        refused.happened();
    }
    assert!(stored > 0);

    let after = cluster.status(cluster.leader().await).await.expect("the leader answers");
    if slept_too_long.load(Ordering::Relaxed) {
        println!("this machine had no processor for some time: whether the leader leads on is not judged");
    } else {
        assert_eq!(after.term, before.term, "the same master leads on");
    }
    for (master, before) in cluster.masters.iter().zip(resident_before) {
        let grown = resident(master.pid()).saturating_sub(before);
        println!("{} grew by {} MiB", master.name(), grown >> 20);
        assert!(grown < GROWTH, "{} grew by {grown} bytes", master.name());
    }
    let client = cluster.client().await;
    until_within(Duration::from_secs(30), "a put is taken again", async || {
        matches!(client.put("after", b"value").await, Ok(Put::Stored | Put::AlreadyExists))
    })
    .await;
    faults.assert_happened();
}
