use std::time::Duration;

use mc_process::metrics::Registry;
use metrics::{Counter, Histogram};

use super::labels::{EVICTED_FOR, EvictedFor};

/// Metrics of evictions, by their reason.
pub(crate) struct EvictionMetrics {
    objects: Vec<Counter>,
    bytes: Vec<Counter>,
    age: Vec<Histogram>,
}

impl EvictionMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let by_reason = |name, help| -> Vec<Counter> {
            EVICTED_FOR.iter().map(|(_, reason)| r.counter(name, help, &[("reason", reason)])).collect()
        };
        Self {
            objects: by_reason("mc_evicted_objects_total", "Objects evicted while this master led, by reason"),
            bytes: by_reason("mc_evicted_bytes_total", "Bytes of the replicas of evicted objects, by reason"),
            age: EVICTED_FOR
                .iter()
                .map(|(_, reason)| {
                    let help = "Age of evicted objects since they were put, by reason. An object from before this master led \
                                counts as if it was put then";
                    r.histogram("mc_evicted_age_seconds", help, &[("reason", reason)])
                })
                .collect(),
        }
    }

    /// Counts evicted objects.
    pub(crate) fn objects(&self, reason: EvictedFor, objects: u64) {
        self.objects[reason as usize].increment(objects);
    }

    /// Counts the bytes of evicted objects.
    pub(crate) fn bytes(&self, reason: EvictedFor, bytes: u64) {
        self.bytes[reason as usize].increment(bytes);
    }

    /// Counts the age of an evicted object.
    pub(crate) fn age(&self, reason: EvictedFor, age: Duration) {
        self.age[reason as usize].record(age.as_secs_f64());
    }
}
