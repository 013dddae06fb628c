//! Speed of the state machine: batches of put starts and ends, evictions of as many objects, and the slowest batch after a
//! clone.
//!
//!     cargo run --release -p mc-index --example apply [OBJECTS [PUTS_BETWEEN_CLONES]]
//!
//! With a second number clones are taken while it fills, as for snapshots, and each is held for half as many puts: what
//! they copy shows in the memory.

mod common;

use std::time::Duration;

use mc_index::{
    Command, Endpoint, EvictItem, KeyHash, MountStore, Op, PutEndItem, PutStartItem, Response, Settings,
    Stamp, State,
};
use mc_types::{ClusterTime, Code, GrantKey, PutId, SegmentEpoch, StoreId};

use common::cpu;

/// As `mc-master` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const STORES: u64 = 8;
const SIZE: u64 = 4096;

struct Load {
    state: State,
    index: u64,
    put: u64,
}

/// Keys of 100 bytes that share a prefix, as inference engines make them.
fn key(n: u64) -> Vec<u8> {
    let mut key = format!("model-8b/tp0/layer-group-0/{n:016x}").into_bytes();
    key.resize(100, b'-');
    key
}

/// A put id. Real ones are random; a bijection of a counter will do here.
fn put_id(n: u64) -> PutId {
    let mixed = u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(n);
    PutId(mixed)
}

impl Load {
    fn new(objects: u64) -> Self {
        let mut load = Self { state: State::new(Settings::default()), index: 0, put: 0 };
        let bytes = (objects * 2 * SIZE / STORES).max(1 << 30);
        for store in 1..=STORES {
            load.apply(Op::MountStore(MountStore {
                store: StoreId(store),
                epoch: SegmentEpoch(store),
                name: String::new(),
                grant_key: GrantKey([0; 32]),
                endpoints: vec![Endpoint {
                    transport: "tcp".into(),
                    address: String::new(),
                    attributes: Vec::new(),
                }],
                segments: vec![bytes],
                http: String::new(),
            }));
        }
        load
    }

    fn apply(&mut self, op: Op) -> Response {
        self.index += 1;
        // 200,000 puts a second on the cluster's clock, so that records of ended puts come and go.
        let now = ClusterTime(self.put / 200);
        let stamp = Stamp { now, term: 1, seed: self.index, suspects: Vec::new() };
        self.state.apply(self.index, 1, &Command { stamp, op })
    }

    /// The entries that start and end the next `n` puts.
    fn ops(&mut self, n: u64) -> (Op, Op) {
        let puts = self.put..self.put + n;
        let deadline = ClusterTime(self.put / 200 + 30_000);
        self.put += n;
        let starts = puts.clone().map(|n| PutStartItem::new(put_id(n), &key(n), SIZE, deadline));
        let ends = puts.map(|n| PutEndItem::new(put_id(n), KeyHash::of("", &key(n)), n));
        let start = Op::PutStart { tenant: String::new(), items: starts.collect() };
        let end = Op::PutEnd { items: ends.collect() };
        (start, end)
    }

    /// Starts and ends `n` puts and returns the time that each of the two entries took.
    fn batch(&mut self, n: u64) -> (Duration, Duration) {
        let (start, end) = self.ops(n);
        let at = cpu();
        let started = self.apply(start);
        let start_took = cpu() - at;
        let at = cpu();
        let ended = self.apply(end);
        let end_took = cpu() - at;
        let Response::PutStarted(started) = started else { panic!("{started:?}") };
        let Response::PutEnded(ended) = ended else { panic!("{ended:?}") };
        assert!(started.iter().all(|answer| answer.code == Code::Ok));
        assert!(ended.iter().all(|answer| answer.code == Code::Ok));
        (start_took, end_took)
    }
}

/// Puts `n` objects beside the evictions of those that were put first, 512 an entry, as in a full pool. Prints the speed
/// of each.
fn churn(load: &mut Load, n: u64) {
    let (mut starts, mut ends, mut evictions) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for first in (0..n / 512).map(|round| round * 512) {
        for _ in 0..4 {
            let (start, end) = load.batch(128);
            starts += start;
            ends += end;
        }
        let item = |n| EvictItem { key: KeyHash::of("", &key(n)), version: put_id(n) };
        let evict = Op::Evict { items: (first..first + 512).map(item).collect(), reuse_at: ClusterTime(0) };
        let at = cpu();
        let evicted = load.apply(evict);
        evictions += cpu() - at;
        let Response::Codes(codes) = evicted else { panic!("{evicted:?}") };
        assert!(codes.iter().all(|code| *code == Code::Ok));
    }
    let speed = |took: Duration| (n / 512 * 512) as f64 / took.as_secs_f64();
    println!("while as many are evicted:");
    println!("start {:>12.0} keys/s", speed(starts));
    println!("end   {:>12.0} keys/s", speed(ends));
    println!("evict {:>12.0} keys/s", speed(evictions));
}

/// Writes and reads the log entries of puts, which every master does besides applying them.
fn code(load: &mut Load, puts: u64) {
    let (mut encoding, mut decoding) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..puts / 128 {
        let (start, end) = load.ops(128);
        for op in [start, end] {
            let command = Command { stamp: Stamp::default(), op };
            let at = cpu();
            let bytes = command.encode();
            encoding += cpu() - at;
            let at = cpu();
            let decoded = Command::decode(&bytes).expect("what was encoded decodes");
            decoding += cpu() - at;
            assert_eq!(decoded, command);
        }
    }
    println!("encode {:>11.0} puts/s, start and end", puts as f64 / encoding.as_secs_f64());
    println!("decode {:>11.0} puts/s", puts as f64 / decoding.as_secs_f64());
}

/// Resident memory of this process, where the system tells.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
}

fn main() {
    let argument = |at| std::env::args().nth(at).and_then(|n| n.parse().ok());
    let objects: u64 = argument(1).unwrap_or(1_000_000);
    let between_clones: Option<u64> = argument(2);
    let before = resident();
    let mut load = Load::new(objects);
    let (mut starts, mut ends) = (Duration::ZERO, Duration::ZERO);
    let mut held = None;
    for _ in 0..objects / 128 {
        if let Some(between) = between_clones {
            let since = load.put % between;
            if since < 128 {
                held = Some(load.state.clone());
            } else if since >= between / 2 {
                held = None;
            }
        }
        let (start, end) = load.batch(128);
        starts += start;
        ends += end;
    }
    drop(held);
    let keys = load.state.objects() as f64;
    println!("{keys} objects, keys of 100 B, batches of 128, one core; CPU time");
    println!("start {:>12.0} keys/s", keys / starts.as_secs_f64());
    println!("end   {:>12.0} keys/s", keys / ends.as_secs_f64());
    println!("both  {:>12.0} keys/s", keys / (starts + ends).as_secs_f64());

    // Past every deadline, so that no record of an ended put is left to count.
    load.put += 200 * 40_000;
    for _ in 0..keys as u64 / 1024 + 2 {
        load.apply(Op::Tick);
    }
    if let (Some(before), Some(after)) = (before, resident()) {
        println!("resident memory {:.0} B an object", (after - before) as f64 / keys);
        println!("its own estimate {:.0} B an object", load.state.index_bytes() as f64 / keys);
    }

    code(&mut load, 1_000_000);
    churn(&mut load, objects / 2);

    let at = cpu();
    let mut written = std::io::sink();
    let clone = load.state.clone();
    println!("clone {:?}", cpu() - at);
    for n in [128, 1024, 4096] {
        let clone = load.state.clone();
        let (start, end) = load.batch(n);
        let (start_after, end_after) = load.batch(n);
        println!(
            "batch of {n:>4}: first after a clone {start:>9.1?} + {end:>9.1?}, next {start_after:>9.1?} + {end_after:>9.1?}"
        );
        drop(clone);
    }
    let at = cpu();
    clone.write_snapshot(&mut written).expect("a sink takes all bytes");
    println!("snapshot written to nowhere in {:.2?}", cpu() - at);
    let mut bytes = Vec::new();
    clone.write_snapshot(&mut bytes).expect("a vector takes all bytes");
    let at = cpu();
    let read = State::read_snapshot(&mut &bytes[..]).expect("what was written reads back");
    println!("snapshot of {:.0} B an object read in {:.2?}", bytes.len() as f64 / keys, cpu() - at);
    assert_eq!(read.objects(), clone.objects());
}
