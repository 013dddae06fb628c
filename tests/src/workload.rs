use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mc_client::{Builder, Client, Error, Mode, Presence, Put, PutMode, PutOptions, StoreId};
use tokio::task::JoinSet;

use crate::checker::{Action, Outcome};
use crate::{History, Recorder, Seeded, digest, until, value};

/// Longest time for which the final reads wait for a store to be heard again.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// Pause before keys that were missed are read again.
const REREAD_AFTER: Duration = Duration::from_millis(100);

/// Weights with which the operations are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Put if absent.
    pub put: u64,
    /// Put, and replace an existing object.
    pub upsert: u64,
    /// Get.
    pub get: u64,
    /// Exist.
    pub exist: u64,
    /// Remove, forced, so that leases do not delay it.
    pub remove: u64,
}

impl Mix {
    /// All operations, with many reads.
    pub const ALL: Self = Self { put: 4, upsert: 2, get: 8, exist: 1, remove: 1 };
    /// No removes and no upserts: an acknowledged value must stay.
    pub const GROWING: Self = Self { put: 6, upsert: 0, get: 8, exist: 1, remove: 0 };
}

/// Time limits of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// A put.
    pub put: Duration,
    /// A get.
    pub get: Duration,
    /// Any other call.
    pub call: Duration,
}

impl Default for Deadlines {
    /// The library's deadlines, but 10 s for puts.
    fn default() -> Self {
        Self { put: Duration::from_secs(10), get: Duration::from_secs(5), call: Duration::from_secs(5) }
    }
}

impl Deadlines {
    /// Returns the deadline of a call.
    pub fn of(&self, action: Action) -> Duration {
        match action {
            Action::PutIfAbsent(_) | Action::Upsert(_) => self.put,
            Action::Get => self.get,
            Action::Exist | Action::Remove => self.call,
            // No client waits for it.
            Action::Evict(_) => Duration::ZERO,
        }
    }
}

/// Settings of clients that do seeded random operations on a small set of keys.
#[derive(Clone, Debug)]
#[must_use]
pub struct Workload {
    seed: u64,
    clients: u32,
    keys: u64,
    sizes: Range<u64>,
    mix: Mix,
    deadlines: Deadlines,
    preferred: Vec<StoreId>,
    pace: Duration,
    cached: bool,
}

/// A workload under way.
#[derive(Debug)]
pub struct Running {
    recorder: Recorder,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
    builder: Builder,
    deadlines: Deadlines,
    errors: Errors,
    cached: bool,
}

/// The first few errors, for the reader of a failed test.
type Errors = Arc<Mutex<Vec<String>>>;

impl Workload {
    /// Makes a workload of four clients, 64 keys, values of 1 B to 64 KiB, and all operations.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            clients: 4,
            keys: 64,
            sizes: 1..64 << 10,
            mix: Mix::ALL,
            deadlines: Deadlines::default(),
            preferred: Vec::new(),
            pace: Duration::ZERO,
            cached: false,
        }
    }

    /// Makes a workload that removes nothing and seldom meets a key again: what masters forget is missed.
    pub fn growing(seed: u64) -> Self {
        Self::new(seed).keys(100_000).sizes(1..512).mix(Mix::GROWING)
    }

    /// Sets the number of clients, each a client of the library.
    pub fn clients(mut self, clients: u32) -> Self {
        self.clients = clients;
        self
    }

    /// Sets the number of keys; with fewer keys more operations overlap.
    pub fn keys(mut self, keys: u64) -> Self {
        self.keys = keys;
        self
    }

    /// Sets the range of the values' sizes, in bytes.
    pub fn sizes(mut self, sizes: Range<u64>) -> Self {
        self.sizes = sizes;
        self
    }

    /// Sets the weights of the operations.
    pub fn mix(mut self, mix: Mix) -> Self {
        self.mix = mix;
        self
    }

    /// Places all objects on this store while it has room.
    pub fn preferred(mut self, store: StoreId) -> Self {
        self.preferred = vec![store];
        self
    }

    /// Sets the time limits of the calls.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Sets a pause after each operation, so that a long run stays small.
    pub fn pace(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Gives the clients local caches. Without a leader in reach, their answers may then come from there and say
    /// nothing of the pool. Without caches, every value comes from the pool and is judged.
    pub fn cached(mut self) -> Self {
        self.cached = true;
        self
    }

    /// Connects the clients and starts them.
    pub async fn start(self, builder: &Builder) -> Running {
        let builder = builder.clone().get_timeout(self.deadlines.get).call_timeout(self.deadlines.call);
        let recorder = Recorder::new();
        let stop = Arc::new(AtomicBool::new(false));
        let next_put = Arc::new(AtomicU64::new(1));
        let errors = Errors::default();
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            let client = builder.clone().connect().await.expect("settings of a client");
            let one = One {
                number,
                client,
                recorder: recorder.clone(),
                next_put: next_put.clone(),
                errors: errors.clone(),
                cached: self.cached,
            };
            let (workload, stop) = (self.clone(), stop.clone());
            let random = Seeded::new(self.seed).part(u64::from(number));
            clients.spawn(async move { one.run(&workload, random, &stop).await });
        }
        Running { recorder, stop, clients, builder, deadlines: self.deadlines, errors, cached: self.cached }
    }
}

impl Running {
    /// Returns the time limits of the calls.
    pub fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    /// Returns the recorder of the clients' calls.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Waits until `more` puts are acknowledged from now on, which shows that the pool works. Returns how long that
    /// took.
    pub async fn acknowledged(&self, more: usize) -> Duration {
        let acknowledged = || self.recorder.count(|operation| operation.outcome == Outcome::Stored);
        let before = acknowledged();
        until(format!("{more} more puts are acknowledged"), || {
            std::future::ready(acknowledged() >= before + more)
        })
        .await
    }

    /// Waits until `more` operations of any kind end from now on. Returns how long that took.
    pub async fn operations(&self, more: usize) -> Duration {
        let before = self.recorder.count(|_| true);
        until(format!("{more} more operations end"), || {
            std::future::ready(self.recorder.count(|_| true) >= before + more)
        })
        .await
    }

    /// Returns the first errors, in words.
    pub fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }

    /// Lets the last reader, a new client, look for the masters at `addresses`: they have moved since the start.
    #[must_use]
    pub fn moved_to(mut self, addresses: String) -> Self {
        self.builder = self.builder.masters(addresses);
        self
    }

    /// Ends the clients, reads every key that was touched once more with a client of its own, and returns the history.
    ///
    /// A store that is suspect for a moment makes misses that say nothing about what is kept. While the masters know an
    /// object that was missed, all missed keys are read again, and only the last reads count as final. A lost object is
    /// missed by those, too.
    pub async fn stop(self) -> History {
        let Self { recorder, stop, clients, builder, errors, cached, .. } = self;
        stop.store(true, Ordering::Relaxed);
        clients.join_all().await;
        let client = builder.connect().await.expect("settings of a client");
        assert!(client.connected(Duration::from_secs(60)).await, "no leader for the last read in a minute");
        let one = One { number: u32::MAX, client, recorder, next_put: Arc::default(), errors, cached };
        let mut keys: BTreeSet<String> =
            one.recorder.history().operations.into_iter().map(|operation| operation.key).collect();
        let give_up = Instant::now() + BACK_WITHIN;
        let settled = loop {
            let settled = one.recorder.now();
            let missed = one.missed_of(&keys).await;
            if Instant::now() >= give_up || !one.is_any_there(&missed).await {
                break settled;
            }
            keys = missed;
            tokio::time::sleep(REREAD_AFTER).await;
        };
        one.recorder.history().settled_at(settled)
    }
}

fn key_name(key: u64) -> String {
    format!("key-{key}")
}

/// One client of a workload.
struct One {
    number: u32,
    client: Client,
    recorder: Recorder,
    next_put: Arc<AtomicU64>,
    errors: Errors,
    /// See [`Workload::cached`].
    cached: bool,
}

impl One {
    async fn run(&self, workload: &Workload, mut random: Seeded, stop: &AtomicBool) {
        let mix = workload.mix;
        let kinds = [mix.put, mix.upsert, mix.get, mix.exist, mix.remove];
        while !stop.load(Ordering::Relaxed) {
            let key = key_name(random.below(workload.keys));
            let len = random.within(workload.sizes.clone()) as usize;
            let mut drawn = random.below(kinds.iter().sum());
            let kind = kinds.iter().position(|weight| {
                let hit = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                hit
            });
            let options = |mode| {
                PutOptions::default()
                    .with_mode(mode)
                    .with_deadline(workload.deadlines.put)
                    .with_preferred(workload.preferred.clone())
            };
            match kind {
                Some(0) => self.put(&key, len, &options(PutMode::IfAbsent)).await,
                Some(1) => self.put(&key, len, &options(PutMode::Upsert)).await,
                Some(2) => drop(self.get(&key).await),
                Some(3) => self.exist(&key).await,
                _ => self.remove(&key).await,
            }
            if !workload.pace.is_zero() {
                tokio::time::sleep(workload.pace).await;
            }
        }
    }

    async fn put(&self, key: &str, len: usize, options: &PutOptions) {
        let value = value(key, self.next_put.fetch_add(1, Ordering::Relaxed), len);
        let action = if options.mode == PutMode::Upsert { Action::Upsert } else { Action::PutIfAbsent };
        let action = action(digest(&value));
        let start = self.recorder.now();
        let before = self.reach();
        let outcome = match self.client.put_with(key, &value, options).await {
            Ok(Put::Stored) => Outcome::Stored,
            Ok(Put::AlreadyExists) if !self.cached || self.asked_the_pool(before) => Outcome::Exists,
            // Without a leader, the client has a value of its own and stores nothing.
            Ok(Put::AlreadyExists) => Outcome::Failed,
            Ok(Put::LocalOnly) => Outcome::LocalOnly,
            Err(error) => self.failed(&error),
        };
        self.recorder.record(self.number, key, action, outcome, start);
    }

    async fn get(&self, key: &str) -> Outcome {
        let start = self.recorder.now();
        let before = self.reach();
        let outcome = match self.client.get(key).await {
            Ok(Some(value)) if !self.cached || self.asked_the_pool(before) => Outcome::Value(digest(&value)),
            Ok(Some(value)) => Outcome::LocalValue(digest(&value)),
            Ok(None) if self.asked_the_pool(before) => Outcome::Miss,
            // Without a leader, a miss says nothing of the pool.
            Ok(None) => Outcome::Failed,
            Err(error) => self.failed(&error),
        };
        self.recorder.record(self.number, key, Action::Get, outcome, start);
        outcome
    }

    /// Reads all `keys`, and returns those that were missed.
    async fn missed_of(&self, keys: &BTreeSet<String>) -> BTreeSet<String> {
        let mut missed = BTreeSet::new();
        for key in keys {
            let mut last = Outcome::Failed;
            // Only the last answer counts here; each failed try is in the history as well.
            until(format!("{key} can be read"), async || {
                last = self.get(key).await;
                matches!(last, Outcome::Value(_) | Outcome::Miss)
            })
            .await;
            if last == Outcome::Miss {
                missed.insert(key.clone());
            }
        }
        missed
    }

    /// Returns whether the masters know an object with one of these keys, wherever its bytes are.
    async fn is_any_there(&self, keys: &BTreeSet<String>) -> bool {
        for key in keys {
            if self.client.presence(key).await.map_or(true, Presence::is_there) {
                return true;
            }
        }
        false
    }

    async fn exist(&self, key: &str) {
        let start = self.recorder.now();
        let before = self.reach();
        let outcome = match self.client.presence(key).await {
            Ok(Presence::Present(_)) if !self.cached || self.asked_the_pool(before) => Outcome::Present,
            Ok(Presence::BeingWritten | Presence::Absent) if self.asked_the_pool(before) => Outcome::Absent,
            Ok(_) => Outcome::Failed,
            Err(error) => self.failed(&error),
        };
        self.recorder.record(self.number, key, Action::Exist, outcome, start);
    }

    async fn remove(&self, key: &str) {
        let start = self.recorder.now();
        let outcome = match self.client.remove(key, true).await {
            Ok(true) => Outcome::Removed,
            Ok(false) => Outcome::NothingToRemove,
            Err(error) => self.failed(&error),
        };
        self.recorder.record(self.number, key, Action::Remove, outcome, start);
    }

    /// Returns whether a leader is in reach, and how often the client has lost reach of one.
    fn reach(&self) -> (Mode, u64) {
        (self.client.mode(), self.client.stats().local_only_entries)
    }

    /// Returns whether an answer came from the pool: the client was in reach of a leader at the start of the call
    /// (`before`) and ever since. Any other answer may come from its own cache.
    fn asked_the_pool(&self, before: (Mode, u64)) -> bool {
        before.0 == Mode::Connected && before == self.reach()
    }

    fn failed(&self, error: &Error) -> Outcome {
        let mut errors = self.errors.lock().unwrap();
        if errors.len() < 20 {
            errors.push(error.to_string());
        }
        if error.is_unknown() { Outcome::Unknown } else { Outcome::Failed }
    }
}
