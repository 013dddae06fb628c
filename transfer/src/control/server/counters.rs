use std::sync::atomic::{AtomicU64, Ordering};

use mc_types::Access;
use metrics::Histogram;

/// Counts of a data server since its start, for the store's metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes sent out of the segments.
    pub bytes_read: AtomicU64,
    /// Bytes received into the segments.
    pub bytes_written: AtomicU64,
    /// Read operations answered with good bytes.
    pub reads: AtomicU64,
    /// Bytes that clients of this host, or of this process, read from the segments themselves and found good, or had checked.
    pub shm_bytes_read: AtomicU64,
    /// Read operations counted in `shm_bytes_read`.
    pub shm_reads: AtomicU64,
    /// Bytes of acknowledged writes that were copied out of memory that clients of this host share, or that clients of this process
    /// copied.
    pub shm_bytes_written: AtomicU64,
    /// Read operations through shared memory whose bytes clients asked this store to check.
    pub checks: AtomicU64,
    /// Bytes of good reads that went by RDMA.
    pub rdma_bytes_read: AtomicU64,
    /// Bytes of acknowledged writes that came by RDMA.
    pub rdma_bytes_written: AtomicU64,
    /// Queue pairs made beside connections.
    pub rdma_pairs: AtomicU64,
    /// Requests by RDMA that failed in a card or in the network.
    pub rdma_failures: AtomicU64,
    /// Write operations acknowledged.
    pub writes: AtomicU64,
    /// Write operations that waited because the memory for records of writes was full.
    pub waits: AtomicU64,
    /// Hellos, requests and operations refused.
    pub refusals: AtomicU64,
    /// Connections closed because the peer broke the protocol or stalled in the middle of a message.
    pub broken_connections: AtomicU64,
    /// Connections accepted.
    pub connections_opened: AtomicU64,
    /// Connections refused because there were too many; they are not counted as opened.
    pub connections_refused: AtomicU64,
    /// Opened connections that were closed, for whatever reason.
    pub connections_closed: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Histograms of the time that a data server takes for a request, in seconds: from its header until the last byte of
/// its answer is handed to the socket. Requests whose connection ends before that do not count. Those of clients of this process count as
/// long as their calls take.
#[derive(Clone, Debug)]
pub struct RequestSeconds {
    /// Time of read requests.
    pub read: Histogram,
    /// Time of write requests.
    pub write: Histogram,
}

impl RequestSeconds {
    /// Histograms that record nothing.
    #[must_use]
    pub const fn noop() -> Self {
        Self { read: Histogram::noop(), write: Histogram::noop() }
    }

    pub(crate) fn of(&self, access: Access) -> &Histogram {
        match access {
            Access::Read => &self.read,
            Access::Write => &self.write,
        }
    }
}
