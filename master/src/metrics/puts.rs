use std::time::Instant;

use mc_process::metrics::Registry;
use metrics::{Counter, Gauge, Histogram};

/// Metrics of calls to start puts.
pub(crate) struct PutMetrics {
    pub(crate) refused_by_disk: Counter,
    pub(crate) refused_by_space: Counter,
    waited_for_space: Counter,
    waiting: Gauge,
    wait_seconds: Histogram,
}

impl PutMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            refused_by_disk: r.counter(
                "mc_master_puts_refused_total",
                "Calls to start puts that were refused, by the resource that is short",
                &[("short_of", "disk")],
            ),
            refused_by_space: r.counter(
                "mc_master_puts_refused_total",
                "Calls to start puts that were refused, by the resource that is short",
                &[("short_of", "space")],
            ),
            waited_for_space: r.counter(
                "mc_master_puts_waited_total",
                "Calls to start puts that waited for space which an eviction frees",
                &[],
            ),
            waiting: r.gauge(
                "mc_puts_waiting",
                "Calls to start puts that wait now for space which an eviction frees",
                &[],
            ),
            wait_seconds: r.histogram(
                "mc_master_put_wait_seconds",
                "Time of calls to start puts from finding no space until their puts were started or refused",
                &[],
            ),
        }
    }

    /// Counts a call to start puts as one that waits for space, until the result is dropped.
    pub(crate) fn wait(&self) -> PutWait<'_> {
        self.waited_for_space.increment(1);
        self.waiting.increment(1.0);
        PutWait { metrics: self, since: Instant::now() }
    }
}

/// A call to start puts that waits for space.
pub(crate) struct PutWait<'a> {
    metrics: &'a PutMetrics,
    since: Instant,
}

impl Drop for PutWait<'_> {
    fn drop(&mut self) {
        self.metrics.waiting.decrement(1.0);
        self.metrics.wait_seconds.record(self.since.elapsed().as_secs_f64());
    }
}
