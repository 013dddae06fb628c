use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mc_base::StoreId;

use crate::Cluster;
use crate::checker::{Action, Losses, Operation, Outcome, Verdict, check};

/// Records operations as they happen; clones record into the same history.
#[derive(Clone, Debug)]
pub struct Recorder {
    origin: Instant,
    operations: Arc<Mutex<Vec<Operation>>>,
}

/// What clients did and saw.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The operations, in the order of their ends.
    pub operations: Vec<Operation>,
    /// From when on nothing but the final reads went on, all faults being over.
    pub settled: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// An empty history that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now(), operations: Arc::default() }
    }

    /// The time of this history, in nanoseconds. Taken before a call is made and after it has returned.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records an operation that began at `start` and ends now.
    pub fn record(&self, client: u32, key: &str, action: Action, outcome: Outcome, start: u64) {
        let operation = Operation { client, key: key.to_owned(), action, outcome, start, end: self.now() };
        self.operations.lock().unwrap().push(operation);
    }

    /// How many recorded operations satisfy `wanted`.
    pub fn count(&self, wanted: impl Fn(&Operation) -> bool) -> usize {
        self.operations.lock().unwrap().iter().filter(|operation| wanted(operation)).count()
    }

    /// What was recorded so far.
    #[must_use]
    pub fn history(&self) -> History {
        History { operations: self.operations.lock().unwrap().clone(), settled: u64::MAX }
    }
}

impl History {
    /// Judges it.
    #[must_use]
    pub fn check(&self, losses: Losses) -> Verdict {
        check(&self.operations, losses)
    }

    /// Judges the history of a run in which every store lived and nothing was evicted: nothing acknowledged may be missed.
    ///
    /// On a machine that is busy with other things a store may be late with its heartbeats; its keys are then not offered
    /// for a moment. The masters' logs say when they suspected a store: only then is a miss let pass, and only before
    /// the final reads.
    ///
    /// # Panics
    /// When no order explains it.
    #[track_caller]
    pub fn assert_nothing_lost(&self, cluster: &Cluster) {
        self.judge(cluster.has_suspected_a_store());
    }

    /// The same for a run whose objects were all on one store, whatever became of the others: a miss is let pass only if
    /// the masters suspected that one.
    ///
    /// # Panics
    /// When no order explains it.
    #[track_caller]
    pub fn assert_nothing_lost_on(&self, cluster: &Cluster, store: StoreId) {
        self.judge(suspected(cluster, &format!("{store:?}")));
    }

    #[track_caller]
    fn judge(&self, suspected: bool) {
        let losses = if suspected { Losses::AllowedUntil(self.settled) } else { Losses::None };
        println!("{self}{}", if suspected { " (a store was suspected for a while)" } else { "" });
        self.check(losses).assert_ok();
    }

    /// Puts that were acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.count(|operation| operation.outcome == Outcome::Stored)
    }

    /// Reads that were answered out of a client's own cache, without a leader.
    #[must_use]
    pub fn local_reads(&self) -> usize {
        self.count(|operation| matches!(operation.outcome, Outcome::LocalValue(_)))
    }

    /// Operations of this outcome.
    #[must_use]
    pub fn outcomes(&self, outcome: Outcome) -> usize {
        self.count(|operation| operation.outcome == outcome)
    }

    /// The operation that took longest.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        let longest = self.operations.iter().map(|operation| operation.end - operation.start).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    fn count(&self, wanted: impl Fn(&Operation) -> bool) -> usize {
        self.operations.iter().filter(|operation| wanted(operation)).count()
    }
}

impl Cluster {
    /// Whether the masters' logs say that they suspected a store: then a miss is let pass in what clients saw.
    #[must_use]
    pub fn has_suspected_a_store(&self) -> bool {
        suspected(self, "StoreId")
    }
}

/// Whether the masters' logs say of a store of that name that they suspected it.
fn suspected(cluster: &Cluster, store: &str) -> bool {
    let says = |line: &str| line.split_once("suspects=[").is_some_and(|(_, stores)| stores.contains(store));
    cluster.masters.iter().any(|master| master.output().lines().any(says))
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
