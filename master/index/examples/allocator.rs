//! Space and speed of the segment allocator on the sizes of KV caches, beside best fit over a plain `BTreeMap`.
//!
//!     cargo run --release -p mc-index --example allocator
//!
//! Each round fills a segment until an allocation fails and then evicts 5 % of the objects at random. `pairs` evicts
//! the two objects of a page together, `mixed` each on its own.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mc_index::alloc::Allocator;

use common::cpu;

const KV: u64 = 3_274_752;
const STATE: u64 = 658_432;
const GIB: u64 = 1 << 30;
const ROUNDS: usize = 400;

trait Alloc {
    fn new(bytes: u64) -> Self;
    fn alloc(&mut self, len: u64) -> Option<u64>;
    fn free(&mut self, offset: u64, len: u64);
}

impl Alloc for Allocator {
    fn new(bytes: u64) -> Self {
        Allocator::new(bytes)
    }
    fn alloc(&mut self, len: u64) -> Option<u64> {
        self.alloc(len)
    }
    fn free(&mut self, offset: u64, len: u64) {
        self.free(offset, len);
    }
}

/// Best fit with coalescing, the textbook way.
struct BestFit {
    by_offset: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl BestFit {
    fn add(&mut self, offset: u64, len: u64) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
    }
    fn cut(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
    }
}

impl Alloc for BestFit {
    fn new(bytes: u64) -> Self {
        let mut new = Self { by_offset: BTreeMap::new(), by_len: BTreeSet::new() };
        new.add(0, bytes);
        new
    }
    fn alloc(&mut self, len: u64) -> Option<u64> {
        let len = len.next_multiple_of(64);
        let &(range, offset) = self.by_len.range((len, 0)..).next()?;
        self.cut(offset, range);
        if range > len {
            self.add(offset + len, range - len);
        }
        Some(offset)
    }
    fn free(&mut self, offset: u64, len: u64) {
        let (mut offset, mut len) = (offset, len.next_multiple_of(64));
        if let Some((&start, &range)) = self.by_offset.range(..offset).next_back()
            && start + range == offset
        {
            self.cut(start, range);
            (offset, len) = (start, range + len);
        }
        if let Some(&range) = self.by_offset.get(&(offset + len)) {
            self.cut(offset + len, range);
            len += range;
        }
        self.add(offset, len);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

struct Outcome {
    mean: f64,
    worst: f64,
    pairs_per_s: f64,
}

/// A page is one object of each size; `together` evicts it as one.
fn run<A: Alloc>(bytes: u64, sizes: &[u64], together: bool) -> Outcome {
    let mut alloc = A::new(bytes);
    let mut random = Random(42);
    let mut live: Vec<Vec<(u64, u64)>> = Vec::new();
    let (mut sum, mut worst, mut ops, mut used) = (0.0, f64::MAX, 0u64, 0u64);
    let started = cpu();
    for _ in 0..ROUNDS {
        'fill: loop {
            let mut page = Vec::with_capacity(sizes.len());
            for &size in sizes {
                match alloc.alloc(size) {
                    Some(offset) => page.push((offset, size)),
                    None => {
                        page.iter().for_each(|&(offset, size)| alloc.free(offset, size));
                        break 'fill;
                    }
                }
            }
            ops += page.len() as u64;
            used += sizes.iter().sum::<u64>();
            if together {
                live.push(page);
            } else {
                live.extend(page.into_iter().map(|object| vec![object]));
            }
        }
        let part = used as f64 / bytes as f64;
        sum += part;
        worst = f64::min(worst, part);
        for _ in 0..live.len() / 20 {
            for (offset, size) in live.swap_remove(random.below(live.len())) {
                alloc.free(offset, size);
                used -= size;
            }
        }
    }
    // The system's count moves in steps of a few milliseconds.
    let took = (cpu() - started).max(Duration::from_millis(4));
    let pairs_per_s = ops as f64 / took.as_secs_f64();
    Outcome { mean: sum / ROUNDS as f64, worst, pairs_per_s }
}

fn main() {
    println!("{ROUNDS} rounds of: fill, evict 5 % at random; one core, CPU time");
    println!(
        "{:<34} {:<9} {:>10} {:>10} {:>15}",
        "workload", "allocator", "mean used", "worst", "alloc+free/s"
    );
    let small = 131_072;
    let workloads: [(&str, u64, &[u64], bool); 7] = [
        ("50 GiB, KV only", 50 * GIB, &[KV], false),
        ("50 GiB, KV + state, pairs", 50 * GIB, &[KV, STATE], true),
        ("50 GiB, KV + state, mixed", 50 * GIB, &[KV, STATE], false),
        ("4 GiB, KV + state, pairs", 4 * GIB, &[KV, STATE], true),
        ("4 GiB, KV + state, mixed", 4 * GIB, &[KV, STATE], false),
        ("64 MiB, 128 KiB", GIB / 16, &[small], false),
        ("8 GiB, KV + 128 KiB, mixed", 8 * GIB, &[KV, small], false),
    ];
    for (name, bytes, sizes, together) in workloads {
        let ours = run::<Allocator>(bytes, sizes, together);
        let naive = run::<BestFit>(bytes, sizes, together);
        for (which, outcome) in [("runs", ours), ("best fit", naive)] {
            let Outcome { mean, worst, pairs_per_s } = outcome;
            println!(
                "{name:<34} {which:<9} {:>9.2}% {:>9.2}% {:>15.0}",
                mean * 100.0,
                worst * 100.0,
                pairs_per_s
            );
        }
    }
}
