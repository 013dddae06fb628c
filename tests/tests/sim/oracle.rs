//! Calls of the clients and their answers, and whether they can be.

use std::collections::BTreeMap;
use std::sync::Arc;

use mc_proto::v1;
use mc_tests::checker::{Action, Digest, Losses, Operation, Outcome, Verdict, check};
use mc_types::{GrantKey, PutId, StoreId};
use parking_lot::Mutex;

use crate::keys::{digest_of, may_be_evicted, may_be_removed};
use crate::pool::Pool;
use crate::trace::Trace;

/// Records operations and judges each read as it returns; clones record into the same history.
#[derive(Clone)]
pub(crate) struct Oracle {
    inner: Arc<Mutex<Inner>>,
    trace: Trace,
    pool: Pool,
}

/// Counts of the clients' calls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    /// Puts that were placed on two stores.
    pub(crate) on_two_stores: usize,
    /// Puts that were started and taken back.
    pub(crate) revoked: usize,
    /// Starts of puts that were refused because disks are nearly full.
    pub(crate) refused_for_room: usize,
    /// Starts of puts that were refused because of a tenant's quota.
    pub(crate) refused_for_quota: usize,
    /// Removals of many objects of a tenant that were answered.
    pub(crate) mass_removals: usize,
    /// Changes of the table of keys and values that were answered.
    pub(crate) entries_changed: usize,
    /// Replicas that were dropped from one store.
    pub(crate) replicas_dropped: usize,
    /// Starts of puts that were refused for lack of memory.
    pub(crate) refused_for_memory: usize,
    /// Puts that were stored by a call with others.
    pub(crate) stored_together: usize,
    /// Keys that were read by a call with others.
    pub(crate) read_together: usize,
    /// Keys that were removed by a call with others.
    pub(crate) removed_together: usize,
    /// Puts that were stored and changed the pin of their key.
    pub(crate) pins_changed: usize,
    /// Pins that were read.
    pub(crate) pins_read: usize,
    /// Values that a real client has stored.
    pub(crate) bytes_stored: usize,
    /// Values that a real client has read.
    pub(crate) bytes_read: usize,
}

#[derive(Default)]
struct Inner {
    /// Milliseconds of the simulation.
    now: u64,
    /// Within one millisecond things happen one after the other.
    order: u64,
    operations: BTreeMap<String, Vec<Operation>>,
    /// Evictions that the newest leader may not have applied yet, by the index of their entry.
    evictions: BTreeMap<u64, Vec<(String, Digest)>>,
    /// Pins that the puts asked for.
    pins: BTreeMap<PutId, v1::PinAction>,
    /// Keys of the grants of the stores that were mounted last.
    grant_keys: BTreeMap<StoreId, GrantKey>,
    /// When a put was last acknowledged.
    stored_at: u64,
    tally: Tally,
    violation: Option<String>,
}

impl Oracle {
    /// Judges calls that are about such a pool.
    pub(crate) fn new(trace: Trace, pool: Pool) -> Self {
        Self { inner: Arc::default(), trace, pool }
    }

    pub(crate) fn set_now(&self, now: u64) {
        let mut inner = self.inner.lock();
        inner.now = now;
        inner.order = 0;
    }

    /// The time, each later than the one before.
    pub(crate) fn now(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.order += 1;
        inner.now * 1_000_000 + inner.order
    }

    /// Notes the key of a store that is mounted.
    pub(crate) fn note_grant_key(&self, store: StoreId, key: GrantKey) {
        self.inner.lock().grant_keys.insert(store, key);
    }

    /// The keys of all stores' grants.
    pub(crate) fn grant_keys(&self) -> BTreeMap<StoreId, GrantKey> {
        self.inner.lock().grant_keys.clone()
    }

    /// The key of a store's grants.
    pub(crate) fn grant_key(&self, store: StoreId) -> Option<GrantKey> {
        self.inner.lock().grant_keys.get(&store).copied()
    }

    /// Keys that were ever put.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.inner.lock().operations.keys().cloned().collect()
    }

    pub(crate) fn record(&self, client: u32, key: &str, action: Action, outcome: Outcome, start: u64) {
        let operation = Operation { client, key: key.to_owned(), action, outcome, start, end: self.now() };
        assert!(action != Action::Remove || may_be_removed(key), "{key} is a key that nobody removes");
        self.trace.note_text(&format!("{key} {operation}"));
        let mut inner = self.inner.lock();
        let before = inner.operations.entry(key.to_owned()).or_default();
        let may_go = may_be_removed(key) || may_be_evicted(key, self.pool);
        let wrong = contradiction(before, &operation, may_go);
        before.push(operation.clone());
        if operation.outcome == Outcome::Stored {
            inner.stored_at = inner.now;
        }
        if let Some(other) = wrong {
            inner.violation.get_or_insert_with(|| {
                format!(
                    "key {key}: an answer that is older than what was acknowledged\n  {other}\n  {operation}"
                )
            });
        }
    }

    /// The entry `index`, which is committed, evicts a version. From when on a read may miss it is not known: a leader that
    /// has died may have applied the entry before anybody saw that it is committed.
    pub(crate) fn evicted(&self, index: u64, key: String, version: PutId, checksum: u64) {
        self.trace.note_text(&format!("{key} {version:?} is evicted by entry {index}"));
        let mut inner = self.inner.lock();
        let pinned = inner.pins.get(&version) == Some(&v1::PinAction::PinHard);
        if pinned || !may_be_evicted(&key, self.pool) {
            inner.violation.get_or_insert_with(|| format!("key {key} was evicted by entry {index}"));
        }
        let value = digest_of(&key, version, checksum);
        inner.evictions.entry(index).or_default().push((key, value));
    }

    /// The newest leader has applied the entries up to this one: no read from now on may return what they evicted.
    pub(crate) fn in_effect(&self, index: u64) {
        let now = self.now();
        let mut inner = self.inner.lock();
        let later = inner.evictions.split_off(&(index + 1));
        let evicted = std::mem::replace(&mut inner.evictions, later);
        for (key, value) in evicted.into_values().flatten() {
            let eviction = Operation::eviction(&key, value, 0, now);
            inner.operations.entry(key).or_default().push(eviction);
        }
    }

    /// Keys that were put once, with an acknowledgement, and whose values stay.
    pub(crate) fn kept(&self) -> Vec<(String, Digest)> {
        let inner = self.inner.lock();
        let stays = |key: &&String| !may_be_removed(key) && !may_be_evicted(key, self.pool);
        let keys = inner.operations.iter().filter(|(key, _)| stays(key));
        let kept = keys.filter_map(|(key, operations)| {
            let mut puts = operations.iter().filter(|operation| written(operation).is_some());
            let put = puts.next().filter(|put| put.outcome == Outcome::Stored)?;
            Some((key.clone(), written(put)?)).filter(|_| puts.next().is_none())
        });
        kept.collect()
    }

    /// Something is wrong.
    pub(crate) fn violates(&self, why: String) {
        self.inner.lock().violation.get_or_insert(why);
    }

    /// The time between two acknowledged puts counts from now on.
    pub(crate) fn stored_now(&self) {
        let mut inner = self.inner.lock();
        inner.stored_at = inner.now;
    }

    /// When a put was last acknowledged, in ms.
    pub(crate) fn last_stored(&self) -> u64 {
        self.inner.lock().stored_at
    }

    /// A put asks for this pin.
    pub(crate) fn asks_for(&self, put: PutId, pin: v1::PinAction) {
        self.inner.lock().pins.insert(put, pin);
    }

    /// A master says how a version is pinned. A put that preserves the pin of its key may have found any.
    pub(crate) fn pin_of(&self, key: &str, version: PutId, hard: bool, soft: bool) {
        let mut inner = self.inner.lock();
        inner.tally.pins_read += 1;
        let Some(asked) = inner.pins.get(&version).copied() else { return };
        let right = match asked {
            v1::PinAction::PinHard => hard,
            v1::PinAction::PinSoft => !hard,
            v1::PinAction::PinDisable => !hard && !soft,
            v1::PinAction::PinPreserve => true,
        };
        if !right {
            let why = format!(
                "key {key}: {version:?} was put with {asked:?}; hard-pinned {hard}, soft-pinned {soft}"
            );
            inner.violation.get_or_insert(why);
        }
    }

    /// The first read that returned something older than a change acknowledged before it began, or missed what was put.
    pub(crate) fn violation(&self) -> Option<String> {
        self.inner.lock().violation.clone()
    }

    /// Judges the whole history.
    pub(crate) fn verdict(&self) -> Verdict {
        self.in_effect(u64::MAX - 1);
        let inner = self.inner.lock();
        let history: Vec<_> = inner.operations.values().flatten().cloned().collect();
        // Stores fall silent, and the one that forgets never holds the only replica.
        check(&history, Losses::Hidden)
    }

    /// Counts something.
    pub(crate) fn tally(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.inner.lock().tally);
    }

    pub(crate) fn tallied(&self) -> Tally {
        self.inner.lock().tally
    }

    /// How many operations had such an outcome.
    pub(crate) fn count(&self, of: impl Fn(&Operation) -> bool) -> usize {
        self.inner.lock().operations.values().flatten().filter(|operation| of(operation)).count()
    }
}

/// A change that was acknowledged before `read` began, and that `read` does not know of, although nothing else that
/// could explain its answer happened since.
///
/// A miss of a key that is removed or evicted at times is judged at the end, with the whole history: a remove that is under
/// way may explain it, and has not been recorded yet.
fn contradiction(before: &[Operation], read: &Operation, may_go: bool) -> Option<Operation> {
    let writes = |digest: Digest| before.iter().find(|op| written(op) == Some(digest));
    let value = match read.outcome {
        Outcome::Value(value) => Some(value),
        Outcome::Miss | Outcome::Absent if !may_go => None,
        _ => return None,
    };
    let evicted = |op: &&Operation| value.is_some_and(|value| op.action == Action::Evict(value));
    if let Some(eviction) = before.iter().filter(evicted).find(|eviction| eviction.end < read.start) {
        return Some(eviction.clone());
    }
    let open = |op: &Operation| op.outcome == Outcome::Unknown;
    // What can explain the answer: the put of that value, which may have taken effect after `change` did. A miss, nothing.
    let explains = |op: &Operation| match value {
        Some(value) => written(op) == Some(value) && op.outcome != Outcome::Failed,
        None => false,
    };
    if value.is_some_and(|value| writes(value).is_none()) {
        // Its put is under way.
        return None;
    }
    before
        .iter()
        .filter(|change| change.end < read.start)
        .filter(|change| match value {
            Some(value) => match written(change) {
                Some(other) => other != value && change.outcome == Outcome::Stored,
                None => matches!(change.outcome, Outcome::Removed | Outcome::Cleared),
            },
            None => change.outcome == Outcome::Stored,
        })
        .find(|change| {
            let later = |op: &&Operation| explains(op) && (open(op) || op.end > change.start);
            !before.iter().any(|op| later(&op))
        })
        .cloned()
}

/// The value that a put may have written: not one that found another there.
fn written(op: &Operation) -> Option<Digest> {
    match op.action {
        Action::Upsert(value) | Action::PutIfAbsent(value) if op.outcome != Outcome::Exists => Some(value),
        _ => None,
    }
}
