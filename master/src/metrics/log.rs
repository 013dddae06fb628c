use mc_log::BatchTimes;
use mc_process::metrics::Registry;
use metrics::{Counter, Histogram};

/// Metrics of the writes of the Raft log.
pub(super) struct LogMetrics {
    queue_seconds: Histogram,
    write_seconds: Histogram,
    flush_seconds: Histogram,
    fsync_seconds: Histogram,
    batch_entries: Histogram,
    batch_bytes: Histogram,
    bytes: Counter,
}

impl LogMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            queue_seconds: r.histogram(
                "mc_raft_log_queue_seconds",
                "Time that the oldest write of a batch waited for the log writer",
                &[],
            ),
            write_seconds: r.histogram(
                "mc_raft_log_write_seconds",
                "Time to insert a batch into sled, without flush and sync",
                &[],
            ),
            flush_seconds: r.histogram(
                "mc_raft_log_flush_seconds",
                "Time for sled to flush a batch to the kernel, without the sync",
                &[],
            ),
            fsync_seconds: r.histogram("mc_raft_log_fsync_seconds", "Time of one fdatasync of the log", &[]),
            batch_entries: r.histogram("mc_raft_log_batch_entries", "Entries made durable by one sync", &[]),
            batch_bytes: r.histogram(
                "mc_raft_log_batch_bytes",
                "Bytes of entries made durable by one sync",
                &[],
            ),
            bytes: r.counter("mc_raft_log_bytes_total", "Bytes of entries appended to the log", &[]),
        }
    }

    pub(super) fn batch(&self, times: &BatchTimes) {
        self.queue_seconds.record(times.queue_wait.as_secs_f64());
        self.write_seconds.record(times.insert.as_secs_f64());
        if !times.flush.is_zero() {
            self.flush_seconds.record(times.flush.as_secs_f64());
        }
        if !times.sync.is_zero() {
            self.fsync_seconds.record(times.sync.as_secs_f64());
        }
        self.batch_entries.record(times.entries as f64);
        self.batch_bytes.record(times.bytes as f64);
        self.bytes.increment(times.bytes);
    }
}
