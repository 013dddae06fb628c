//! Observer of the log, for metrics.

use std::time::Duration;

/// Timings of one batch of the writer: the jobs that were taken from the queue at once and made durable by one sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchTimes {
    /// Time for which its oldest job had waited.
    pub queue_wait: Duration,
    /// Time to hand all writes to the disk, including the syncs within a large batch.
    pub insert: Duration,
    /// Time of the flush to the kernel; zero when nothing in the batch had to be durable.
    pub flush: Duration,
    /// Time of the `fdatasync`; zero as above, and with [`LogSync::None`](super::options::LogSync::None) except for
    /// votes.
    pub sync: Duration,
    /// Number of queued jobs that were done together.
    pub jobs: usize,
    /// Number of entries.
    pub entries: usize,
    /// Bytes of packs that were written for them.
    pub bytes: u64,
}

/// Takes the log's timings. Called on the writer's thread, after the batch has been acknowledged: it must not block.
pub trait LogObserver: Send + Sync + 'static {
    /// Takes the timings of a batch that is done.
    fn batch(&self, times: &BatchTimes);
}

/// An observer that ignores all reports.
impl LogObserver for () {
    fn batch(&self, _: &BatchTimes) {}
}

/// Extent of the log at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// The first index that has not been purged.
    pub first: u64,
    /// The index after the last entry.
    pub next: u64,
    /// The index after the last durable entry.
    pub durable: u64,
    /// Bytes of records appended since the log was opened.
    pub appended_bytes: u64,
    /// Bytes of records that have not been purged, to within 64 KiB.
    pub unpurged_bytes: u64,
}
