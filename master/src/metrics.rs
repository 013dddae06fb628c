//! Every metric of a master: names, help, units, setters. Nothing else touches the registry.

mod tenants;

use std::time::{Duration, Instant};

use mc_process::metrics::Registry;
use mc_process::telemetry;
use mc_raft::{RpcTimer, RpcTimes};
use mc_types::{Code, Metric};
use metrics::{Counter, Gauge, Histogram};

use mc_index::Op;
use mc_log::{BatchTimes, LogObserver};

use tenants::TenantGauges;
pub(crate) use tenants::TenantSample;

/// Calls of the client API, as the label `rpc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rpc {
    Hello,
    Status,
    Watch,
    Exist,
    Get,
    Describe,
    ReportMismatch,
    ListKeys,
    PutStart,
    PutEnd,
    PutRevoke,
    Remove,
    RemoveAll,
    DropReplicas,
    ListTenants,
    SetTenant,
    Mount,
    Unmount,
    /// One message of a store's stream.
    Heartbeat,
    Members,
    TransferLeader,
    AddMember,
    RemoveMember,
    GetConfig,
    SetConfig,
    FinishUpgrade,
}

const RPCS: [(Rpc, &str); 26] = [
    (Rpc::Hello, "hello"),
    (Rpc::Status, "status"),
    (Rpc::Watch, "watch"),
    (Rpc::Exist, "batch_exist"),
    (Rpc::Get, "batch_get"),
    (Rpc::Describe, "batch_describe"),
    (Rpc::ReportMismatch, "report_mismatch"),
    (Rpc::ListKeys, "list_keys"),
    (Rpc::PutStart, "batch_put_start"),
    (Rpc::PutEnd, "batch_put_end"),
    (Rpc::PutRevoke, "batch_put_revoke"),
    (Rpc::Remove, "batch_remove"),
    (Rpc::RemoveAll, "remove_all"),
    (Rpc::DropReplicas, "batch_drop_replicas"),
    (Rpc::ListTenants, "list_tenants"),
    (Rpc::SetTenant, "set_tenant"),
    (Rpc::Mount, "mount_store"),
    (Rpc::Unmount, "unmount_store"),
    (Rpc::Heartbeat, "heartbeat"),
    (Rpc::Members, "list_members"),
    (Rpc::TransferLeader, "transfer_leader"),
    (Rpc::AddMember, "add_member"),
    (Rpc::RemoveMember, "remove_member"),
    (Rpc::GetConfig, "get_config"),
    (Rpc::SetConfig, "set_config"),
    (Rpc::FinishUpgrade, "finish_upgrade"),
];

/// How the members changed, as the label `change`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// Taken in, without a vote yet.
    Learner,
    /// Got a vote.
    Voter,
    /// Got a vote in the place of a dead member.
    Swap,
    /// No member any more.
    Removed,
    /// Gave up its vote before it stopped.
    Left,
}

const MEMBER_CHANGES: [(MemberChange, &str); 5] = [
    (MemberChange::Learner, "learner"),
    (MemberChange::Voter, "voter"),
    (MemberChange::Swap, "swap"),
    (MemberChange::Removed, "removed"),
    (MemberChange::Left, "left"),
];

/// Why a leader evicts, as the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictedFor {
    /// The pool was fuller than `eviction-high-watermark`.
    Watermark,
    /// Puts waited for more bytes than that.
    Put,
    /// A tenant was above the high watermark of its quota.
    Quota,
}

const EVICTED_FOR: [(EvictedFor, &str); 3] =
    [(EvictedFor::Watermark, "watermark"), (EvictedFor::Put, "put"), (EvictedFor::Quota, "quota")];

/// Results of the keys of lookups, as the label `result`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lookups {
    /// The object was found and can be read.
    pub(crate) hits: u64,
    /// There is no such object.
    pub(crate) misses: u64,
    /// There is one, and it can't be read now: its stores are suspect, or it is being evicted.
    pub(crate) unavailable: u64,
}

impl Lookups {
    /// Counts the results of one call by their codes.
    pub(crate) fn of(results: impl Iterator<Item = Code>) -> Self {
        let mut counted = Self::default();
        for result in results {
            match result {
                Code::Ok => counted.hits += 1,
                Code::ObjectNotFound => counted.misses += 1,
                Code::ReplicaIsNotReady => counted.unavailable += 1,
                // The key was never looked up.
                _ => {}
            }
        }
        counted
    }
}

/// Counters of the keys that one call looks up.
struct LookupCounters {
    hits: Counter,
    misses: Counter,
    unavailable: Counter,
}

impl LookupCounters {
    fn new(registry: &Registry, rpc: &str) -> Self {
        let by_result = |result| {
            let help = "Keys that gets and existence checks looked up, by result; unavailable: the object exists and \
                        can't be read now";
            registry.counter("mc_master_lookups_total", help, &[("rpc", rpc), ("result", result)])
        };
        Self { hits: by_result("hit"), misses: by_result("miss"), unavailable: by_result("unavailable") }
    }

    fn add(&self, lookups: Lookups) {
        self.hits.increment(lookups.hits);
        self.misses.increment(lookups.misses);
        self.unavailable.increment(lookups.unavailable);
    }
}

/// How a master made sure that it leads, as the label `by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedBy {
    Lease,
    Quorum,
}

/// Kind of a proposed entry, as the label `op`: one for each kind that clients wait for, one for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proposed {
    PutStart,
    PutEnd,
    PutRevoke,
    Remove,
    Evict,
    Other,
}

const PROPOSED: [(Proposed, &str); 6] = [
    (Proposed::PutStart, "put_start"),
    (Proposed::PutEnd, "put_end"),
    (Proposed::PutRevoke, "put_revoke"),
    (Proposed::Remove, "remove"),
    (Proposed::Evict, "evict"),
    (Proposed::Other, "other"),
];

impl From<&Op> for Proposed {
    fn from(op: &Op) -> Self {
        match op {
            Op::PutStart { .. } => Self::PutStart,
            Op::PutEnd { .. } => Self::PutEnd,
            Op::PutRevoke { .. } => Self::PutRevoke,
            Op::Remove { .. } | Op::RemoveAll { .. } | Op::DropReplicas { .. } => Self::Remove,
            Op::Evict { .. } => Self::Evict,
            Op::Tick
            | Op::NoteReuse { .. }
            | Op::MountStore(_)
            | Op::DropStore { .. }
            | Op::Sweep { .. }
            | Op::SetTenant { .. }
            | Op::SetKeyValue { .. }
            | Op::SetSettings(_)
            | Op::SetClusterVersion(_) => Self::Other,
        }
    }
}

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
    rpc_seconds: Vec<Histogram>,
    pub(crate) raft_rpc_times: RpcTimes,
    led_by_lease: Counter,
    led_by_quorum: Counter,
    commit_seconds: Vec<Histogram>,
    pub(crate) apply_seconds: Histogram,
    pub(crate) election_seconds: Histogram,
    pub(crate) proposals_refused: Counter,
    pub(crate) requests_refused: Counter,
    pub(crate) mismatches_reported: Counter,
    /// Shed calls of hello, watch and mount_store, in the order of `Sheds`.
    pub(crate) calls_shed: [Counter; 3],
    pub(crate) puts_refused_by_disk: Counter,
    pub(crate) puts_refused_by_space: Counter,
    puts_waited_for_space: Counter,
    puts_waiting: Gauge,
    put_wait_seconds: Histogram,
    gets: LookupCounters,
    exists: LookupCounters,
    evicted_objects: Vec<Counter>,
    evicted_bytes: Vec<Counter>,
    evicted_age: Vec<Histogram>,
    pub(crate) slow_disk_handovers: Counter,
    log_queue_seconds: Histogram,
    log_write_seconds: Histogram,
    log_flush_seconds: Histogram,
    log_fsync_seconds: Histogram,
    log_batch_entries: Histogram,
    log_batch_bytes: Histogram,
    log_bytes: Counter,
    pub(crate) log_truncations: Counter,
    leader_changes: Counter,
    member_changes: Vec<Counter>,
    term: Gauge,
    is_leader: Gauge,
    has_leader: Gauge,
    can_write: Gauge,
    round_trip: Gauge,
    votes_late: Gauge,
    committed: Gauge,
    applied: Gauge,
    purged: Gauge,
    objects: Gauge,
    puts_in_flight: Gauge,
    read_leases: Gauge,
    stores_alive: Gauge,
    stores_suspect: Gauge,
    capacity_bytes: Gauge,
    used_bytes: Gauge,
    held_bytes: Gauge,
    in_flight_bytes: Gauge,
    leased_bytes: Gauge,
    hard_pinned_bytes: Gauge,
    index_bytes: Gauge,
    groups: Gauge,
    tenants: TenantGauges,
    data_dir_free: Gauge,
    data_dir_needed: Gauge,
    log_lines_dropped: Counter,
}

/// Values of the gauges; read once a second and at every scrape.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) term: u64,
    pub(crate) leads: bool,
    pub(crate) has_leader: bool,
    /// Whether this master leads and a majority answers it in time.
    pub(crate) can_write: bool,
    pub(crate) round_trip: Option<Duration>,
    /// Whether the log's syncs take too long for this master's vote to count in an election.
    pub(crate) votes_late: bool,
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    pub(crate) purged: u64,
    pub(crate) objects: u64,
    pub(crate) puts_in_flight: u64,
    pub(crate) read_leases: usize,
    pub(crate) stores_alive: usize,
    pub(crate) stores_suspect: usize,
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) held_bytes: u64,
    pub(crate) in_flight_bytes: u64,
    pub(crate) leased_bytes: u64,
    pub(crate) hard_pinned_bytes: u64,
    pub(crate) index_bytes: u64,
    pub(crate) groups: u64,
    pub(crate) tenants: Vec<TenantSample>,
}

impl MasterMetrics {
    pub(crate) fn new(registry: Registry) -> Self {
        let r = &registry;
        let rpc_seconds = RPCS
            .iter()
            .map(|(_, name)| r.histogram("mc_master_rpc_seconds", "Time to answer a call", &[("rpc", name)]))
            .collect();
        let raft_rpc_times = RpcTimes::new(|name| {
            let help = "Time to answer another master's call, or one message of its stream of appends";
            r.histogram("mc_raft_rpc_seconds", help, &[("rpc", name)])
        });
        let led_by = |by| {
            let help = "Checks before an answer that this master still leads, by lease or by quorum";
            r.counter("mc_master_leader_checks_total", help, &[("by", by)])
        };
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
        let by_reason = |name, help| -> Vec<Counter> {
            EVICTED_FOR.iter().map(|(_, reason)| r.counter(name, help, &[("reason", reason)])).collect()
        };
        Self {
            rpc_seconds,
            raft_rpc_times,
            member_changes,
            commit_seconds,
            apply_seconds: r.histogram(
                "mc_raft_apply_seconds",
                "Time to apply a few committed entries, the wait for the readers of the index included",
                &[],
            ),
            led_by_lease: led_by("lease"),
            led_by_quorum: led_by("quorum"),
            election_seconds: r.histogram(
                "mc_raft_election_seconds",
                "Time of the elections that this master won, from its candidacy (after the pre-votes) until it \
                 led; where the candidacy was too short to be seen, from the last look before it",
                &[],
            ),
            proposals_refused: r.counter(
                "mc_master_proposals_refused_total",
                "Calls refused because too many proposals were in flight",
                &[],
            ),
            requests_refused: r.counter(
                "mc_master_requests_refused_total",
                "Calls refused because the requests and replies under way had too many bytes",
                &[],
            ),
            mismatches_reported: r.counter(
                "mc_master_mismatches_reported_total",
                "Reads whose bytes did not match their object's checksum, as clients told this leader",
                &[],
            ),
            calls_shed: ["hello", "watch", "mount_store"].map(|rpc| {
                let help = "Calls refused because this master was short of CPU time, to spare heartbeats and Raft";
                r.counter("mc_master_calls_shed_total", help, &[("rpc", rpc)])
            }),
            puts_refused_by_disk: r.counter(
                "mc_master_puts_refused_total",
                "Calls to start puts that were refused, by the resource that is short",
                &[("short_of", "disk")],
            ),
            puts_refused_by_space: r.counter(
                "mc_master_puts_refused_total",
                "Calls to start puts that were refused, by the resource that is short",
                &[("short_of", "space")],
            ),
            puts_waited_for_space: r.counter(
                "mc_master_puts_waited_total",
                "Calls to start puts that waited for space which an eviction frees",
                &[],
            ),
            puts_waiting: r.gauge(
                "mc_puts_waiting",
                "Calls to start puts that wait now for space which an eviction frees",
                &[],
            ),
            put_wait_seconds: r.histogram(
                "mc_master_put_wait_seconds",
                "Time of calls to start puts from finding no space until their puts were started or refused",
                &[],
            ),
            gets: LookupCounters::new(r, "batch_get"),
            exists: LookupCounters::new(r, "batch_exist"),
            evicted_objects: by_reason("mc_evicted_objects_total", "Objects evicted while this master led, by reason"),
            evicted_bytes: by_reason("mc_evicted_bytes_total", "Bytes of the replicas of evicted objects, by reason"),
            evicted_age: EVICTED_FOR
                .iter()
                .map(|(_, reason)| {
                    let help = "Age of evicted objects since they were put, by reason. An object from before this master led \
                                counts as if it was put then";
                    r.histogram("mc_evicted_age_seconds", help, &[("reason", reason)])
                })
                .collect(),
            slow_disk_handovers: r.counter(
                "mc_raft_slow_disk_handovers_total",
                "Times that this leader found its disk slow and asked a master with a faster disk to take over",
                &[],
            ),
            log_queue_seconds: r.histogram(
                "mc_raft_log_queue_seconds",
                "Time that the oldest write of a batch waited for the log writer",
                &[],
            ),
            log_write_seconds: r.histogram(
                "mc_raft_log_write_seconds",
                "Time to insert a batch into sled, without flush and sync",
                &[],
            ),
            log_flush_seconds: r.histogram(
                "mc_raft_log_flush_seconds",
                "Time for sled to flush a batch to the kernel, without the sync",
                &[],
            ),
            log_fsync_seconds: r.histogram(
                "mc_raft_log_fsync_seconds",
                "Time of one fdatasync of the log",
                &[],
            ),
            log_batch_entries: r.histogram(
                "mc_raft_log_batch_entries",
                "Entries made durable by one sync",
                &[],
            ),
            log_batch_bytes: r.histogram(
                "mc_raft_log_batch_bytes",
                "Bytes of entries made durable by one sync",
                &[],
            ),
            log_bytes: r.counter("mc_raft_log_bytes_total", "Bytes of entries appended to the log", &[]),
            log_truncations: r.counter(
                "mc_raft_log_torn_tails_total",
                "Starts at which a torn tail was cut off the log",
                &[],
            ),
            leader_changes: r.counter("mc_raft_leader_changes_total", "Changes of the leader seen here", &[]),
            term: r.gauge("mc_raft_term", "Raft term", &[]),
            is_leader: r.gauge("mc_raft_is_leader", "1 when this master leads and its lease holds", &[]),
            has_leader: r.gauge("mc_raft_has_leader", "1 when this master knows a leader", &[]),
            can_write: r.gauge(
                "mc_raft_leader_can_write",
                "1 when this master leads and a majority answers its heartbeats in time; on the leader 0 means that every write is \
                 refused",
                &[],
            ),
            round_trip: r.gauge(
                "mc_raft_round_trip_seconds",
                "Time that a majority took to answer the last heartbeats, on the leader; else 0",
                &[],
            ),
            votes_late: r.gauge(
                "mc_raft_votes_late",
                "1 while this master's syncs of the log take too long for its vote to count in an election: no election succeeds \
                 while that holds for a majority",
                &[],
            ),
            committed: r.gauge("mc_raft_committed_index", "Last log index known to be committed", &[]),
            applied: r.gauge("mc_raft_applied_index", "Last log index applied to the index of objects", &[]),
            purged: r.gauge("mc_raft_purged_index", "Last log index that a snapshot covers and the log no longer has", &[]),
            objects: r.gauge("mc_objects", "Objects in the index", &[]),
            puts_in_flight: r.gauge("mc_puts_in_flight", "Puts that have started and not ended", &[]),
            read_leases: r.gauge("mc_read_leases", "Read leases that this leader remembers", &[]),
            stores_alive: r.gauge("mc_stores", "Mounted stores, on the leader", &[("state", "alive")]),
            stores_suspect: r.gauge("mc_stores", "Mounted stores, on the leader", &[("state", "suspect")]),
            capacity_bytes: r.gauge("mc_pool_capacity_bytes", "Bytes that the mounted stores lend", &[]),
            used_bytes: r.gauge("mc_pool_used_bytes", "Bytes allocated in the mounted stores, held bytes included", &[]),
            in_flight_bytes: r.gauge(
                "mc_pool_in_flight_bytes",
                "Bytes of the replicas of puts that have started and not ended",
                &[],
            ),
            leased_bytes: r.gauge(
                "mc_pool_leased_bytes",
                "Bytes of the replicas of objects that readers may be reading, as this leader remembers",
                &[],
            ),
            held_bytes: r.gauge("mc_pool_held_bytes", "Bytes of removed or replaced objects that readers may still read, in the mounted stores", &[]),
            hard_pinned_bytes: r.gauge("mc_pool_hard_pinned_bytes", "Bytes of hard-pinned objects in the mounted stores, puts in flight included", &[]),
            data_dir_free: r.gauge(
                "mc_data_dir_free_bytes",
                "Bytes free on the disk of the data directory",
                &[],
            ),
            index_bytes: r.gauge("mc_index_bytes", "Memory that the index takes, by its own estimate", &[]),
            groups: r.gauge("mc_groups", "Groups of objects in the index", &[]),
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
            registry,
        }
    }

    /// Times a call until the result is dropped.
    pub(crate) fn rpc(&self, rpc: Rpc) -> RpcTimer<'_> {
        RpcTimer::start(&self.rpc_seconds[rpc as usize])
    }

    /// Counts a check that this master leads, made before an answer.
    pub(crate) fn led(&self, by: LedBy) {
        match by {
            LedBy::Lease => self.led_by_lease.increment(1),
            LedBy::Quorum => self.led_by_quorum.increment(1),
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

    /// Counts a call to start puts as one that waits for space, until the result is dropped.
    pub(crate) fn put_waits(&self) -> PutWait<'_> {
        self.puts_waited_for_space.increment(1);
        self.puts_waiting.increment(1.0);
        PutWait { metrics: self, since: Instant::now() }
    }

    /// Counts evicted objects.
    pub(crate) fn evicted_objects(&self, reason: EvictedFor, objects: u64) {
        self.evicted_objects[reason as usize].increment(objects);
    }

    /// Counts the bytes of evicted objects.
    pub(crate) fn evicted_bytes(&self, reason: EvictedFor, bytes: u64) {
        self.evicted_bytes[reason as usize].increment(bytes);
    }

    /// Counts the age of an evicted object.
    pub(crate) fn evicted_age(&self, reason: EvictedFor, age: Duration) {
        self.evicted_age[reason as usize].record(age.as_secs_f64());
    }

    pub(crate) fn leader_changed(&self) {
        self.leader_changes.increment(1);
    }

    pub(crate) fn member_changed(&self, change: MemberChange) {
        self.member_changes[change as usize].increment(1);
    }

    pub(crate) fn show(&self, sample: Sample) {
        let flag = |on: bool| f64::from(u8::from(on));
        self.term.set(sample.term as f64);
        self.is_leader.set(flag(sample.leads));
        self.has_leader.set(flag(sample.has_leader));
        self.can_write.set(flag(sample.can_write));
        self.round_trip.set(sample.round_trip.unwrap_or_default().as_secs_f64());
        self.votes_late.set(flag(sample.votes_late));
        self.committed.set(sample.committed as f64);
        self.applied.set(sample.applied as f64);
        self.purged.set(sample.purged as f64);
        self.objects.set(sample.objects as f64);
        self.puts_in_flight.set(sample.puts_in_flight as f64);
        self.read_leases.set(sample.read_leases as f64);
        self.stores_alive.set(sample.stores_alive as f64);
        self.stores_suspect.set(sample.stores_suspect as f64);
        self.capacity_bytes.set(sample.capacity_bytes as f64);
        self.used_bytes.set(sample.used_bytes as f64);
        self.held_bytes.set(sample.held_bytes as f64);
        self.in_flight_bytes.set(sample.in_flight_bytes as f64);
        self.leased_bytes.set(sample.leased_bytes as f64);
        self.hard_pinned_bytes.set(sample.hard_pinned_bytes as f64);
        self.index_bytes.set(sample.index_bytes as f64);
        self.groups.set(sample.groups as f64);
        self.tenants.show(sample.tenants);
        self.log_lines_dropped.absolute(telemetry::dropped_lines());
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

/// A call to start puts that waits for space.
pub(crate) struct PutWait<'a> {
    metrics: &'a MasterMetrics,
    since: Instant,
}

impl Drop for PutWait<'_> {
    fn drop(&mut self) {
        self.metrics.puts_waiting.decrement(1.0);
        self.metrics.put_wait_seconds.record(self.since.elapsed().as_secs_f64());
    }
}

impl LogObserver for MasterMetrics {
    fn batch(&self, times: &BatchTimes) {
        self.log_queue_seconds.record(times.queue_wait.as_secs_f64());
        self.log_write_seconds.record(times.insert.as_secs_f64());
        if !times.flush.is_zero() {
            self.log_flush_seconds.record(times.flush.as_secs_f64());
        }
        if !times.sync.is_zero() {
            self.log_fsync_seconds.record(times.sync.as_secs_f64());
        }
        self.log_batch_entries.record(times.entries as f64);
        self.log_batch_bytes.record(times.bytes as f64);
        self.log_bytes.increment(times.bytes);
    }
}

#[cfg(test)]
mod tests {
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
        drop(metrics.rpc(Rpc::TransferLeader));
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
        let waits = metrics.put_waits();
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
