//! Gauges of Raft and of the pool, which show a sample of the present state.

use std::time::Duration;

use mc_process::metrics::Registry;
use metrics::Gauge;

use super::tenants::TenantSample;

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

/// Gauges of this master's part in Raft.
pub(super) struct RaftGauges {
    term: Gauge,
    is_leader: Gauge,
    has_leader: Gauge,
    can_write: Gauge,
    round_trip: Gauge,
    votes_late: Gauge,
    committed: Gauge,
    applied: Gauge,
    purged: Gauge,
}

impl RaftGauges {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
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
        }
    }

    pub(super) fn show(&self, sample: &Sample) {
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
    }
}

/// Gauges of the index and of the pool.
pub(super) struct PoolGauges {
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
}

impl PoolGauges {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            objects: r.gauge("mc_objects", "Objects in the index", &[]),
            puts_in_flight: r.gauge("mc_puts_in_flight", "Puts that have started and not ended", &[]),
            read_leases: r.gauge("mc_read_leases", "Read leases that this leader remembers", &[]),
            stores_alive: r.gauge("mc_stores", "Mounted stores, on the leader", &[("state", "alive")]),
            stores_suspect: r.gauge("mc_stores", "Mounted stores, on the leader", &[("state", "suspect")]),
            capacity_bytes: r.gauge("mc_pool_capacity_bytes", "Bytes that the mounted stores lend", &[]),
            used_bytes: r.gauge(
                "mc_pool_used_bytes",
                "Bytes allocated in the mounted stores, held bytes included",
                &[],
            ),
            held_bytes: r.gauge(
                "mc_pool_held_bytes",
                "Bytes of removed or replaced objects that readers may still read, in the mounted stores",
                &[],
            ),
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
            hard_pinned_bytes: r.gauge(
                "mc_pool_hard_pinned_bytes",
                "Bytes of hard-pinned objects in the mounted stores, puts in flight included",
                &[],
            ),
            index_bytes: r.gauge("mc_index_bytes", "Memory that the index takes, by its own estimate", &[]),
            groups: r.gauge("mc_groups", "Groups of objects in the index", &[]),
        }
    }

    pub(super) fn show(&self, sample: &Sample) {
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
    }
}
