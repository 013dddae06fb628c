//! An index of objects without bytes: the masters' state machine, one log entry after the other.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mc_index::{
    Command, EvictItem, KeyHash, MountStore, PutEndItem, PutStartItem, Request, Settings, Stamp, StartKey,
    State,
};
use mc_types::{ClusterTime, Code, GrantKey, MAX_ITEMS, PutId, SegmentEpoch, StoreId};
use rand::RngExt;
use rand::rngs::SmallRng;

/// Part of the objects that is evicted when one finds no room.
const EVICTED_PART: usize = 20;
/// Lifetime of a put. It ends at once.
const PUT_LIFETIME: Duration = Duration::from_secs(30);

/// An object in the index.
#[derive(Clone, Copy, Debug)]
struct Live {
    number: u64,
    size: u64,
}

/// Puts of one call.
#[derive(Debug)]
pub(super) struct Called {
    /// Live bytes when the first put found no room; `None` if all did.
    pub(super) full_at: Option<u64>,
    /// Sizes of the puts that found no room.
    pub(super) left: Vec<u64>,
    /// Number of the other puts.
    pub(super) placed: u64,
    /// Time of applying the entry that allocates.
    pub(super) took: Duration,
    /// Processor time of that.
    pub(super) cpu: Duration,
}

/// The index.
pub(super) struct Index {
    state: State,
    entries: u64,
    puts: u64,
    replicas: u8,
    live: Vec<Live>,
    /// Bytes of the live objects, all replicas.
    live_bytes: u64,
}

impl Index {
    /// An empty index of so many stores, each with one segment.
    pub(super) fn new(segments: u64, segment: u64, replicas: u8) -> Result<Self> {
        let state = State::new(Settings::default());
        let mut index = Self { state, entries: 0, puts: 0, replicas, live: Vec::new(), live_bytes: 0 };
        for store in 1..=segments {
            let code = index.propose(Request::mount_store(MountStore {
                store: StoreId(store),
                epoch: SegmentEpoch(store),
                name: format!("store-{store}"),
                grant_key: GrantKey([0; 32]),
                endpoints: Vec::new(),
                segments: vec![segment],
                http: String::new(),
            }));
            ensure!(code == Some(Code::Ok), "the index refuses a segment of {segment} bytes: {code:?}");
        }
        Ok(index)
    }

    /// Bytes that can be allocated.
    pub(super) fn capacity(&self) -> u64 {
        self.state.usage(&[]).capacity
    }

    /// Number of live objects.
    pub(super) fn objects(&self) -> u64 {
        self.live.len() as u64
    }

    /// Puts objects of these sizes in one call. A put that finds room for fewer replicas than it asks for has found none.
    pub(super) fn put(&mut self, sizes: &[u64]) -> Called {
        let first = self.puts;
        self.puts += sizes.len() as u64;
        let deadline = ClusterTime(0).after(PUT_LIFETIME);
        let item = |(number, &size): (u64, &u64)| PutStartItem {
            replicas: self.replicas,
            ..PutStartItem::new(put_id(number), &key(number), size, deadline)
        };
        let items = (first..).zip(sizes).map(item).collect();
        let (cpu_before, begun) = (cpu(), Instant::now());
        let started = self.propose(Request::put_start(String::new(), items));
        let (took, cpu) = (begun.elapsed(), cpu().saturating_sub(cpu_before));
        let (mut ends, mut revoked) = (Vec::new(), Vec::new());
        let mut called = Called { full_at: None, left: Vec::new(), placed: 0, took, cpu };
        for ((number, &size), started) in (first..).zip(sizes).zip(started.unwrap_or_default()) {
            if started.code == Code::Ok && started.replicas.len() == usize::from(self.replicas) {
                self.live.push(Live { number, size });
                self.live_bytes += size * u64::from(self.replicas);
                called.placed += 1;
                ends.push(PutEndItem::new(put_id(number), KeyHash::of("", &key(number)), 0));
                continue;
            }
            called.full_at.get_or_insert(self.live_bytes);
            called.left.push(size);
            revoked.extend((started.code == Code::Ok).then(|| put_id(number)));
        }
        self.propose(Request::put_end(ends));
        if !revoked.is_empty() {
            self.propose(Request::put_revoke(revoked));
        }
        called
    }

    /// Evicts a twentieth of the objects, at least one, at random.
    pub(super) fn evict(&mut self, rng: &mut SmallRng) {
        let count = (self.live.len() / EVICTED_PART).max(1).min(self.live.len());
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            let Live { number, size } = self.live.swap_remove(rng.random_range(0..self.live.len()));
            self.live_bytes -= size * u64::from(self.replicas);
            items.push(EvictItem { key: KeyHash::of("", &key(number)), version: put_id(number) });
        }
        for items in items.chunks(MAX_ITEMS) {
            self.propose(Request::evict(items.to_vec(), ClusterTime(0)));
        }
    }

    /// Applies an operation as the next entry of the log.
    fn propose<A>(&mut self, request: Request<A>) -> Option<A> {
        let (op, answer) = request.split();
        self.entries += 1;
        let stamp = Stamp { term: 1, seed: self.entries, ..Stamp::default() };
        answer(self.state.apply(self.entries, 1, &Command { stamp, op }))
    }
}

/// Time that this thread has spent on a core, where the system tells: on a busy machine the wall clock measures the
/// neighbours. The system counts in steps of a few milliseconds, so only sums over many calls mean something.
fn cpu() -> Duration {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = stat.and_then(|text| text.split(' ').next()?.parse().ok());
    ns.map_or_else(|| ORIGIN.elapsed(), Duration::from_nanos)
}

fn key(number: u64) -> StartKey {
    StartKey::from_slice(format!("model-8b/tp0/layer-group-0/{number:016x}").as_bytes())
}

/// Ids of real puts are random; a bijection of a counter serves as well.
fn put_id(number: u64) -> PutId {
    PutId(u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(number))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const SIZE: u64 = 4_096;

    #[test]
    fn live_bytes_are_those_of_the_index() {
        let mut index = Index::new(4, 100 * SIZE, 2).unwrap();
        let mut rng = SmallRng::seed_from_u64(1);
        let called = index.put(&[SIZE; 250]);
        // Two replicas of an object lie on different stores, so up to one store may have room that none can use.
        assert!((150..=200).contains(&called.placed), "{called:?}");
        assert_eq!(called.placed + called.left.len() as u64, 250);
        assert_eq!(called.full_at, Some(2 * called.placed * SIZE));
        for _ in 0..3 {
            index.evict(&mut rng);
            assert_eq!(index.state.usage(&[]).live, index.live_bytes);
            assert_eq!(index.state.objects(), index.objects());
            let called = index.put(&[SIZE; 20]);
            assert!(called.placed > 0, "{called:?}");
        }
    }
}
