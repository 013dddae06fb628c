//! Work of applying one entry, for each operation and for the worst case of each that is known.

use mc_index::{
    EvictItem, KeyHash, Op, ProvenEnd, PutStartItem, Quota, RemoveItem, SecurityChange, Settings,
};
use mc_types::{ClusterTime, MAX_ITEMS, PutId, SegmentEpoch, StoreId, TlsLevel};

use super::fleet::{
    EACH, FIRST_DEADLINE, Fleet, SEGMENTS, SIZE, STORES, TENANTS, allocated, end, key, mount, put, tenant,
};

/// Steps of an entry without items: a look at the next deadlines, and at the ended puts of 16 shards.
const ENTRY: u64 = 64;
/// Steps of one item, whatever the size of the index.
const ITEM: u64 = 48;
/// Steps of the end of an overdue put, and of the release of a held range.
const EXPIRY: u64 = 32;
/// Overdue puts that an entry ends, besides twice its own items.
const EXPIRIES: u64 = 1_024;
const ALL_SEGMENTS: u64 = STORES * SEGMENTS;

/// Returns the most steps that an operation may take.
fn most(op: &Op) -> u64 {
    ENTRY
        + match op {
            // One entry of the table each, or one number.
            Op::Tick | Op::SetTenant { .. } | Op::SetKeyValue { .. } | Op::RemoveAll { .. } => ITEM,
            Op::SetSecurity(_) => ITEM,
            Op::SetSettings(_) | Op::SetClusterVersion(_) => ITEM,
            Op::PutStart { items, .. } => items.len() as u64 * ITEM,
            Op::PutEnd { items } => items.len() as u64 * ITEM,
            Op::PutEndProven { items } => items.len() as u64 * ITEM,
            Op::PutRevoke { puts } => puts.len() as u64 * ITEM,
            Op::Remove { items, .. } | Op::DropReplicas { items, .. } => items.len() as u64 * ITEM,
            Op::Evict { items, .. } => items.len() as u64 * ITEM,
            Op::NoteReuse { keys, .. } => keys.len() as u64 * ITEM,
            // By the segments of the one store, not by its objects.
            Op::MountStore(_) | Op::DropStore { .. } => 2 * SEGMENTS * ITEM,
            // Objects of dropped stores, then those that a `remove_all` has removed: it visits at most 64 Ki objects and parts of
            // the index for these.
            Op::Sweep { limit } => u64::from(*limit) * 2 * ITEM + 2 * (64 << 10),
        }
}

/// Returns an operation after another one, so that a new one does not compile before it has a place here. Each does
/// something in the fleet.
fn next(op: Option<&Op>) -> Option<Op> {
    let tenant = || tenant(1);
    let first = |count| 0..count;
    let reuse_at = ClusterTime(FIRST_DEADLINE);
    let removed = |n| RemoveItem { key: key(n), version: put(1, n), reuse_at };
    Some(match op {
        None => Op::Tick,
        Some(Op::Tick) => {
            let start = |n: u64| {
                PutStartItem::new(PutId(n.into()), &key(EACH * 2 + n), SIZE, ClusterTime(FIRST_DEADLINE))
            };
            Op::PutStart { tenant: tenant(), items: (1..=20).map(start).collect() }
        }
        Some(Op::PutStart { .. }) => Op::PutEnd { items: (EACH..2 * EACH).map(|n| end(1, n)).collect() },
        Some(Op::PutEnd { .. }) => {
            let proven = |n| ProvenEnd { end: end(2, n), index: allocated(2) };
            Op::PutEndProven { items: (EACH..2 * EACH).map(proven).collect() }
        }
        Some(Op::PutEndProven { .. }) => {
            Op::PutRevoke { puts: (0..TENANTS / 10).map(|n| put(n, EACH)).collect() }
        }
        Some(Op::PutRevoke { .. }) => {
            Op::Remove { tenant: tenant(), items: first(EACH / 2).map(removed).collect() }
        }
        Some(Op::Remove { .. }) => {
            let store = StoreId(STORES / 2);
            Op::DropReplicas { tenant: tenant(), store, items: first(EACH).map(removed).collect() }
        }
        Some(Op::DropReplicas { .. }) => {
            let victim =
                |n| EvictItem { key: KeyHash::of(&super::fleet::tenant(n), &key(0)), version: put(n, 0) };
            Op::Evict { items: (2..514).map(victim).collect(), reuse_at: ClusterTime(0) }
        }
        Some(Op::Evict { .. }) => {
            let used = |n| KeyHash::of(&super::fleet::tenant(n), &key(1));
            Op::NoteReuse { keys: (0..MAX_ITEMS as u64).map(used).collect(), epoch: 1, once_share: 1 }
        }
        Some(Op::NoteReuse { .. }) => Op::RemoveAll { tenant: super::fleet::tenant(2), reuse_at },
        Some(Op::RemoveAll { .. }) => Op::MountStore(mount(STORES + 1)),
        Some(Op::MountStore(_)) => Op::DropStore { store: StoreId(1), epoch: SegmentEpoch(1) },
        Some(Op::DropStore { .. }) => Op::Sweep { limit: 256 },
        Some(Op::Sweep { .. }) => Op::SetTenant { tenant: "new".into(), quota: Some(Quota::NONE) },
        Some(Op::SetTenant { .. }) => {
            Op::SetKeyValue { key: b"key".to_vec(), value: Some(b"value".to_vec().into()) }
        }
        Some(Op::SetKeyValue { .. }) => Op::SetSettings(Settings::default()),
        Some(Op::SetSettings(_)) => Op::SetClusterVersion(9),
        Some(Op::SetClusterVersion(_)) => Op::SetSecurity(SecurityChange::Level(TlsLevel::Require)),
        Some(Op::SetSecurity(_)) => return None,
    })
}

/// Applies an operation, and adds a line to `wrong` if it takes too many steps.
fn judge(what: &str, fleet: &mut Fleet, now: ClusterTime, op: Op, most: u64, wrong: &mut Vec<String>) {
    let (_, steps) = fleet.apply_at(now, op);
    println!("{steps:>9} of {most:>9} steps: {what}");
    if steps > most {
        wrong.push(format!("{what}: {steps} steps, at most {most} are allowed"));
    }
}

#[test]
fn the_work_of_an_entry_depends_on_its_items_alone() {
    let mut fleet = Fleet::new();
    let mut wrong = Vec::new();
    let mut op = next(None);
    while let Some(now) = op {
        let text = format!("{now:?}");
        let what = text.split([' ', '(']).next().unwrap_or_default();
        op = next(Some(&now));
        let (time, most) = (fleet.state.time(), most(&now));
        judge(what, &mut fleet, time, now, most, &mut wrong);
    }

    // Deadlines that pass all at once, as after the masters stood still.
    let mut late = fleet.clone();
    let now = ClusterTime(FIRST_DEADLINE + TENANTS);
    let before = late.state.puts_in_flight();
    judge("tick, all puts due", &mut late, now, Op::Tick, ENTRY + EXPIRIES * EXPIRY, &mut wrong);
    assert_eq!(before - late.state.puts_in_flight(), EXPIRIES);

    // A full pool: each segment is searched for the first item, and none for those of its size that follow. Linear in the
    // stores for each size: an entry of 4,096 sizes would take 33 million steps.
    let mut full = fleet.clone();
    full.fill();
    let starts = |sizes: u64| -> Vec<_> {
        let start = |n: u64| {
            let size = SIZE + n % sizes * 64;
            PutStartItem::new(PutId(u128::from(n + 1) << 80), &key(9_000_000 + n), size, now)
        };
        (0..MAX_ITEMS as u64).map(start).collect()
    };
    let searched = |sizes: u64| sizes * ALL_SEGMENTS * 4;
    for (what, sizes) in [("put start, full pool", 1), ("put start, full pool, 64 sizes", 64)] {
        let most = ENTRY + searched(sizes) + MAX_ITEMS as u64 * ITEM;
        let op = Op::PutStart { tenant: String::new(), items: starts(sizes) };
        let time = full.state.time();
        judge(what, &mut full, time, op, most, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
