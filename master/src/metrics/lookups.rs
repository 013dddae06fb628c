use mc_process::metrics::Registry;
use mc_types::Code;
use metrics::Counter;

/// Results of the keys of lookups, as the label `result`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lookups {
    /// The object was found and can be read.
    pub(crate) hits: u64,
    /// There is no such object.
    pub(crate) misses: u64,
    /// There is one, and it can't be read now: its stores are suspect, or it is being evicted.
    pub(crate) unavailable: u64,
}

impl Lookups {
    /// Counts the results of one call by their codes.
    pub(crate) fn of(results: impl Iterator<Item = Code>) -> Self {
        let mut counted = Self::default();
        for result in results {
            match result {
                Code::Ok => counted.hits += 1,
                Code::ObjectNotFound => counted.misses += 1,
                Code::ReplicaIsNotReady => counted.unavailable += 1,
                // The key was never looked up.
                _ => {}
            }
        }
        counted
    }
}

/// Counters of the keys that one call looks up.
pub(super) struct LookupCounters {
    hits: Counter,
    misses: Counter,
    unavailable: Counter,
}

impl LookupCounters {
    pub(super) fn new(registry: &Registry, rpc: &str) -> Self {
        let by_result = |result| {
            let help = "Keys that gets and existence checks looked up, by result; unavailable: the object exists and \
                        can't be read now";
            registry.counter("mc_master_lookups_total", help, &[("rpc", rpc), ("result", result)])
        };
        Self { hits: by_result("hit"), misses: by_result("miss"), unavailable: by_result("unavailable") }
    }

    pub(super) fn add(&self, lookups: Lookups) {
        self.hits.increment(lookups.hits);
        self.misses.increment(lookups.misses);
        self.unavailable.increment(lookups.unavailable);
    }
}
