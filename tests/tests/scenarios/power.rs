//! Loss of power: `kill -9` leaves the kernel all that a master wrote, a loss of power only what it made durable, and
//! of the rest any part. Each round ends a master within a call that changes or syncs a file, takes a random part of
//! what was not durable, and starts it again on what is left: every acknowledged put and remove must be there.
//!
//! The same rounds with syncs that lie, those of one kind of file alone, must find a loss: they would notice each sync that is
//! missing.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mc_client::{Client, Put, PutOptions};
use mc_tests::{Cluster, ClusterBuilder, Lie, Power, Seeded, Taken, report, until, value};
use parking_lot::Mutex;
use tokio::task::JoinSet;

/// Clients that put and remove, each one call at a time: the log syncs several of them together.
const CALLERS: usize = 4;
/// Calls in one round: a start makes some twenty, a put some five.
const CALLS: u64 = 400;
/// Those of a round that ends during the start.
const CALLS_OF_A_START: u64 = 40;
/// Clusters with syncs that all lie, until one has to show it.
const TRIES: u64 = 10;
/// The same where only the syncs of one kind of file lie.
const TRIES_OF_ONE_KIND: u64 = 25;
/// Objects with long keys in one call: the log uses its segments again after a few rounds of them.
const BATCH: usize = 64;
/// A master that makes no call for so long has none to make.
const IDLE: Duration = Duration::from_millis(500);
const SIGKILL: i32 = 9;

/// Keys that must be there or not; none of a key whose last call got no answer.
type Expected = Arc<Mutex<BTreeMap<String, bool>>>;

/// A cluster whose masters lose their power.
struct Pool {
    cluster: Cluster,
    random: Seeded,
    expected: Expected,
    next: Arc<AtomicUsize>,
    taken: Vec<Taken>,
}

impl Pool {
    fn new(masters: usize, seed: u64, lie: Option<(Lie, &str)>) -> Self {
        // A snapshot every few calls, and a log that is purged behind it.
        let builder: ClusterBuilder = Cluster::builder().masters(masters).journals();
        let builder = builder.master_args(["--snapshot-log-entries", "40", "--keep-log-entries", "20"]);
        let mut cluster = builder.prepare();
        cluster.stores[0].start();
        if let Some((lie, part)) = lie {
            (0..masters).for_each(|n| cluster.faulty(n).lie(lie, part));
        }
        Self {
            cluster,
            random: Seeded::new(seed),
            expected: Expected::default(),
            next: Arc::default(),
            taken: Vec::new(),
        }
    }

    /// Starts all masters, ends them within a call, and takes what a loss of power may take. What was lost, in words.
    async fn round(&mut self) -> Result<(), String> {
        let masters = 0..self.cluster.masters.len();
        let mut powers: Vec<Power> = masters
            .clone()
            .map(|n| Power::on(&self.cluster.master_dir(n), &self.cluster.journal(n)))
            .collect();
        let first = self.random.below(masters.len() as u64) as usize;
        let calls = if self.random.below(4) == 0 { CALLS_OF_A_START } else { CALLS };
        for n in masters.clone() {
            self.cluster.faulty(n).end_at_no_call();
        }
        self.cluster.faulty(first).end_at_call(self.random.within(1..calls), self.random.below(2) == 0);
        self.cluster.masters.iter_mut().for_each(mc_tests::Process::start);
        let judged = self.serve().await;
        for n in masters.clone() {
            self.cluster.faulty(n).end_at_call(1, false);
        }
        // One that waits for the others has nothing to write. No call of it is under way by then, and none begins.
        let all_ended = until("all masters are without power", async || {
            self.cluster.masters.iter_mut().all(|master| master.how_it_ended().is_some())
        });
        let _ = tokio::time::timeout(IDLE, all_ended).await;
        for n in masters.rev() {
            let master = &mut self.cluster.masters[n];
            let ended = master.killed().await;
            if ended.signal() != Some(SIGKILL) {
                let output = master.output();
                return Err(format!("{} ended: {}", master.name(), output.lines().last().unwrap_or("")));
            }
            let power = powers.pop().expect("one for each master");
            self.taken.push(power.off(&mut self.random));
        }
        judged
    }

    /// Starts all masters once more, and checks what the last loss of power left.
    async fn last_look(&mut self) -> Result<(), String> {
        for n in 0..self.cluster.masters.len() {
            self.cluster.faulty(n).end_at_no_call();
        }
        self.cluster.masters.iter_mut().for_each(mc_tests::Process::start);
        let client = self.cluster.client_builder().connect().await.expect("settings of a client");
        let mut judged = None;
        until("all that was acknowledged is looked at", async || {
            let ended = self.cluster.masters.iter_mut().find_map(|master| {
                let ended = master.how_it_ended()?;
                Some(format!("{} ended with {ended}", master.name()))
            });
            judged = match ended {
                Some(ended) => Some(Err(ended)),
                None if client.connected(Duration::from_millis(50)).await => self.check(&client).await,
                None => None,
            };
            judged.is_some()
        })
        .await;
        judged.expect("it was looked at")
    }

    /// Checks all that was acknowledged so far, once there is a leader, then puts and removes until a master has
    /// ended.
    async fn serve(&mut self) -> Result<(), String> {
        let client = self.cluster.client_builder().connect().await.expect("settings of a client");
        let mut judged = Ok(());
        let mut calls = JoinSet::new();
        let mut checked = false;
        while self.cluster.masters.iter_mut().all(|master| master.how_it_ended().is_none()) {
            if !checked && client.connected(Duration::from_millis(50)).await {
                let Some(verdict) = self.check(&client).await else { continue };
                judged = verdict;
                checked = true;
                for n in 0..CALLERS {
                    let (client, expected, next) = (client.clone(), self.expected.clone(), self.next.clone());
                    let random = self.random.part(self.next.load(Ordering::Relaxed) as u64 + n as u64);
                    calls.spawn(put_and_remove(client, expected, next, random));
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        calls.shutdown().await;
        judged
    }

    /// `None` when the masters could not be asked.
    async fn check(&self, client: &Client) -> Option<Result<(), String>> {
        let expected = self.expected.lock().clone();
        let keys: Vec<&String> = expected.keys().collect();
        let before = client.stats().local_only_entries;
        let found = futures::future::join_all(keys.iter().map(|key| client.presence(key.as_bytes()))).await;
        if client.stats().local_only_entries > before {
            // Those may be the answers of its cache.
            return None;
        }
        for (key, found) in keys.iter().zip(found) {
            let found = found.ok()?;
            if found.is_there() != expected[*key] {
                return Some(Err(format!("{key}: {found:?}, acknowledged as there: {}", expected[*key])));
            }
        }
        Some(Ok(()))
    }
}

async fn put_and_remove(client: Client, expected: Expected, next: Arc<AtomicUsize>, mut random: Seeded) {
    let options = PutOptions::default().with_deadline(Duration::from_secs(2));
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let key = format!("key {number}");
        if random.below(8) == 0 {
            let items: Vec<_> = (0..BATCH).map(|n| (format!("{key} {n:0200}"), b"value")).collect();
            let puts = client.batch_put(&items, &options).await;
            let stored = items.into_iter().zip(puts).filter(|(_, put)| matches!(put, Ok(Put::Stored)));
            expected.lock().extend(stored.map(|((key, _), _)| (key, true)));
            continue;
        }
        if client.put_with(&key, &value(&key, 0, 100), &options).await.is_ok_and(|put| put == Put::Stored) {
            expected.lock().insert(key.clone(), true);
            if random.below(3) == 0 {
                // Without an answer it may have been removed.
                expected.lock().remove(&key);
                if client.remove(&key, true).await.is_ok_and(|removed| removed) {
                    expected.lock().insert(key, false);
                }
            }
        }
    }
}

/// Adds up the losses of some rounds.
fn sum(taken: &[Taken]) -> Taken {
    taken.iter().fold(Taken::default(), |sum, taken| Taken {
        unsynced: sum.unsynced + taken.unsynced,
        lost: sum.lost + taken.lost,
        torn: sum.torn + taken.torn,
        names: sum.names + taken.names,
    })
}

async fn nothing_acknowledged_is_lost(masters: usize, rounds: usize, seed: u64) {
    let mut pool = Pool::new(masters, seed, None);
    // On a busy machine the power may be gone before the store is mounted: such rounds acknowledge nothing. Or it goes
    // between writes, and takes nothing.
    let enough = |pool: &Pool, round| {
        round >= rounds && pool.expected.lock().len() > rounds && sum(&pool.taken).lost > 0
    };
    let mut round = 0;
    while !enough(&pool, round) && round < 5 * rounds {
        if let Err(lost) = pool.round().await {
            panic!("round {round} of seed {seed}: {lost}");
        }
        round += 1;
    }
    if let Err(lost) = pool.last_look().await {
        panic!("after round {round} of seed {seed}: {lost}");
    }
    let taken = sum(&pool.taken);
    assert!(taken.lost > 0, "it took nothing that had been written: {taken:?}");
    let kept = pool.expected.lock().len();
    report(&serde_json::json!({
        "power": format!("{masters} masters"), "rounds": round, "keys": kept, "unsynced": taken.unsynced,
        "lost": taken.lost, "torn": taken.torn, "names": taken.names,
    }));
    assert!(kept > rounds, "few calls were acknowledged: {kept}");
}

/// Rounds with syncs that lie, on a new cluster every few rounds, until a loss is found.
async fn a_lie_is_found(lie: Lie, part: &str) {
    let tries = if part.is_empty() { TRIES } else { TRIES_OF_ONE_KIND };
    for seed in 0..tries {
        let mut pool = Pool::new(1, seed, Some((lie, part)));
        for round in 0..4 {
            if let Err(lost) = pool.round().await {
                println!("{lie:?} {part}, seed {seed}, round {round}: {lost}");
                return;
            }
        }
    }
    panic!("{lie:?} {part}: no loss in {tries} clusters");
}

#[tokio::test]
async fn a_single_master_loses_nothing_acknowledged() {
    nothing_acknowledged_is_lost(1, 25, 1).await;
}

#[tokio::test]
async fn masters_that_lose_power_together_lose_nothing_acknowledged() {
    nothing_acknowledged_is_lost(3, 8, 2).await;
}

#[tokio::test]
async fn a_sync_of_files_that_is_missing_would_be_found() {
    a_lie_is_found(Lie::Files, "").await;
}

#[tokio::test]
async fn a_sync_of_folders_that_is_missing_would_be_found() {
    a_lie_is_found(Lie::Folders, "").await;
}

#[tokio::test]
async fn a_sync_of_the_log_that_is_missing_would_be_found() {
    a_lie_is_found(Lie::Files, "/log/").await;
}

#[tokio::test]
async fn a_sync_of_snapshots_that_is_missing_would_be_found() {
    a_lie_is_found(Lie::Files, "/snapshots/").await;
}

#[tokio::test]
async fn a_sync_of_the_folder_of_snapshots_that_is_missing_would_be_found() {
    a_lie_is_found(Lie::Folders, "/snapshots").await;
}
