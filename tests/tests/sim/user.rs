//! The real client in the simulation: its search for the leader, its calls and its repetitions, over the simulated network
//! and time. Bytes move, and values are judged by their bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mc_client::{Builder, Client, Error, Put, PutOptions, Source};
use mc_tests::Seeded;
use mc_tests::checker::{Action, Digest, Outcome};
use mc_transfer::Checksum;
use mc_types::{ByteSize, PutId, PutMode};
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::carrier::Carrier;
use crate::client::Wanted;
use crate::keys;
use crate::machine::CLIENTS;
use crate::net::{Host, Net, address_of};
use crate::oracle::Oracle;
use crate::pool::Pool;

/// Most keys of one call.
const TOGETHER: u64 = 3;
/// Longest pause between two calls, in ms.
const PAUSE: u64 = 60;
/// Between two reads of what is there and can't be read yet.
const AGAIN: Duration = Duration::from_millis(100);

/// A program with the client library.
pub(crate) struct User {
    number: u32,
    client: Client,
    oracle: Oracle,
    pool: Pool,
    rng: Seeded,
    /// Tells its values apart.
    puts: u64,
}

impl User {
    /// A program on `host`, number `number` of the clients in the history. Every second one compares no checksums, so that the
    /// oracle sees the bytes that its client would refuse.
    pub(crate) async fn start(
        (number, host): (u32, Host),
        net: Net,
        masters: usize,
        (oracle, pool): (Oracle, Pool),
        rng: Seeded,
    ) -> Self {
        let builder = builder(host, &net, masters).checksum(number.is_multiple_of(2));
        let client = builder.connect().await.expect("settings that are right");
        Self { number, client, oracle, pool, rng, puts: 0 }
    }

    /// Calls the pool until told to stop.
    pub(crate) async fn run(mut self, wanted: Arc<Mutex<Wanted>>) -> Self {
        loop {
            let wanted = *wanted.lock();
            let first = self.rng.bits();
            let count = 1 + if self.rng.below(3) == 0 { self.rng.below(TOGETHER) } else { 0 };
            let keys: Vec<_> = (0..count).map(|place| keys::user(first % 64 + place)).collect();
            match (wanted, self.rng.below(10)) {
                (Wanted::Nothing, _) => return self,
                (Wanted::Reads, _) | (_, 0..5) => self.get(&keys).await,
                (_, 5) => self.remove(&keys).await,
                (_, 6) => drop(self.put(&keys, PutMode::IfAbsent).await),
                _ => drop(self.put(&keys, PutMode::Upsert).await),
            }
            sleep(Duration::from_millis(self.rng.below(PAUSE))).await;
        }
    }

    /// Puts until one is acknowledged, and reads every key until each is there or the leader knows none.
    pub(crate) async fn finish(&mut self) {
        let key = keys::user(u64::from(self.number));
        // It may be evicted right after: what is pinned may leave no room below the watermark.
        while self.put(std::slice::from_ref(&key), PutMode::Upsert).await != [Outcome::Stored] {
            // A put without a leader fails at once.
            sleep(AGAIN).await;
        }
        for key in keys::all_user() {
            loop {
                let started = self.oracle.now();
                match self.client.describe(&key).await {
                    Ok(None) => {
                        self.oracle.record(self.number, &key, Action::Get, Outcome::Miss, started);
                        break;
                    }
                    Ok(Some(_)) if self.get_one(&key).await => break,
                    _ => sleep(AGAIN).await,
                }
            }
        }
    }

    async fn put(&mut self, keys: &[String], mode: PutMode) -> Vec<Outcome> {
        let items: Vec<_> = keys.iter().map(|key| (key.clone(), self.value(key))).collect();
        let options = PutOptions::default()
            .with_mode(mode)
            .with_replicas(1 + self.rng.below(2) as u32)
            .with_deadline(DEADLINE);
        let started = self.oracle.now();
        let results = self.client.batch_put(&items, &options).await;
        let recorded = items.iter().zip(results).map(|((key, value), result)| {
            let value = digest(value);
            let action = match mode {
                PutMode::IfAbsent => Action::PutIfAbsent(value),
                PutMode::Upsert => Action::Upsert(value),
            };
            let outcome = match result {
                Ok(Put::Stored) => Outcome::Stored,
                Ok(Put::AlreadyExists) => Outcome::Exists,
                Ok(Put::LocalOnly) => Outcome::LocalOnly,
                Err(error) => failed(&error),
            };
            self.oracle.tally(|tally| tally.bytes_stored += usize::from(outcome == Outcome::Stored));
            self.oracle.record(self.number, key, action, outcome, started);
            outcome
        });
        recorded.collect()
    }

    async fn get(&mut self, keys: &[String]) {
        let started = self.oracle.now();
        let results = self.client.batch_get_with_source(keys).await;
        for (key, result) in keys.iter().zip(results) {
            // A miss may be that of an object whose stores are out of reach.
            if let Ok((Some(value), Source::Pool)) = result {
                self.oracle.tally(|tally| tally.bytes_read += 1);
                self.oracle.record(self.number, key, Action::Get, Outcome::Value(digest(&value)), started);
            }
        }
        self.judge_checksums();
    }

    /// Whether there was something to read.
    async fn get_one(&mut self, key: &str) -> bool {
        let started = self.oracle.now();
        let read = self.client.get(key).await;
        self.judge_checksums();
        let Ok(Some(value)) = read else { return false };
        self.oracle.record(self.number, key, Action::Get, Outcome::Value(digest(&value)), started);
        true
    }

    async fn remove(&mut self, keys: &[String]) {
        let started = self.oracle.now();
        let results = self.client.batch_remove(keys, true).await;
        for (key, result) in keys.iter().zip(results) {
            let outcome = match result {
                Ok(true) => Outcome::Removed,
                Ok(false) => Outcome::NothingToRemove,
                Err(error) => failed(&error),
            };
            self.oracle.record(self.number, key, Action::Remove, outcome, started);
        }
    }

    /// No read may have found other bytes than those that were put: the store refuses it before.
    fn judge_checksums(&self) {
        let mismatches = self.client.stats().checksum_mismatches;
        if mismatches > 0 {
            self.oracle.violates(format!("client {} read other bytes than were put", self.number));
        }
    }

    /// A value like no other: its writer, its number, and bytes that follow from both.
    fn value(&mut self, key: &str) -> Vec<u8> {
        self.puts += 1;
        let seed = u64::from(self.number) << 32 | self.puts;
        let len = self.pool.size(key, &mut self.rng).max(8) as usize;
        let words = (0..).map(|place: u64| seed.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let mut bytes: Vec<u8> = words.take(len.div_ceil(8)).flat_map(u64::to_be_bytes).collect();
        bytes.truncate(len);
        bytes
    }
}

/// The settings of a client on `host`.
fn builder(host: Host, net: &Net, masters: usize) -> Builder {
    let list: Vec<_> = (0..masters).map(|at| address_of(at, CLIENTS).to_string()).collect();
    Client::builder()
        .masters(list.join(","))
        .network(net.of(host))
        .transport(Arc::new(Carrier(net.of(host))))
        .runtime(tokio::runtime::Handle::current())
        .local_cache(ByteSize(0))
        .call_timeout(Duration::from_millis(1_500))
        .get_timeout(Duration::from_millis(2_000))
}

/// Reads the values of a rescued cluster by a client that has not known the one before, and returns how many it got. Each
/// must be the one that was put. The lost masters may have given its place to another object: then it is a miss.
pub(crate) async fn read_after_rescue(
    (host, net): (Host, Net),
    masters: usize,
    objects: BTreeMap<String, Option<(PutId, Digest)>>,
) -> Result<usize, String> {
    let client = builder(host, &net, masters).connect().await.map_err(|err| err.to_string())?;
    let mut count = 0;
    for key in keys::all_user() {
        let Some((_, expected)) = objects.get(&key).copied().flatten() else { continue };
        let mut read = client.get(&key).await;
        for _ in 0..TRIES {
            if matches!(read, Ok(Some(_))) {
                break;
            }
            sleep(AGAIN).await;
            read = client.get(&key).await;
        }
        let Ok(Some(value)) = read else { continue };
        count += 1;
        if digest(&value) != expected {
            return Err(format!("after the rescue key {key} has other bytes than were put"));
        }
    }
    Ok(count)
}

/// Reads of a value after a rescue, until it counts as lost.
const TRIES: usize = 10;
/// Time for all of a put.
const DEADLINE: Duration = Duration::from_millis(3_000);

/// The digest of a value by its bytes, which is also the checksum that the masters keep.
fn digest(value: &[u8]) -> Digest {
    Digest(Checksum::of(value).0)
}

fn failed(error: &Error) -> Outcome {
    if error.is_unknown() { Outcome::Unknown } else { Outcome::Failed }
}
