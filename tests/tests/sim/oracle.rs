//! Calls of the clients and their answers, and whether they can be.

use std::collections::BTreeMap;
use std::sync::Arc;

use mc_tests::checker::{Action, Digest, Losses, Operation, Outcome, Verdict, check};
use parking_lot::Mutex;

use crate::trace::Trace;

/// Prefix of the keys that clients remove. All others stay once they are put.
const REMOVED: &str = "hot-";

/// Records operations and judges each read as it returns; clones record into the same history.
#[derive(Clone)]
pub(crate) struct Oracle {
    inner: Arc<Mutex<Inner>>,
    trace: Trace,
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
}

#[derive(Default)]
struct Inner {
    /// Milliseconds of the simulation.
    now: u64,
    /// Within one millisecond things happen one after the other.
    order: u64,
    operations: BTreeMap<String, Vec<Operation>>,
    tally: Tally,
    violation: Option<String>,
}

impl Oracle {
    pub(crate) fn new(trace: Trace) -> Self {
        Self { inner: Arc::default(), trace }
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

    /// Keys that were ever put.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.inner.lock().operations.keys().cloned().collect()
    }

    pub(crate) fn record(&self, client: u32, key: &str, action: Action, outcome: Outcome, start: u64) {
        let operation = Operation { client, key: key.to_owned(), action, outcome, start, end: self.now() };
        assert!(action != Action::Remove || key.starts_with(REMOVED), "{key} is a key that nobody removes");
        self.trace.note_text(&format!("{key} {operation}"));
        let mut inner = self.inner.lock();
        let before = inner.operations.entry(key.to_owned()).or_default();
        let wrong = contradiction(before, &operation);
        before.push(operation.clone());
        if let Some(other) = wrong {
            inner.violation.get_or_insert_with(|| {
                format!(
                    "key {key}: an answer that is older than what was acknowledged\n  {other}\n  {operation}"
                )
            });
        }
    }

    /// The first read that returned something older than a change acknowledged before it began, or missed what was put.
    pub(crate) fn violation(&self) -> Option<String> {
        self.inner.lock().violation.clone()
    }

    /// Judges the whole history.
    pub(crate) fn verdict(&self) -> Verdict {
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
/// A miss of a key that is removed at times is judged at the end, with the whole history: a remove that is under way may
/// explain it, and has not been recorded yet.
fn contradiction(before: &[Operation], read: &Operation) -> Option<Operation> {
    let writes = |digest: Digest| before.iter().find(|op| written(op) == Some(digest));
    let value = match read.outcome {
        Outcome::Value(value) => Some(value),
        Outcome::Miss | Outcome::Absent if !read.key.starts_with(REMOVED) => None,
        _ => return None,
    };
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
                None => change.outcome == Outcome::Removed,
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
