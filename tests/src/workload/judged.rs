use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mc_client::{Client, Error, Mode, Presence, Put, PutMode, PutOptions};

use super::Workload;
use crate::checker::{Action, Outcome};
use crate::{Recorder, Seeded, digest, value};

/// The first few errors, for the reader of a failed test.
pub(super) type Errors = Arc<Mutex<Vec<String>>>;

/// One client of a workload, whose calls are recorded.
pub(super) struct Judged {
    pub(super) number: u32,
    pub(super) client: Client,
    pub(super) recorder: Recorder,
    pub(super) next_put: Arc<AtomicU64>,
    pub(super) errors: Errors,
    /// See [`Workload::cached`].
    pub(super) cached: bool,
}

/// Keys of which a read got no value.
#[derive(Default)]
pub(super) struct Unread {
    pub(super) missed: BTreeSet<String>,
    pub(super) failed: BTreeSet<String>,
}

impl Judged {
    pub(super) async fn run(&self, workload: &Workload, mut random: Seeded, stop: &AtomicBool) {
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
            match kind {
                Some(0) => drop(self.put(&key, len, &workload.options(PutMode::IfAbsent)).await),
                Some(1) => drop(self.put(&key, len, &workload.options(PutMode::Upsert)).await),
                Some(2) => drop(self.get(&key).await),
                Some(3) => self.exist(&key).await,
                _ => self.remove(&key).await,
            }
            if !workload.pace.is_zero() {
                tokio::time::sleep(workload.pace).await;
            }
        }
    }

    pub(super) async fn put(&self, key: &str, len: usize, options: &PutOptions) -> Outcome {
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
        outcome
    }

    /// Records which stores hold a key that is written only once. It stays unknown if no leader says so now.
    pub(super) async fn find_places(&self, key: &str) {
        if let Ok(Some(found)) = self.client.describe(key).await {
            self.recorder.placed(key, found.replicas.iter().map(|replica| replica.store).collect());
        }
    }

    pub(super) async fn get(&self, key: &str) -> Outcome {
        let start = self.recorder.now();
        let before = self.reach();
        let outcome = match self.client.get(key).await {
            Ok(Some(value)) if !self.cached || self.asked_the_pool(before) => Outcome::Value(digest(&value)),
            Ok(Some(value)) => Outcome::LocalValue(digest(&value)),
            Ok(None) if self.asked_the_pool(before) => Outcome::Miss,
            Ok(None) => Outcome::LocalMiss,
            Err(error) => self.failed(&error),
        };
        self.recorder.record(self.number, key, Action::Get, outcome, start);
        outcome
    }

    /// Reads all `keys` once.
    pub(super) async fn read_all(&self, keys: &BTreeSet<String>) -> Unread {
        let mut unread = Unread::default();
        for key in keys {
            match self.get(key).await {
                Outcome::Value(_) => {}
                Outcome::Miss => drop(unread.missed.insert(key.clone())),
                _ => drop(unread.failed.insert(key.clone())),
            }
        }
        unread
    }

    /// Returns whether the masters know an object with one of these keys, wherever its bytes are.
    pub(super) async fn is_any_there(&self, keys: &BTreeSet<String>) -> bool {
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
            Ok(Presence::BeingWritten | Presence::Absent) => Outcome::LocalMiss,
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

fn key_name(key: u64) -> String {
    format!("key-{key}")
}
