use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_types::{Metric, MetricKind};
use tokio::time::Instant;

/// Declares each counter and timer once: its field in [`Stats`], its metric name, and its help text.
macro_rules! counters {
    (
        counters { $($field:ident => $metric:literal, $help:literal;)* }
        timers { $($timer:ident => $timer_metric:literal, $timer_help:literal;)* }
    ) => {
        /// Counters of a client since it was built.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = concat!($help, " (metric `", $metric, "`).")] pub $field: u64,)*
            $(#[doc = concat!($timer_help, ". In nanoseconds (metric `", $timer_metric, "`).")] pub $timer: u64,)*
            /// Bytes in the local cache.
            pub cache_bytes: u64,
        }

        impl Stats {
            /// Returns each counter with the name of its field.
            #[must_use]
            pub fn by_name(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($field), self.$field),)*
                    $((stringify!($timer), self.$timer),)*
                    ("cache_bytes", self.cache_bytes),
                ]
            }
        }

        /// Lists the metrics of a client, by name.
        #[must_use]
        pub fn metrics_reference() -> Vec<Metric> {
            let mut metrics = vec![
                $(reference($metric, MetricKind::Counter, $help),)*
                $(reference($timer_metric, MetricKind::Histogram, $timer_help),)*
            ];
            metrics.sort_by_key(|metric| metric.name);
            metrics
        }

        /// The counters of one client, each mirrored into the `metrics` facade.
        ///
        /// A process that installed a recorder exports the sum over its clients. Without a recorder the mirror costs
        /// nothing.
        #[derive(Debug)]
        pub(crate) struct Counters {
            $(pub(crate) $field: Counter,)*
            $(pub(crate) $timer: Timer,)*
        }

        impl Counters {
            pub(crate) fn new() -> Self {
                $(metrics::describe_counter!($metric, $help);)*
                $(metrics::describe_histogram!($timer_metric, $timer_help);)*
                Self {
                    $($field: Counter { here: AtomicU64::new(0), facade: metrics::counter!($metric) },)*
                    $($timer: Timer { here: AtomicU64::new(0), facade: metrics::histogram!($timer_metric) },)*
                }
            }

            pub(crate) fn stats(&self, cache_bytes: u64) -> Stats {
                Stats {
                    $($field: self.$field.here.load(Ordering::Relaxed),)*
                    $($timer: self.$timer.here.load(Ordering::Relaxed),)*
                    cache_bytes,
                }
            }
        }
    };
}

counters! {
    counters {
        hits => "mc_client_hits_total", "Gets that answered with bytes";
        misses => "mc_client_misses_total", "Gets that answered with a miss";
        cache_hits => "mc_client_cache_hits_total", "Hits that the local cache answered";
        embedded_hits => "mc_client_embedded_hits_total",
            "Hits that an embedded store's memory answered, without a leader";
        puts_stored => "mc_client_puts_stored_total", "Puts that were acknowledged";
        puts_existing => "mc_client_puts_existing_total", "Puts whose key existed already";
        puts_local => "mc_client_puts_local_total", "Puts that were answered without a leader";
        puts_published => "mc_client_puts_published_total",
            "Local puts that were published once a leader was back, or whose key was found to exist; each was counted as a \
             local put before and counts in no other counter";
        local_puts_refused => "mc_client_local_puts_refused_total",
            "Local puts queued for publishing that the pool refused for good";
        local_puts_evicted => "mc_client_local_puts_evicted_total",
            "Local puts that the local cache evicted before they were published";
        bytes_read => "mc_client_read_bytes_total", "Bytes read from stores";
        shm_bytes_read => "mc_client_shm_read_bytes_total",
            "Bytes of these that were read from stores of this host through shared memory";
        rdma_bytes_read => "mc_client_rdma_read_bytes_total", "Bytes of these that were read by RDMA";
        bytes_written => "mc_client_written_bytes_total", "Bytes written to stores; each replica counts";
        shm_bytes_written => "mc_client_shm_written_bytes_total",
            "Bytes of these that stores of this host copied out of shared memory";
        rdma_bytes_written => "mc_client_rdma_written_bytes_total", "Bytes of these that were written by RDMA";
        checksum_mismatches => "mc_client_checksum_mismatches_total",
            "Replicas whose bytes did not match their checksum; such bytes are never returned";
        unreachable_replicas => "mc_client_unreachable_replicas_total",
            "Objects that the masters know but of which no replica could be read; each was answered as a miss";
        retries => "mc_client_retries_total", "Calls to masters that were issued again";
        leader_changes => "mc_client_leader_changes_total", "Number of times that the client found a leader";
        local_only_entries => "mc_client_local_only_entries_total",
            "Number of times that the client entered local-only mode";
    }
    timers {
        put_start_ns => "mc_client_put_start_seconds",
            "Time that puts waited for the leader to start them, including repetitions; puts in one request count it once";
        put_write_ns => "mc_client_put_write_seconds",
            "Time that puts waited for the stores to take their bytes; puts in one request count it once";
        put_end_ns => "mc_client_put_end_seconds",
            "Time that puts waited for the leader to end them; puts in one request count it once";
    }
}

fn reference(name: &'static str, kind: MetricKind, help: &'static str) -> Metric {
    Metric { name, kind, help, labels: BTreeMap::new() }
}

pub(crate) struct Counter {
    here: AtomicU64,
    facade: metrics::Counter,
}

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.here.fetch_add(n, Ordering::Relaxed);
        self.facade.increment(n);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }
}

/// Time spent: nanoseconds in this client's total, a histogram of seconds in the facade.
pub(crate) struct Timer {
    here: AtomicU64,
    facade: metrics::Histogram,
}

impl Timer {
    /// Runs `work` to its end and adds the time that it takes.
    pub(crate) async fn time<T>(&self, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = work.await;
        self.add(began.elapsed());
        done
    }

    pub(crate) fn add(&self, took: Duration) {
        self.here.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.facade.record(took);
    }
}

impl std::fmt::Debug for Timer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.here.load(Ordering::Relaxed).fmt(f)
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.here.load(Ordering::Relaxed).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metrics_name_ends_as_its_type_demands() {
        for Metric { name, kind, .. } in metrics_reference() {
            let ending = match kind {
                MetricKind::Counter => "_total",
                MetricKind::Histogram => "_seconds",
                MetricKind::Gauge => unreachable!("{name}: a sum over clients has no gauge"),
            };
            assert!(name.starts_with("mc_client_") && name.ends_with(ending), "{name}: {kind}");
        }
    }
}
