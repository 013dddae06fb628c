//! Observer of the log; metrics are made of its reports elsewhere.

use std::time::Duration;

/// One batch of the writer: what was drained from the queue at once and made durable by one sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchTimes {
    /// How long its oldest job had waited.
    pub queue_wait: Duration,
    /// Handing all writes to the disk, with the syncs that a large batch needs on the way.
    pub insert: Duration,
    /// The flush to the kernel; zero when nothing in the batch had to be durable.
    pub flush: Duration,
    /// The `fdatasync`; zero as above, and with [`LogSync::None`](super::LogSync::None) but for votes.
    pub sync: Duration,
    /// Jobs in it.
    pub jobs: usize,
    /// Entries in it.
    pub entries: usize,
    /// Bytes of packs written for them.
    pub bytes: u64,
}

/// Takes the log's timings. Called on the writer's thread, after the batch has been acknowledged: it must not block.
pub trait LogObserver: Send + Sync + 'static {
    /// A batch is done.
    fn batch(&self, times: &BatchTimes);
}

/// Nobody listens.
impl LogObserver for () {
    fn batch(&self, _: &BatchTimes) {}
}

/// The log's extent, as it is now.
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
