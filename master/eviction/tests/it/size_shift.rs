//! A pool full of objects of one size that takes objects of another.

use mc_index::{Fit, Op, PutStarted, Response};
use mc_types::{ClusterTime, Code, PutId, StoreId};

use super::support;
use super::{ClearingStep, KeyHash, NOW, Pool, Victims};

const KV: u64 = 3_274_752;
const STATE: u64 = 658_432;
/// Attempts of a put to find room, as a leader makes them.
const TRIES: usize = 3;

/// Outcome of a run of puts.
#[derive(Debug, Default)]
struct Taken {
    put: u64,
    evicted: u64,
    refused: u64,
}

/// A deterministic sequence that looks random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

impl Pool {
    fn evict_chosen(&mut self, chosen: &Victims) {
        let items = chosen.items.clone();
        let codes = self.apply(Op::Evict { items, reuse_at: ClusterTime(0) });
        assert_eq!(codes, Response::Codes(vec![Code::Ok; chosen.items.len()]));
        chosen.items.iter().for_each(|item| self.leases.unmark(item.version));
    }

    /// Makes room for an object as a leader does. Returns the bytes that were evicted.
    fn make_room(&mut self, size: u64) -> u64 {
        if self.rig.state.fit_of(size, &[]) == Fit::InPieces
            && let Some(place) = self.evictor.choose_clearing(size, &self.rig.state, &self.leases, NOW, &[])
        {
            assert!(place.bytes() >= size);
            let mut evicted = 0;
            loop {
                match self.evictor.next_slice(&place, &self.rig.state, &self.leases, NOW, &[]) {
                    ClearingStep::Chosen(chosen) => {
                        assert_ne!(chosen.items, [], "a slice that evicts nothing");
                        self.evict_chosen(&chosen);
                        evicted += chosen.bytes;
                    }
                    ClearingStep::Cleared => break,
                    ClearingStep::Spoiled => panic!("no object of the place must stay"),
                }
            }
            assert_eq!(self.rig.state.fit_of(size, &[]), Fit::Fits, "there is room where they were");
            return evicted;
        }
        let chosen = self.choose(size);
        self.evict_chosen(&chosen);
        chosen.bytes
    }

    /// Puts one object, evicting others as needed. Returns whether it found room.
    fn put_evicting(&mut self, n: u128, size: u64, taken: &mut Taken) -> bool {
        let key = n.to_string();
        for tries in 0..=TRIES {
            let PutStarted { code, .. } = self.rig.start(support::start(n, &key, size));
            if code == Code::Ok {
                self.apply(Op::PutEnd { items: vec![support::end(n, &key)] });
                taken.put += size;
                return true;
            }
            assert_eq!(code, Code::NoAvailableHandle);
            if tries < TRIES {
                taken.evicted += self.make_room(size);
            }
        }
        taken.refused += 1;
        false
    }

    /// Puts objects `n..` of one size until they are as many bytes as the pool has.
    fn turn_over(&mut self, n: &mut u128, size: u64) -> Taken {
        let capacity = self.rig.state.usage(&[]).capacity;
        let mut taken = Taken::default();
        while taken.put + taken.refused * size < capacity {
            *n += 1;
            self.put_evicting(*n, size, &mut taken);
        }
        taken
    }

    /// Uses every object once, in random order.
    fn shuffle(&mut self, random: &mut Random) {
        let mut keys: Vec<KeyHash> = self.rig.state.ages().map(|age| age.key).collect();
        while !keys.is_empty() {
            let key = keys.swap_remove(random.below(keys.len() as u64) as usize);
            self.evictor.hit(&[key]);
        }
    }
}

/// Small segments have runs of one object each, large ones of dozens.
#[test]
fn a_pool_full_of_one_size_takes_another_and_back_evicting_at_most_twice_its_bytes() {
    for segments in [&[64 << 20, 64 << 20][..], &[4 << 30, 4 << 30]] {
        let mut pool = Pool::new(segments);
        let (mut n, mut random) = (0, Random(7));
        assert_eq!(pool.turn_over(&mut n, STATE).refused, 0);
        for size in [KV, STATE, KV] {
            pool.shuffle(&mut random);
            let taken = pool.turn_over(&mut n, size);
            assert_eq!(taken.refused, 0, "{size}: {taken:?}");
            assert!(taken.evicted <= 2 * taken.put, "{size}: {taken:?}");
        }
    }
}

/// The first object pays for those that follow it, but not more than the objects beside it.
#[test]
fn the_first_object_of_another_size_evicts_the_objects_of_one_place() {
    let mut pool = Pool::new(&[64 << 20]);
    let (mut n, mut taken) = (0, Taken::default());
    pool.turn_over(&mut n, STATE);
    pool.shuffle(&mut Random(7));
    for _ in 0..10 {
        n += 1;
        assert!(pool.put_evicting(n, KV, &mut taken));
    }
    assert!(taken.evicted <= 2 * taken.put, "{taken:?}");
}

/// A pool of one segment that is full of small objects but for every other one, in which no large one fits.
fn in_pieces() -> Pool {
    let mut pool = Pool::new(&[40 * STATE]);
    for n in 1..=40 {
        assert!(pool.put_evicting(n, STATE, &mut Taken::default()));
    }
    let chosen = |n: u128| mc_index::EvictItem { key: super::hash(n), version: PutId(n) };
    let items: Vec<_> = (1..=20).map(|n| chosen(2 * n)).collect();
    pool.apply(Op::Remove {
        tenant: String::new(),
        items: items
            .iter()
            .map(|item| mc_index::RemoveItem {
                key: item.version.0.to_string().into_bytes(),
                version: item.version,
                reuse_at: ClusterTime(0),
            })
            .collect(),
    });
    pool
}

#[test]
fn the_place_whose_last_use_is_the_longest_ago_goes_first() {
    let mut pool = in_pieces();
    assert_eq!(pool.rig.state.fit_of(KV, &[]), Fit::InPieces);
    assert_eq!(pool.rig.state.fit_of(STATE, &[]), Fit::Fits);
    assert_eq!(pool.rig.state.fit_of(41 * STATE, &[]), Fit::Full);
    assert_eq!(pool.rig.state.fit_of(KV, &[StoreId(1)]), Fit::Full, "no other store is left");
    // All but the objects 21 to 31 are used.
    pool.hit((1..=40).filter(|n| !(20..=32).contains(n) && n % 2 == 1));
    let place = pool.evictor.choose_clearing(KV, &pool.rig.state, &pool.leases, NOW, &[]).expect("a place");
    assert!(place.bytes() >= KV);
    let slice = pool.evictor.next_slice(&place, &pool.rig.state, &pool.leases, NOW, &[]);
    let ClearingStep::Chosen(chosen) = slice else { panic!("{slice:?}") };
    let versions = super::versions(&chosen);
    assert!(versions.iter().all(|n| (21..=31).contains(n)), "{versions:?}");
    assert_eq!(chosen.bytes, versions.len() as u64 * STATE);
    assert!(!pool.leases.grant(PutId(versions[0]), 0, ClusterTime(9_000)), "it is marked");
    pool.evict_chosen(&chosen);
    let slice = pool.evictor.next_slice(&place, &pool.rig.state, &pool.leases, NOW, &[]);
    assert_eq!(slice, ClearingStep::Cleared);
}

#[test]
fn places_with_leased_or_hard_pinned_objects_stay() {
    let mut pool = in_pieces();
    for n in (1..=40).filter(|n| n % 2 == 1) {
        // No five places in a row are without a lease.
        if n % 4 == 1 {
            assert!(pool.leases.grant(PutId(n), 0, ClusterTime(NOW.0 + 1)));
        }
    }
    let choice = pool.evictor.choose_clearing(KV, &pool.rig.state, &pool.leases, NOW, &[]);
    assert_eq!(choice, None);
    assert!(pool.leases.grant(PutId(1), 0, ClusterTime(NOW.0 + 1)), "no mark is left");
    assert_eq!(pool.evictor.len(), 20, "none is lost to the order");
}
