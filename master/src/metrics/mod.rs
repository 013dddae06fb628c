//! Every metric of a master: names, help, units, setters. Nothing else touches the registry.
//!
//! `labels` and `tenants` are below the other parts, which do not use each other.

mod calls;
mod evictions;
mod gauges;
mod labels;
mod log;
mod lookups;
mod puts;
mod tenants;

use std::time::Duration;

use mc_log::{BatchTimes, LogObserver};
use mc_net::Tls;
use mc_process::TlsMetrics;
use mc_process::metrics::Registry;
use mc_process::telemetry;
use mc_raft::RpcTimes;
use mc_types::Metric;
use metrics::{Counter, Gauge, Histogram};

use calls::CallMetrics;
use evictions::EvictionMetrics;
pub(crate) use gauges::Sample;
use gauges::{PoolGauges, RaftGauges};
pub(crate) use labels::{EvictedFor, LedBy, MemberChange, Proposed, Rpc};
use labels::{MEMBER_CHANGES, PROPOSED};
use log::LogMetrics;
use lookups::LookupCounters;
pub(crate) use lookups::Lookups;
use puts::PutMetrics;
pub(crate) use puts::PutWait;
use tenants::TenantGauges;
pub(crate) use tenants::TenantSample;

/// Lists the metrics of a master, by name.
#[must_use]
pub fn metrics_reference() -> Vec<Metric> {
    let registry = Registry::new();
    let _registered = MasterMetrics::new(registry.clone());
    registry.metrics()
}

/// The metrics of one master.
pub(crate) struct MasterMetrics {
    registry: Registry,
    pub(crate) raft_rpc_times: RpcTimes,
    commit_seconds: Vec<Histogram>,
    pub(crate) apply_seconds: Histogram,
    pub(crate) election_seconds: Histogram,
    pub(crate) calls: CallMetrics,
    pub(crate) puts: PutMetrics,
    pub(crate) evictions: EvictionMetrics,
    log: LogMetrics,
    raft: RaftGauges,
    pool: PoolGauges,
    gets: LookupCounters,
    exists: LookupCounters,
    pub(crate) slow_disk_handovers: Counter,
    pub(crate) log_truncations: Counter,
    leader_changes: Counter,
    member_changes: Vec<Counter>,
    tenants: TenantGauges,
    data_dir_free: Gauge,
    data_dir_needed: Gauge,
    log_lines_dropped: Counter,
    tls: TlsMetrics,
}

impl MasterMetrics {
    pub(crate) fn new(registry: Registry) -> Self {
        let r = &registry;
        let raft_rpc_times = RpcTimes::new(|name| {
            let help = "Time to answer another master's call, or one message of its stream of appends";
            r.histogram("mc_raft_rpc_seconds", help, &[("rpc", name)])
        });
        let commit_seconds = PROPOSED
            .iter()
            .map(|(_, name)| {
                r.histogram(
                    "mc_raft_commit_seconds",
                    "Time from this leader's proposal of an entry until it was committed and applied here",
                    &[("op", name)],
                )
            })
            .collect();
        let member_changes = MEMBER_CHANGES
            .iter()
            .map(|(_, name)| {
                let help = "Changes of the membership that this leader made, by kind";
                r.counter("mc_raft_member_changes_total", help, &[("change", name)])
            })
            .collect();
        Self {
            raft_rpc_times,
            member_changes,
            commit_seconds,
            apply_seconds: r.histogram(
                "mc_raft_apply_seconds",
                "Time to apply a few committed entries, the wait for the readers of the index included",
                &[],
            ),
            election_seconds: r.histogram(
                "mc_raft_election_seconds",
                "Time of the elections that this master won, from its candidacy (after the pre-votes) until it \
                 led; where the candidacy was too short to be seen, from the last look before it",
                &[],
            ),
            calls: CallMetrics::new(r),
            puts: PutMetrics::new(r),
            evictions: EvictionMetrics::new(r),
            log: LogMetrics::new(r),
            raft: RaftGauges::new(r),
            pool: PoolGauges::new(r),
            gets: LookupCounters::new(r, "batch_get"),
            exists: LookupCounters::new(r, "batch_exist"),
            slow_disk_handovers: r.counter(
                "mc_raft_slow_disk_handovers_total",
                "Times that this leader found its disk slow and asked a master with a faster disk to take over",
                &[],
            ),
            log_truncations: r.counter(
                "mc_raft_log_torn_tails_total",
                "Starts at which a torn tail was cut off the log",
                &[],
            ),
            leader_changes: r.counter("mc_raft_leader_changes_total", "Changes of the leader seen here", &[]),
            data_dir_free: r.gauge(
                "mc_data_dir_free_bytes",
                "Bytes free on the disk of the data directory",
                &[],
            ),
            tenants: TenantGauges::new(registry.clone()),
            data_dir_needed: r.gauge(
                "mc_data_dir_needed_bytes",
                "Bytes that must be free on the disk of the data directory for a leader to start puts",
                &[],
            ),
            log_lines_dropped: r.counter(
                "mc_master_log_lines_dropped_total",
                "Log lines of this process that were dropped because nothing read its standard error",
                &[],
            ),
            tls: TlsMetrics::new(r),
            registry,
        }
    }

    /// Records that an entry was applied `took` after its proposal.
    pub(crate) fn committed(&self, proposed: Proposed, took: Duration) {
        self.commit_seconds[proposed as usize].record(took.as_secs_f64());
    }

    /// Counts the keys that a get looked up.
    pub(crate) fn got(&self, lookups: Lookups) {
        self.gets.add(lookups);
    }

    /// Counts the keys that an existence check looked up.
    pub(crate) fn checked(&self, lookups: Lookups) {
        self.exists.add(lookups);
    }

    pub(crate) fn leader_changed(&self) {
        self.leader_changes.increment(1);
    }

    pub(crate) fn member_changed(&self, change: MemberChange) {
        self.member_changes[change as usize].increment(1);
    }

    /// Shows the present values of the gauges.
    pub(crate) fn show(&self, sample: Sample) {
        self.raft.show(&sample);
        self.pool.show(&sample);
        self.tenants.show(sample.tenants);
        self.log_lines_dropped.absolute(telemetry::dropped_lines());
    }

    /// Shows the state of this process' certificates.
    pub(crate) fn show_tls(&self, tls: Option<&Tls>) {
        self.tls.show(tls);
    }

    /// Shows how many bytes are free on the disk of the data directory, and how many are needed.
    pub(crate) fn data_dir(&self, free: u64, needed: u64) {
        self.data_dir_free.set(free as f64);
        self.data_dir_needed.set(needed as f64);
    }

    pub(crate) fn render(&self) -> String {
        self.registry.render()
    }

    /// Drains the samples that histograms have gathered. Runs every second, so that a master that nobody scrapes stays
    /// small.
    pub(crate) fn upkeep(&self) {
        self.registry.upkeep();
    }
}

impl LogObserver for MasterMetrics {
    fn batch(&self, times: &BatchTimes) {
        self.log.batch(times);
    }
}

#[cfg(test)]
mod tests {
    use mc_index::Op;
    use mc_types::Code;

    use super::labels::{EVICTED_FOR, RPCS};
    use super::*;

    #[test]
    fn every_rpc_and_every_kind_of_entry_has_its_own_histogram() {
        for (at, (rpc, _)) in RPCS.iter().enumerate() {
            assert_eq!(*rpc as usize, at);
        }
        for (at, (change, _)) in MEMBER_CHANGES.iter().enumerate() {
            assert_eq!(*change as usize, at);
        }
        for (at, (proposed, _)) in PROPOSED.iter().enumerate() {
            assert_eq!(*proposed as usize, at);
        }
        for (at, (reason, _)) in EVICTED_FOR.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
        let metrics = MasterMetrics::new(Registry::new());
        drop(metrics.calls.rpc(Rpc::TransferLeader));
        metrics.committed(Proposed::from(&Op::Tick), Duration::from_millis(2));
        let text = metrics.render();
        assert!(text.contains("mc_master_rpc_seconds_count{rpc=\"transfer_leader\"} 1"), "{text}");
        assert!(text.contains("mc_raft_commit_seconds_sum{op=\"other\"} 0.002"), "{text}");
        assert!(
            text.contains("mc_raft_commit_seconds_count{op=\"put_end\"} 0"),
            "scrapers see it from the start: {text}"
        );
    }

    #[test]
    fn a_put_waits_until_its_call_ends() {
        let metrics = MasterMetrics::new(Registry::new());
        let waits = metrics.puts.wait();
        let text = metrics.render();
        assert!(
            text.contains("mc_puts_waiting 1") && text.contains("mc_master_put_wait_seconds_count 0"),
            "{text}"
        );
        drop(waits);
        let text = metrics.render();
        assert!(
            text.contains("mc_puts_waiting 0") && text.contains("mc_master_put_wait_seconds_count 1"),
            "{text}"
        );
        assert!(text.contains("mc_master_puts_waited_total 1"), "{text}");
    }

    #[test]
    fn keys_are_counted_by_the_result_of_their_lookup() {
        let metrics = MasterMetrics::new(Registry::new());
        let results = [Code::Ok, Code::ObjectNotFound, Code::Ok, Code::ReplicaIsNotReady, Code::InvalidKey];
        metrics.got(Lookups::of(results.into_iter()));
        let text = metrics.render();
        for line in [
            "mc_master_lookups_total{rpc=\"batch_get\",result=\"hit\"} 2",
            "mc_master_lookups_total{rpc=\"batch_get\",result=\"miss\"} 1",
            "mc_master_lookups_total{rpc=\"batch_get\",result=\"unavailable\"} 1",
            "mc_master_lookups_total{rpc=\"batch_exist\",result=\"hit\"} 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn the_parts_of_a_batch_are_told_apart() {
        let metrics = MasterMetrics::new(Registry::new());
        let (insert, flush) = (Duration::from_millis(1), Duration::from_millis(4));
        metrics.batch(&BatchTimes { insert, flush, bytes: 3000, ..BatchTimes::default() });
        let text = metrics.render();
        for line in [
            "mc_raft_log_write_seconds_sum 0.001",
            "mc_raft_log_flush_seconds_sum 0.004",
            "mc_raft_log_fsync_seconds_count 0",
            "mc_raft_log_batch_bytes_bucket{le=\"1024\"} 0",
            "mc_raft_log_batch_bytes_bucket{le=\"4096\"} 1",
            "mc_raft_log_bytes_total 3000",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
