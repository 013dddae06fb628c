use std::sync::atomic::{AtomicU64, Ordering};

/// What a data server has done since it started, for the store's metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes sent out of the segments.
    pub bytes_read: AtomicU64,
    /// Bytes received into the segments.
    pub bytes_written: AtomicU64,
    /// Read operations answered with good bytes.
    pub reads: AtomicU64,
    /// Write operations acknowledged.
    pub writes: AtomicU64,
    /// Hellos, requests and operations refused.
    pub refusals: AtomicU64,
    /// Connections closed because the peer broke the protocol or stalled in the middle of a message.
    pub broken_connections: AtomicU64,
    /// Connections accepted.
    pub connections_opened: AtomicU64,
    /// Connections closed, for whatever reason.
    pub connections_closed: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
