use std::sync::Arc;

use mc_net::Tls;
use mc_process::TlsMetrics;
use mc_process::metrics::Registry;
use mc_process::telemetry;
use mc_transfer::RequestSeconds;
use mc_types::Metric;
use metrics::{Counter, Gauge};

use mc_store::{MemoryStart, NotKept, StoreReport};

/// Lists the metrics of a store, by name.
pub fn metrics_reference() -> Vec<Metric> {
    let registry = Registry::new();
    let _registered = StoreMetrics::new(registry.clone(), None);
    registry.metrics()
}

/// Every metric of a store, with its name, help and unit. All but the histograms are set at each scrape, from counts
/// that the parts of the store keep.
#[derive(Debug)]
pub(crate) struct StoreMetrics {
    registry: Registry,
    capacity: Gauge,
    allocated: Gauge,
    bytes_read: Counter,
    bytes_written: Counter,
    reads: Counter,
    writes: Counter,
    shm_bytes_read: Counter,
    shm_bytes_written: Counter,
    shm_reads: Counter,
    rdma_bytes_read: Counter,
    rdma_bytes_written: Counter,
    rdma_pairs: Counter,
    rdma_failures: Counter,
    pub(crate) transfer_seconds: RequestSeconds,
    fence: Gauge,
    fence_limit: Gauge,
    fence_waits: Counter,
    refusals: Counter,
    broken_connections: Counter,
    connections: Gauge,
    connections_limit: Gauge,
    connections_opened: Counter,
    connections_refused: Counter,
    ready: Gauge,
    heartbeat_age: Gauge,
    term: Gauge,
    mounts: Counter,
    key_changes: Counter,
    dead_epochs: Counter,
    /// By name of the way in which the memory came about.
    starts: Vec<(&'static str, Gauge)>,
    log_lines_dropped: Counter,
    tls_metrics: TlsMetrics,
    tls: Option<Arc<Tls>>,
}

/// Returns the name of the way in which a store came to its memory.
fn start_name(start: &MemoryStart) -> &'static str {
    match start {
        MemoryStart::Warm => "warm",
        MemoryStart::Cold(why) => why.name(),
        _ => "allocated",
    }
}

/// Lists the names that [`start_name`] returns.
fn start_names() -> impl Iterator<Item = &'static str> {
    ["allocated", "warm"].into_iter().chain(NotKept::NAMES)
}

impl StoreMetrics {
    pub(crate) fn new(registry: Registry, tls: Option<Arc<Tls>>) -> Self {
        let gauge = |name, help| registry.gauge(name, help, &[]);
        let counter = |name, help| registry.counter(name, help, &[]);
        let by_op = |name, help, op| registry.counter(name, help, &[("op", op)]);
        let seconds = |op| {
            let help =
                "Time from a request's header until the last byte of its answer was handed to the socket";
            registry.histogram("mc_store_transfer_seconds", help, &[("op", op)])
        };
        let bytes = ("mc_store_transferred_bytes_total", "Bytes moved between sockets and the lent memory");
        let by_rdma = ("mc_store_rdma_bytes_total", "Bytes that RDMA devices moved for clients");
        let transfers = ("mc_store_transfers_total", "Transfers that were finished");
        Self {
            capacity: gauge("mc_store_capacity_bytes", "Memory that this store lends"),
            allocated: gauge("mc_store_allocated_bytes", "Memory that is allocated and faulted in"),
            bytes_read: by_op(bytes.0, bytes.1, "read"),
            bytes_written: by_op(bytes.0, bytes.1, "write"),
            reads: by_op(transfers.0, transfers.1, "read"),
            writes: by_op(transfers.0, transfers.1, "write"),
            shm_bytes_read: counter(
                "mc_store_shm_read_bytes_total",
                "Bytes that clients of this host read through shared memory",
            ),
            shm_bytes_written: counter(
                "mc_store_shm_written_bytes_total",
                "Bytes that clients of this host wrote through shared memory",
            ),
            shm_reads: counter("mc_store_shm_reads_total", "Reads through shared memory that were finished"),
            rdma_bytes_read: by_op(by_rdma.0, by_rdma.1, "read"),
            rdma_bytes_written: by_op(by_rdma.0, by_rdma.1, "write"),
            rdma_pairs: counter("mc_store_rdma_pairs_total", "RDMA queue pairs that were made for clients"),
            rdma_failures: counter(
                "mc_store_rdma_failures_total",
                "Requests by RDMA that failed in a card or in the network; their clients go on over another route or TCP",
            ),
            transfer_seconds: RequestSeconds { read: seconds("read"), write: seconds("write") },
            fence: gauge(
                "mc_store_fence_bytes",
                "Memory of the fence, which remembers the writes of the last two minutes",
            ),
            fence_limit: gauge("mc_store_fence_limit_bytes", "Limit of the fence's memory; then writes wait"),
            fence_waits: counter(
                "mc_store_fence_waits_total",
                "Writes that waited until the fence had memory to remember them",
            ),
            refusals: counter(
                "mc_store_refusals_total",
                "Transfers refused: grant expired, superseded, or for other memory",
            ),
            broken_connections: counter(
                "mc_store_broken_connections_total",
                "Data connections closed because the peer broke the protocol or stalled",
            ),
            connections: gauge("mc_store_connections", "Open data connections"),
            connections_limit: gauge(
                "mc_store_connections_limit",
                "Most data connections, by the limit of open descriptors",
            ),
            connections_opened: counter("mc_store_connections_opened_total", "Data connections accepted"),
            connections_refused: counter(
                "mc_store_connections_refused_total",
                "Data connections refused because the limit was reached",
            ),
            ready: gauge("mc_store_ready", "1 when a leader had this store mounted within the last second"),
            heartbeat_age: gauge(
                "mc_store_heartbeat_age_seconds",
                "Time since a leader last said that this store is mounted; NaN before the first time",
            ),
            term: gauge("mc_store_leader_term", "Raft term of the leader that the heartbeats go to"),
            mounts: counter("mc_store_mounts_total", "Mounts that a leader accepted"),
            key_changes: counter(
                "mc_store_grant_key_changes_total",
                "Changes of the key that seals the grants on this memory: each day, and when TLS becomes required",
            ),
            dead_epochs: counter(
                "mc_store_dead_epochs_total",
                "Times that what this memory held was lost while the store ran, most often because the masters had dropped it",
            ),
            starts: start_names()
                .map(|how| {
                    let help = "1 for the way in which this process came to its memory: allocated, warm (as the last process has left \
                                it), or the reason why what was left is lost";
                    (how, registry.gauge("mc_store_start", help, &[("how", how)]))
                })
                .collect(),
            log_lines_dropped: counter(
                "mc_store_log_lines_dropped_total",
                "Log lines of this process that were dropped because nothing read its standard error",
            ),
            tls_metrics: TlsMetrics::new(&registry),
            tls,
            registry,
        }
    }

    /// Drains the samples of histograms. Called every second, so that a store that is never scraped stays small.
    pub(crate) fn upkeep(&self) {
        self.registry.upkeep();
    }

    /// Sets every metric from `report` and renders them in Prometheus's text format.
    pub(crate) fn render(&self, report: &StoreReport) -> String {
        let totals = &report.totals;
        self.capacity.set(report.capacity.0 as f64);
        self.allocated.set(report.allocated.0 as f64);
        self.bytes_read.absolute(totals.bytes_read);
        self.bytes_written.absolute(totals.bytes_written);
        self.reads.absolute(totals.reads);
        self.writes.absolute(totals.writes);
        self.shm_bytes_read.absolute(totals.shm_bytes_read);
        self.shm_bytes_written.absolute(totals.shm_bytes_written);
        self.shm_reads.absolute(totals.shm_reads);
        self.rdma_bytes_read.absolute(totals.rdma_bytes_read);
        self.rdma_bytes_written.absolute(totals.rdma_bytes_written);
        self.rdma_pairs.absolute(totals.rdma_pairs);
        self.rdma_failures.absolute(totals.rdma_failures);
        self.fence.set(report.fence_bytes as f64);
        self.fence_limit.set(report.fence_limit_bytes as f64);
        self.fence_waits.absolute(totals.waits);
        self.refusals.absolute(totals.refusals);
        self.broken_connections.absolute(totals.broken_connections);
        let open = totals.connections_opened.saturating_sub(totals.connections_closed);
        self.connections.set(open as f64);
        self.connections_limit.set(report.max_connections as f64);
        self.connections_opened.absolute(totals.connections_opened);
        self.connections_refused.absolute(totals.connections_refused);
        self.ready.set(if report.ready.is_ok() { 1.0 } else { 0.0 });
        self.heartbeat_age.set(report.heartbeat_age.map_or(f64::NAN, |age| age.as_secs_f64()));
        self.term.set(report.term.unwrap_or_default() as f64);
        self.mounts.absolute(report.mounts);
        self.key_changes.absolute(report.key_changes);
        self.dead_epochs.absolute(report.dead_epochs);
        let start = report.start.as_ref().map(start_name);
        self.starts.iter().for_each(|(how, gauge)| gauge.set(if Some(*how) == start { 1.0 } else { 0.0 }));
        self.log_lines_dropped.absolute(telemetry::dropped_lines());
        self.tls_metrics.show(self.tls.as_deref());
        self.registry.render()
    }
}
