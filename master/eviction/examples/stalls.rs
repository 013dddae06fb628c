//! Stalls while many objects leave a large index: how long one entry keeps readers out, how long a choice keeps entries
//! out, and how long a leased read has to wait. No network and no disk; a thread that only sleeps shows how long the
//! machine itself makes anyone wait.
//!
//!     cargo run --release -p mc-eviction --example stalls -- evict 10000000 1000000
//!     cargo run --release -p mc-eviction --example stalls -- evict 1000000 100000 65536
//!
//! The last number is that of tenants with a quota that share the objects. The first half leaves the index alone, the second half one of which a clone is held, as for a snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mc_eviction::{EvictionGoal, Evictor, Leases, OBJECTS_PER_ENTRY, Scope};
use mc_index::{
    Change, Command, KeyHash, Memory, MountStore, Op, PutEndItem, PutStartItem, Quota, Settings, Stamp, State,
};
use mc_types::{ClusterTime, GrantKey, PutId, SegmentEpoch, StoreId};
use parking_lot::RwLock;

/// As `mc-master` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const STORES: u64 = 8;
const SIZE: u64 = 4096;
/// Maximum number of objects of an entry that puts.
const BATCH: u64 = 128;
/// Newest objects, which are read. They are leased, so that they stay.
const READ: u64 = 1000;

const USAGE: &str = "usage: stalls WHAT OBJECTS GONE [TENANTS], where WHAT is `evict`, OBJECTS the objects in the index, \
                     GONE those that leave it, fewer by at least 1000, and TENANTS the tenants with a quota that have \
                     them; without it all belong to one without a quota";

/// How objects leave.
#[derive(Clone, Copy)]
enum What {
    /// Chosen by the evictor, entry by entry.
    Evict,
}

/// A leader's index and eviction.
struct Leader {
    state: Arc<RwLock<State>>,
    leases: Arc<Leases>,
    evictor: Evictor,
    tenants: Tenants,
    entries: u64,
    /// Longest time in which the order of eviction followed an entry.
    longest_follow: Duration,
}

/// Tenants that have the objects, a batch of each in turn.
#[derive(Clone, Copy)]
struct Tenants {
    /// Number of those with a quota; 0 if all objects belong to one without.
    count: u64,
    /// Objects of an entry that puts.
    batch: u64,
}

impl Tenants {
    /// So many tenants, each with some of the objects.
    fn new(count: u64, objects: u64) -> Self {
        Self { count, batch: BATCH.min(objects / count.max(1)).max(1) }
    }

    fn of(self, n: u64) -> String {
        match self.count {
            0 => String::new(),
            count => format!("tenant-{}", n / self.batch % count),
        }
    }
}

/// Durations of one thing.
#[derive(Default)]
struct Spans(Vec<Duration>);

impl Spans {
    fn say(mut self, what: &str) {
        self.0.sort_unstable();
        let at = |share: f64| self.0.get((self.0.len() as f64 * share) as usize).copied().unwrap_or_default();
        let longest = self.0.last().copied().unwrap_or_default();
        println!(
            "  {what:<38} longest {:>8.2} ms   p99 {:>8.3} ms   p50 {:>8.3} ms   of {}",
            ms(longest),
            ms(at(0.99)),
            ms(at(0.5)),
            self.0.len()
        );
    }
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

fn key(n: u64) -> Vec<u8> {
    let mut key = format!("model-8b/tp0/layer-group-0/{n:016x}").into_bytes();
    key.resize(100, b'-');
    key
}

fn put_id(n: u64) -> PutId {
    PutId(u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(n))
}

impl Leader {
    /// An index of so many objects.
    fn filled(objects: u64, tenants: Tenants) -> Self {
        let default_quota = match tenants.count {
            0 => Quota::default(),
            _ => Quota { objects, ..Quota::default() },
        };
        let settings = Settings { default_quota, ..Settings::default() };
        let mut leader = Self {
            state: Arc::new(RwLock::new(State::new(settings))),
            leases: Arc::default(),
            evictor: Evictor::default(),
            tenants,
            entries: 0,
            longest_follow: Duration::ZERO,
        };
        let bytes = (objects * 2 * SIZE / STORES).max(1 << 30);
        for store in 1..=STORES {
            leader.apply(Op::MountStore(MountStore {
                store: StoreId(store),
                epoch: SegmentEpoch(store),
                name: String::new(),
                grant_key: GrantKey([0; 32]),
                endpoints: Vec::new(),
                segments: vec![bytes],
                http: String::new(),
            }));
        }
        for from in (0..objects).step_by(tenants.batch as usize) {
            let puts = from..(from + tenants.batch).min(objects);
            let tenant = tenants.of(from);
            let start = |n| PutStartItem::new(put_id(n), &key(n), SIZE, ClusterTime(30_000));
            let end = |n| PutEndItem::new(put_id(n), KeyHash::of(&tenant, &key(n)), n);
            leader.apply(Op::PutStart { tenant: tenant.clone(), items: puts.clone().map(start).collect() });
            leader.apply(Op::PutEnd { items: puts.map(end).collect() });
        }
        leader
    }

    /// Applies an operation as the next entry, and returns the time for which that kept readers out.
    fn apply(&mut self, op: Op) -> Duration {
        self.entries += 1;
        let stamp = Stamp { term: 1, seed: self.entries, ..Stamp::default() };
        let command = Command { stamp, op };
        let mut state = self.state.write();
        let begun = Instant::now();
        let response = state.apply(self.entries, 1, &command);
        let took = begun.elapsed();
        drop(state);
        if let Some(change) = Change::of(&command, &response) {
            let state = self.state.read();
            let begun = Instant::now();
            self.evictor.follow(&change, &state);
            self.longest_follow = self.longest_follow.max(begun.elapsed());
        }
        took
    }

    /// Evicts objects as a leader does, and says what it took.
    fn evict(&mut self, objects: u64) {
        let (mut choices, mut applies) = (Spans::default(), Spans::default());
        let begun = Instant::now();
        let mut left = objects as usize;
        while left > 0 {
            let (scope, max) = (Scope::Memory(Memory::Common), left.min(OBJECTS_PER_ENTRY));
            let want = EvictionGoal { scope, bytes: u64::MAX, objects: 0, max };
            let state = self.state.read();
            let choosing = Instant::now();
            let chosen = self.evictor.choose(want, &state, &self.leases, ClusterTime(1), &[]);
            choices.0.push(choosing.elapsed());
            drop(state);
            assert!(!chosen.items.is_empty(), "{chosen:?}");
            left -= chosen.items.len();
            applies.0.push(self.apply(Op::Evict { items: chosen.items.clone(), reuse_at: ClusterTime(0) }));
            chosen.items.iter().for_each(|item| self.leases.unmark(item.version));
        }
        let took = begun.elapsed().as_secs_f64();
        println!("{objects} objects evicted in {took:.2} s, up to {OBJECTS_PER_ENTRY} an entry");
        choices.say("choosing for an entry");
        applies.say("applying an entry");
    }
}

/// Repeats `call` on a thread until `over`, and notes how long each took.
fn again_and_again(
    over: &Arc<AtomicBool>,
    mut call: impl FnMut(u64) -> Duration + Send + 'static,
) -> JoinHandle<Spans> {
    let over = over.clone();
    std::thread::spawn(move || {
        let mut spans = Spans::default();
        for n in 0.. {
            if over.load(Ordering::Relaxed) {
                break;
            }
            spans.0.push(call(n));
        }
        spans
    })
}

/// Lets `work` go on beside a reader and a sleeper.
fn beside(leader: &mut Leader, objects: u64, work: impl FnOnce(&mut Leader)) {
    let over = Arc::new(AtomicBool::new(false));
    let (state, leases, tenants) = (leader.state.clone(), leader.leases.clone(), leader.tenants);
    let reader = again_and_again(&over, move |n| {
        let n = objects - 1 - n % READ;
        let (tenant, key) = (tenants.of(n), key(n));
        let begun = Instant::now();
        let found = state.read().get(&tenant, &key).expect("a leased object stays");
        assert!(leases.grant(found.version, 0, ClusterTime(10_000)), "a leased object is not being evicted");
        let took = begun.elapsed();
        // A leader has other things to do between two reads.
        std::thread::sleep(Duration::from_micros(100));
        took
    });
    let sleeper = again_and_again(&over, |_| {
        const SLEEP: Duration = Duration::from_millis(1);
        let begun = Instant::now();
        std::thread::sleep(SLEEP);
        begun.elapsed().saturating_sub(SLEEP)
    });
    work(leader);
    over.store(true, Ordering::Relaxed);
    reader.join().expect("no panic").say("a leased read");
    sleeper.join().expect("no panic").say("a sleep of 1 ms, too long by");
}

fn arguments() -> Option<(What, u64, u64, Tenants)> {
    let mut arguments = std::env::args().skip(1);
    let what = match arguments.next()?.as_str() {
        "evict" => What::Evict,
        _ => return None,
    };
    let (objects, gone): (u64, u64) = (arguments.next()?.parse().ok()?, arguments.next()?.parse().ok()?);
    let tenants = arguments.next().map_or(Ok(0), |tenants| tenants.parse()).ok()?;
    let is_right = arguments.next().is_none() && gone.checked_add(READ)? <= objects;
    is_right.then_some((what, objects, gone, Tenants::new(tenants, objects)))
}

fn main() {
    let Some((what, objects, gone, tenants)) = arguments() else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    let mut leader = Leader::filled(objects, tenants);
    println!(
        "{} objects in the index, {} tenants with a quota",
        leader.state.read().objects(),
        tenants.count
    );
    println!("following an entry while it filled: longest {:.2} ms", ms(leader.longest_follow));
    for n in objects - READ..objects {
        let found = leader.state.read().get(&tenants.of(n), &key(n)).expect("it was put");
        assert!(leader.leases.grant(found.version, 0, ClusterTime(10_000)));
    }
    let go = |leader: &mut Leader, count| match what {
        What::Evict => leader.evict(count),
    };
    beside(&mut leader, objects, |leader| go(leader, gone / 2));
    let clone = leader.state.read().clone();
    println!("with a clone of the index:");
    beside(&mut leader, objects, |leader| go(leader, gone - gone / 2));
    drop(clone);
}
