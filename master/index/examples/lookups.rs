//! Speed of look-ups: 128 random keys of few objects and of many, one by one and together.
//!
//!     cargo run --release -p mc-index --example lookups [OBJECTS]...

mod common;

use mc_index::{Command, KeyHash, MountStore, Op, PutEndItem, PutStartItem, Settings, Stamp, State};
use mc_types::{ClusterTime, GrantKey, PutId, SegmentEpoch, StoreId};

use common::cpu;

/// As `mc-master` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZE: u64 = 4096;
/// Keys of a call.
const BATCH: usize = 128;
const CALLS: u64 = 20_000;

fn key(n: u64) -> Vec<u8> {
    format!("bench/0123456789abcdef/{n:08x}").into_bytes()
}

fn filled(objects: u64) -> State {
    let mut state = State::new(Settings::default());
    let mount = MountStore {
        store: StoreId(1),
        epoch: SegmentEpoch(1),
        name: String::new(),
        grant_key: GrantKey([0; 32]),
        endpoints: Vec::new(),
        segments: vec![(objects * 2 * SIZE).max(1 << 30)],
        http: String::new(),
    };
    let puts: Vec<u64> = (0..objects).collect();
    let mut ops = vec![Op::MountStore(mount)];
    for puts in puts.chunks(BATCH) {
        let start = |n: &u64| PutStartItem::new(PutId((*n).into()), &key(*n), SIZE, ClusterTime(1 << 40));
        let end = |n: &u64| PutEndItem::new(PutId((*n).into()), KeyHash::of("", &key(*n)), *n);
        ops.push(Op::PutStart { tenant: String::new(), items: puts.iter().map(start).collect() });
        ops.push(Op::PutEnd { items: puts.iter().map(end).collect() });
    }
    for (index, op) in (1..).zip(ops) {
        state.apply(index, 1, &Command { stamp: Stamp { term: 1, ..Stamp::default() }, op });
    }
    state
}

fn main() {
    let given: Vec<u64> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    let sizes = if given.is_empty() { vec![4_096, 1_000_000] } else { given };
    for objects in sizes {
        let state = filled(objects);
        let mut random = 7_u64;
        let mut below = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % objects
        };
        let calls: Vec<Vec<Vec<u8>>> =
            (0..CALLS).map(|_| (0..BATCH).map(|_| key(below())).collect()).collect();
        let keys = (CALLS * BATCH as u64) as f64;
        let print = |how: &str, took: std::time::Duration, found: u64| {
            assert_eq!(found, keys as u64 * SIZE);
            println!("{objects:>9} objects, {how}: {:>6.1} ns a key", took.as_nanos() as f64 / keys);
        };
        for _ in 0..3 {
            let (at, mut found) = (cpu(), 0);
            for call in &calls {
                for key in call {
                    found += state.get("", key).map_or(0, |object| object.size);
                }
            }
            print("one by one", cpu() - at, found);
            let (at, mut found) = (cpu(), 0);
            for call in &calls {
                state.get_each("", call.iter().map(Vec::as_slice), |_, object| {
                    found += object.map_or(0, |object| object.size);
                });
            }
            print("together", cpu() - at, found);
        }
    }
}
