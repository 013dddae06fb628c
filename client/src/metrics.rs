use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Declares each counter and timer once: its field in [`Stats`], its metric name, and its description.
macro_rules! counters {
    (
        counters { $($(#[$doc:meta])* $field:ident => $metric:literal,)* }
        timers { $($(#[$timer_doc:meta])* $timer:ident => $timer_metric:literal,)* }
    ) => {
        /// Counters of a client since it was built.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $field: u64,)*
            $($(#[$timer_doc])* pub $timer: u64,)*
            /// Bytes in the local cache.
            pub cache_bytes: u64,
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
        /// Gets that answered with bytes.
        hits => "mc_client_hits_total",
        /// Gets that answered with a miss.
        misses => "mc_client_misses_total",
        /// Hits that the local cache answered.
        cache_hits => "mc_client_cache_hits_total",
        /// Hits that an embedded store's memory answered, without a leader.
        embedded_hits => "mc_client_embedded_hits_total",
        /// Puts that were acknowledged.
        puts_stored => "mc_client_puts_stored_total",
        /// Puts whose key existed already.
        puts_existing => "mc_client_puts_existing_total",
        /// Puts that stayed in the local cache.
        puts_local => "mc_client_puts_local_total",
        /// Local puts that were published once a leader was back, or whose key was found to exist. Each was counted as
        /// [`Self::puts_local`] before and counts in no other counter.
        puts_published => "mc_client_puts_published_total",
        /// Local puts queued for publishing that the pool refused for good.
        local_puts_refused => "mc_client_local_puts_refused_total",
        /// Local puts that the local cache evicted before they were published.
        local_puts_evicted => "mc_client_local_puts_evicted_total",
        /// Bytes read from stores.
        bytes_read => "mc_client_read_bytes_total",
        /// Bytes written to stores; each replica counts.
        bytes_written => "mc_client_written_bytes_total",
        /// Replicas whose bytes did not match their checksum; such bytes are never returned.
        checksum_mismatches => "mc_client_checksum_mismatches_total",
        /// Objects that the masters know but of which no replica could be read. Each was answered as a miss.
        unreachable_replicas => "mc_client_unreachable_replicas_total",
        /// Calls to masters that were issued again.
        retries => "mc_client_retries_total",
        /// Number of times that the client found a leader.
        leader_changes => "mc_client_leader_changes_total",
        /// Number of times that the client entered local-only mode.
        local_only_entries => "mc_client_local_only_entries_total",
    }
    timers {
        /// Nanoseconds that puts waited for the leader to start them, including repetitions. Puts in one request count
        /// the wait once, as in the two timers below.
        put_start_ns => "mc_client_put_start_seconds",
        /// Nanoseconds that puts waited for the stores to take their bytes.
        put_write_ns => "mc_client_put_write_seconds",
        /// Nanoseconds that puts waited for the leader to end them.
        put_end_ns => "mc_client_put_end_seconds",
    }
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
