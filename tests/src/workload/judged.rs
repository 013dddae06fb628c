use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mc_client::{Client, Error, PinAction, PutMode, PutOptions};

use super::Workload;
use super::mix::{Single, Way};
use super::puts::Puts;
use crate::checker::{Action, Digest, Outcome, Pin};
use crate::{Recorder, Seeded, tenant_key};

/// Keys whose objects are pinned at times: one in so many.
const ONE_PINNED_IN: u64 = 8;
const PINS: [PinAction; 4] = [PinAction::Hard, PinAction::Preserve, PinAction::SOFT, PinAction::Disable];

/// One client of a workload, whose calls are recorded.
pub(super) struct Judged {
    pub(super) number: u32,
    pub(super) client: Client,
    /// Name of the client's tenant; empty: the default one.
    pub(super) tenant: String,
    pub(super) workload: Arc<Workload>,
    pub(super) recorder: Recorder,
    pub(super) puts: Arc<Puts>,
    pub(super) errors: Errors,
}

/// The first few errors, for the reader of a failed test.
#[derive(Clone, Debug, Default)]
pub(super) struct Errors(Arc<Mutex<Vec<String>>>);

impl Errors {
    pub(super) fn note(&self, error: &Error) {
        let mut errors = self.0.lock().unwrap();
        if errors.len() < 20 {
            errors.push(error.to_string());
        }
    }

    pub(super) fn in_words(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Judged {
    /// Calls in the ways of the workload's mix, one after the other, until `stop` is set.
    pub(super) async fn run(self: Arc<Self>, mut random: Seeded, stop: Arc<AtomicBool>) {
        let workload = &self.workload;
        while !stop.load(Ordering::Relaxed) {
            match workload.mix.draw(&mut random) {
                Way::Single(single) => {
                    let key = random.below(workload.keys);
                    self.single(single, key, &mut random).await;
                }
                Way::Burst => self.burst(&mut random).await,
                Way::Batch => self.batch(&mut random).await,
                Way::Range => self.range(&mut random).await,
                Way::Session => self.session(&mut random).await,
                Way::Group => self.group(&mut random).await,
                Way::Clear => self.clear(&mut random).await,
            }
            if !workload.pace.is_zero() {
                tokio::time::sleep(workload.pace).await;
            }
        }
    }

    /// Makes a call with one key.
    pub(super) async fn single(&self, call: Single, key: u64, random: &mut Seeded) {
        let len = self.workload.len(key, random);
        let name = key_name(key);
        match call {
            Single::Put => drop(self.put(&name, len, &self.workload.options(PutMode::IfAbsent)).await),
            Single::Upsert => drop(self.put(&name, len, &self.workload.options(PutMode::Upsert)).await),
            Single::Pin => {
                let key = key - key % ONE_PINNED_IN;
                let len = self.workload.len(key, random);
                let pin = PINS[random.below(PINS.len() as u64) as usize];
                let options = self.workload.options(PutMode::Upsert).with_pin(pin);
                self.put(&key_name(key), len, &options).await;
            }
            Single::Get => drop(self.get(&name).await),
            Single::Exist => {
                let call = self.call(vec![(self.name(&name), Action::Exist)]);
                let found = self.client.presence(&name).await;
                call.answered([found], |call, found| call.found(found));
            }
            Single::Remove => {
                let call = self.call(vec![(self.name(&name), Action::Remove)]);
                let removed = self.client.remove(&name, true).await;
                call.answered([removed], |call, removed| call.removed(removed));
            }
        }
    }

    pub(super) async fn put(&self, key: &str, len: usize, options: &PutOptions) -> Outcome {
        let (value, digest) = self.puts.begin(&self.name(key), len);
        let call = self.call(vec![(self.name(key), action(options, digest))]);
        let put = self.client.put_with(key, &value, options).await;
        call.answered([put], |call, put| call.put(put))[0]
    }

    pub(super) async fn get(&self, key: &str) -> Outcome {
        let call = self.call(vec![(self.name(key), Action::Get)]);
        let got = self.client.get(key).await;
        call.answered([got], |call, got| call.got(got))[0]
    }

    /// Records which stores hold a key that is written only once. It stays unknown if no leader says so now.
    pub(super) async fn find_places(&self, key: &str) {
        if let Ok(Some(found)) = self.client.describe(key).await {
            let stores = found.replicas.iter().map(|replica| replica.store).collect();
            self.recorder.placed(&self.name(key), stores);
        }
    }

    /// Returns the name of a key in the history.
    pub(super) fn name(&self, key: &str) -> String {
        tenant_key(&self.tenant, key)
    }
}

pub(super) fn key_name(key: u64) -> String {
    format!("key-{key}")
}

/// Returns what a put with these options asks for.
pub(super) fn action(options: &PutOptions, value: Digest) -> Action {
    match (options.mode, options.pin) {
        (PutMode::Upsert, PinAction::Preserve) => Action::Upsert(value),
        (PutMode::Upsert, PinAction::Disable) => Action::UpsertPinned(value, Pin::Off),
        (PutMode::Upsert, PinAction::Soft(_)) => Action::UpsertPinned(value, Pin::Soft),
        (PutMode::Upsert, PinAction::Hard) => Action::UpsertPinned(value, Pin::Hard),
        _ => Action::PutIfAbsent(value),
    }
}
