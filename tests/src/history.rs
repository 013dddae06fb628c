use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use mc_types::StoreId;

use crate::checker::{Action, Losses, Operation, Outcome, Verdict, check, check_each};
use crate::excuses::Excuses;
use crate::logged::{Logged, evictions};
use crate::service::{CallKind, Service, served};
use crate::suspicions::suspicions;
use crate::{Cluster, report};

/// Records operations as they happen; clones record into the same history.
#[derive(Clone, Debug)]
pub struct Recorder {
    origin: Instant,
    origin_by_the_wall: SystemTime,
    operations: Arc<Mutex<Vec<Operation>>>,
    places: Arc<Mutex<Places>>,
}

/// Stores that hold the replicas of a key's only version, of keys that are written once.
type Places = HashMap<String, Vec<StoreId>>;

/// Calls of clients and their answers, with the times of the run.
#[derive(Clone, Debug)]
pub struct History {
    /// Start of the run, by the clock that processes write into their logs.
    began: SystemTime,
    /// The operations, in the order of their ends.
    pub operations: Vec<Operation>,
    places: Places,
    /// Evictions, as the masters' log tells of them, and losses with a store, as the test does.
    of_the_pool: Vec<Operation>,
    /// Time from which on all faults were over and only the final reads went on.
    pub settled: u64,
    /// Final reads that failed. They were repeated.
    pub final_failures: usize,
    /// Final reads that missed a key of which the masters knew an object, and were repeated.
    pub final_misses: usize,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Makes an empty history that begins now.
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
            origin_by_the_wall: SystemTime::now(),
            operations: Arc::default(),
            places: Arc::default(),
        }
    }

    /// Returns the present time of this history, in nanoseconds. Callers take it before a call; [`Self::record`] takes
    /// it after.
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records an operation that began at `start` and has just ended.
    pub fn record(&self, client: u32, key: &str, action: Action, outcome: Outcome, start: u64) {
        self.record_during(client, key, action, outcome, start..self.now());
    }

    /// Records an operation that took effect, if it did, during this span.
    pub fn record_during(
        &self,
        client: u32,
        key: &str,
        action: Action,
        outcome: Outcome,
        during: Range<u64>,
    ) {
        let Range { start, end } = during;
        let operation = Operation { client, key: key.to_owned(), action, outcome, start, end };
        self.operations.lock().unwrap().push(operation);
    }

    /// Records which stores hold the replicas of a key that is written only once.
    pub(crate) fn placed(&self, key: &str, stores: Vec<StoreId>) {
        self.places.lock().unwrap().insert(key.to_owned(), stores);
    }

    /// Counts the recorded operations that satisfy `wanted`.
    pub fn count(&self, wanted: impl Fn(&Operation) -> bool) -> usize {
        self.look(|operations| operations.iter().filter(|operation| wanted(operation)).count())
    }

    /// Passes the operations recorded so far to `look`, which must be quick: clients wait meanwhile.
    pub fn look<R>(&self, look: impl FnOnce(&[Operation]) -> R) -> R {
        look(&self.operations.lock().unwrap())
    }

    /// Returns the history recorded so far.
    pub fn history(&self) -> History {
        History {
            began: self.origin_by_the_wall,
            operations: self.look(<[Operation]>::to_vec),
            places: self.places.lock().unwrap().clone(),
            of_the_pool: Vec::new(),
            settled: u64::MAX,
            final_failures: 0,
            final_misses: 0,
        }
    }
}

impl History {
    /// Returns the history with `settled` as the time from which on only the final reads went on.
    #[must_use]
    pub fn settled_at(mut self, settled: u64) -> Self {
        self.settled = settled;
        self
    }

    /// Adds the evictions that a log tells of, in its order.
    #[must_use]
    pub fn with_evictions(mut self, log: &[Logged]) -> Self {
        self.of_the_pool.extend(evictions(log, &self.operations));
        self
    }

    /// Adds that a store lost its memory at the time `at`: each value that may lie on it may go from then on.
    #[must_use]
    pub fn with_loss(mut self, store: StoreId, at: u64) -> Self {
        let is_elsewhere = |key: &str| self.places.get(key).is_some_and(|stores| *stores != [store]);
        let puts = self.operations.iter().filter(|put| put.start < at && !is_elsewhere(&put.key));
        let loss = |put: &Operation| Some(Operation::loss(&put.key, put.action.writes()?, at));
        self.of_the_pool.extend(puts.filter_map(loss));
        self
    }

    /// Returns the operations of the clients and of the pool.
    pub fn all(&self) -> Vec<Operation> {
        [&self.operations[..], &self.of_the_pool].concat()
    }

    /// Judges the history with [`check`].
    pub fn check(&self, losses: Losses) -> Verdict {
        check(&self.all(), losses)
    }

    /// Judges the history of a run in which every store lived: no acknowledged value may be missed that was not evicted, and no
    /// final read may have failed.
    ///
    /// On a busy machine a store's heartbeats may be late, and its keys are then not offered for a moment. The masters'
    /// logs say when they suspected which store. A miss is allowed only then, of a key that may lie on that store, and only before
    /// the final reads.
    #[track_caller]
    pub fn assert_nothing_lost(&self, cluster: &Cluster) {
        self.judge(cluster, None);
    }

    /// Judges a run like [`Self::assert_nothing_lost`] if all its objects were on one store. A miss is allowed only
    /// where the masters suspected that store; the others may have failed.
    #[track_caller]
    pub fn assert_nothing_lost_on(&self, cluster: &Cluster, store: StoreId) {
        self.judge(cluster, Some(store));
    }

    #[track_caller]
    fn judge(&self, cluster: &Cluster, store: Option<StoreId>) {
        let mut excuses = Excuses::default();
        for (suspect, span) in self.suspicions(cluster) {
            if store.is_none_or(|store| store == suspect) {
                excuses.add(Some(suspect), span);
            }
        }
        if let Losses::Within(spans) = excuses.of(None) {
            let ms = |span: &Range<u64>| [span.start / 1_000_000, span.end / 1_000_000];
            let spans: Vec<_> = spans.iter().map(ms).collect();
            let test = std::thread::current().name().map(str::to_owned);
            report(&serde_json::json!({ "test": test, "store_suspected_ms": spans }));
        }
        println!("{self}");
        assert_eq!(self.final_failures, 0, "final reads failed, with all faults over");
        if let Some(verdict) = self.faults_but(&excuses).first() {
            panic!("{verdict}");
        }
    }

    /// Returns the verdict on each key whose operations nothing explains, judged as in [`Self::assert_nothing_lost`]. A
    /// miss is also allowed within the spans of `unreachable`.
    #[must_use]
    pub fn faults(&self, cluster: &Cluster, unreachable: &[Range<u64>]) -> Vec<Verdict> {
        self.faults_but(&self.excuses(cluster, unreachable))
    }

    fn faults_but(&self, excuses: &Excuses) -> Vec<Verdict> {
        check_each(&self.all(), |key| excuses.of(self.places.get(key).map(Vec::as_slice)))
    }

    /// Counts the keys of which a miss is explained by an eviction and by nothing else.
    pub fn missed_by_eviction(&self, cluster: &Cluster, unreachable: &[Range<u64>]) -> usize {
        let excuses = self.excuses(cluster, unreachable).of(None);
        let without = check_each(&self.operations, |_| excuses.clone());
        without.iter().filter(|verdict| verdict.is_loss()).count()
    }

    fn excuses(&self, cluster: &Cluster, unreachable: &[Range<u64>]) -> Excuses {
        let mut excuses = Excuses::default();
        self.suspicions(cluster).into_iter().for_each(|(store, span)| excuses.add(Some(store), span));
        unreachable.iter().for_each(|span| excuses.add(None, span.clone()));
        excuses
    }

    fn suspicions(&self, cluster: &Cluster) -> Vec<(StoreId, Range<u64>)> {
        let logs: Vec<String> = cluster.masters.iter().map(crate::Process::output).collect();
        suspicions(&logs, self.began, self.settled)
    }

    /// Counts the keys that are written once, and whose places are known.
    pub fn ledger(&self) -> usize {
        self.places.len()
    }

    /// Asserts that each client got this service for each kind of call that is `owed` it, until the final reads.
    #[track_caller]
    pub fn assert_served(&self, service: Service, owed: impl Fn(CallKind) -> bool) {
        let mut got = served(&self.all(), &(0..self.settled), service.counted);
        got.retain(|it| owed(it.call));
        assert!(!got.is_empty(), "no call was owed anything");
        let breaches: Vec<_> =
            service.breaches(&got, Duration::ZERO).into_iter().map(ToString::to_string).collect();
        assert!(breaches.is_empty(), "less service than promised:\n  {}", breaches.join("\n  "));
    }

    /// Counts the acknowledged puts.
    pub fn acknowledged(&self) -> usize {
        self.count(|operation| operation.outcome == Outcome::Stored)
    }

    /// Counts the evictions.
    pub fn evictions(&self) -> usize {
        self.of_the_pool.iter().filter(|it| it.outcome == Outcome::Evicted).count()
    }

    /// Counts the reads that were answered from a client's own cache, without a leader.
    pub fn local_reads(&self) -> usize {
        self.count(|operation| matches!(operation.outcome, Outcome::LocalValue(_)))
    }

    /// Counts the operations with this outcome.
    pub fn outcomes(&self, outcome: Outcome) -> usize {
        self.count(|operation| operation.outcome == outcome)
    }

    /// Returns the duration of the longest operation.
    pub fn slowest(&self) -> Duration {
        let longest = self.operations.iter().map(|operation| operation.end - operation.start).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    fn count(&self, wanted: impl Fn(&Operation) -> bool) -> usize {
        self.operations.iter().filter(|operation| wanted(operation)).count()
    }
}

impl Cluster {
    /// Returns whether the masters' logs say that they suspected a store, so that a miss is allowed in the history.
    pub fn has_suspected_a_store(&self) -> bool {
        let says = |line: &str| line.split_once("suspects=[").is_some_and(|(_, rest)| !rest.starts_with(']'));
        self.masters.iter().any(|master| master.output().lines().any(says))
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations: {} puts acknowledged, {} reads of a value, {} puts and {} reads without a leader, {} failed, \
             {} of unknown outcome, slowest {:?}",
            self.operations.len(),
            self.acknowledged(),
            self.count(|operation| matches!(operation.outcome, Outcome::Value(_))),
            self.outcomes(Outcome::LocalOnly),
            self.local_reads(),
            self.outcomes(Outcome::Failed),
            self.outcomes(Outcome::Unknown),
            self.slowest()
        )
    }
}
