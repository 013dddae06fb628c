//! A large index: many stores, tenants and open puts.

use mc_index::{
    CLUSTER_VERSION, Command, KeyHash, MountStore, Op, PutEndItem, PutStartItem, Quota, Response, Settings,
    Stamp, State, allocation_order, steps_of,
};
use mc_types::{ClusterTime, Code, MAX_ITEMS, PutId};

use crate::leader::tests;

pub(super) const STORES: u64 = 1_000;
pub(super) const SEGMENTS: u64 = 4;
pub(super) const TENANTS: u64 = 10_000;
/// Objects of each tenant, and its open puts.
pub(super) const EACH: u64 = 10;
pub(super) const OPEN_PUTS: u64 = TENANTS * EACH;
/// Bytes of each object and put.
pub(super) const SIZE: u64 = 4096;
/// Bytes of a segment: room for a few more objects than it has.
const SEGMENT: u64 = 64 * SIZE;
/// Deadline of the first open put; each tenant's puts have one a millisecond later.
pub(super) const FIRST_DEADLINE: u64 = 3_000_000;

/// An index, and the entry that was applied last.
#[derive(Clone)]
pub(super) struct Fleet {
    pub(super) state: State,
    entries: u64,
}

pub(super) fn tenant(n: u64) -> String {
    format!("tenant-{n:05}")
}

pub(super) fn key(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Put of a tenant's `n`th key: its objects come first, then its open puts.
pub(super) fn put(tenant: u64, n: u64) -> PutId {
    // Spread as random ids are.
    let number = tenant * 2 * EACH + n + 1;
    PutId(u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(number))
}

pub(super) fn mount(id: u64) -> MountStore {
    tests::mount(id, &[&format!("10.0.0.1:{id}")], &[SEGMENT; SEGMENTS as usize])
}

impl Fleet {
    /// An index with objects and open puts of each tenant, all of which have a quota.
    pub(super) fn new() -> Self {
        let mut fleet = Self { state: State::new(Settings::default()), entries: 0 };
        // No put ends, and no store is suspect or dropped, for as long as a test takes.
        let long = 3_600_000;
        let settings = Settings {
            put_deadline_max_ms: 2 * long,
            store_ttl_ms: long,
            store_suspect_ms: long,
            ..Settings::default()
        };
        fleet.apply(Op::SetSettings(settings));
        fleet.apply(Op::SetClusterVersion(CLUSTER_VERSION));
        (1..=STORES).for_each(|id| drop(fleet.apply(Op::MountStore(mount(id)))));
        for n in 0..TENANTS {
            let quota = Some(Quota { bytes: 1 << 30, objects: 1_000 });
            fleet.apply(Op::SetTenant { tenant: tenant(n), quota });
            let deadline = ClusterTime(FIRST_DEADLINE + n);
            let start = |at| PutStartItem::new(put(n, at), &key(at), SIZE, deadline);
            fleet.apply(Op::PutStart { tenant: tenant(n), items: (0..2 * EACH).map(start).collect() });
        }
        let ends: Vec<_> = (0..TENANTS).flat_map(|n| (0..EACH).map(move |at| end(n, at))).collect();
        ends.chunks(MAX_ITEMS).for_each(|ends| drop(fleet.apply(Op::PutEnd { items: ends.to_vec() })));
        assert_eq!((fleet.state.objects(), fleet.state.puts_in_flight()), (OPEN_PUTS, OPEN_PUTS));
        fleet
    }

    /// Puts objects of the default tenant until no segment has room.
    pub(super) fn fill(&mut self) {
        let mut next = 0..;
        loop {
            let put = |n: u64| (PutId(u128::from(n + 1) << 100 | 1), key(n));
            let puts: Vec<_> = next.by_ref().take(MAX_ITEMS).map(put).collect();
            let start = |(put, key): &(PutId, Vec<u8>)| {
                PutStartItem::new(*put, key, SIZE, ClusterTime(FIRST_DEADLINE))
            };
            let items = puts.iter().map(start).collect();
            let (answer, _) = self.apply(Op::PutStart { tenant: String::new(), items });
            let Response::PutStarted(started) = answer else { panic!("{answer:?}") };
            let end = |(put, key): &(PutId, Vec<u8>)| PutEndItem::new(*put, KeyHash::of("", key), 0);
            self.apply(Op::PutEnd { items: puts.iter().map(end).collect() });
            if started.iter().any(|started| started.code == Code::NoAvailableHandle) {
                return;
            }
        }
    }

    /// Applies an operation in the next entry. Returns the answer, and the number of steps that it took.
    pub(super) fn apply(&mut self, op: Op) -> (Response, u64) {
        self.apply_at(self.state.time(), op)
    }

    /// The same at a later time.
    pub(super) fn apply_at(&mut self, now: ClusterTime, op: Op) -> (Response, u64) {
        self.entries += 1;
        let stamp = Stamp { now, term: 1, seed: self.entries, suspects: Vec::new() };
        let command = Command { stamp, op };
        steps_of(|| self.state.apply(self.entries, 1, &command))
    }
}

/// The end of a tenant's `n`th put.
pub(super) fn end(of: u64, n: u64) -> PutEndItem {
    PutEndItem::new(put(of, n), KeyHash::of(&tenant(of), &key(n)), 0)
}

/// Log index of the allocations of a tenant's puts.
pub(super) fn allocated(of: u64) -> u64 {
    // The settings, the version and the stores come first, then two entries for each tenant.
    allocation_order(1, 2 + STORES + 2 * (of + 1))
}
