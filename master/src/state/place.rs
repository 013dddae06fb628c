use std::collections::BTreeSet;
use std::ops::Range;

use mc_base::StoreId;
use mc_proto::v1::Code;
use smallvec::SmallVec;

use super::command::{PlacedReplica, PutStartItem};
use super::machine::{Entry, State};
use super::puts::PutReplica;

/// Held ranges that the puts of one entry may take back.
const TAKE_BACK_MAX: usize = 4096;

/// Chooses where the puts of one entry go.
pub(super) struct Placement {
    /// Segments of live stores that are not suspect, by number.
    candidates: Vec<Candidate>,
    /// Bytes of the largest live segment, suspect stores included.
    largest: u64,
    random: SplitMix64,
    take_back_left: usize,
    /// Sizes that no candidate had room for, so that a full cluster is not searched again for each item.
    full: BTreeSet<u64>,
}

#[derive(Clone, Copy)]
struct Candidate {
    segment: u32,
    store: StoreId,
    capacity: u64,
    tcp_only: bool,
}

impl Placement {
    pub(super) fn new(state: &State, suspects: &BTreeSet<StoreId>) -> Self {
        let mut candidates = Vec::new();
        let mut largest = 0;
        for (id, store) in state.stores.iter() {
            let Some(mounted) = &store.mounted else { continue };
            let tcp_only = mounted.is_tcp_only();
            for number in mounted.numbers() {
                let Some(space) = state.segments.space(number) else { continue };
                let capacity = space.alloc.capacity();
                largest = largest.max(capacity);
                if !suspects.contains(&id) {
                    candidates.push(Candidate { segment: number, store: id, capacity, tcp_only });
                }
            }
        }
        // Stores stand by id; by number a held range finds its candidate, and a store's segments stay neighbours.
        candidates.sort_unstable_by_key(|candidate| candidate.segment);
        let random = SplitMix64(0);
        Self { candidates, largest, random, take_back_left: TAKE_BACK_MAX, full: BTreeSet::new() }
    }

    /// Random choices of an item depend on the entry's seed and the item's place alone.
    pub(super) fn begin_item(&mut self, seed: u64, at: u64) {
        self.random = SplitMix64(seed ^ at.wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03));
    }

    /// Allocates replicas on distinct stores: as many as asked for, fewer when fewer have room.
    pub(super) fn place(
        &mut self,
        state: &mut State,
        entry: &Entry<'_>,
        item: &PutStartItem,
    ) -> Result<SmallVec<[PutReplica; 1]>, Code> {
        if self.largest > 0 && item.size > self.largest {
            return Err(Code::ObjectTooLarge);
        }
        let mut replicas: SmallVec<[PutReplica; 1]> = SmallVec::new();
        for _ in 0..item.replicas {
            let taken: SmallVec<[StoreId; 4]> = replicas.iter().map(|replica| replica.placed.store).collect();
            let fits = |c: &Candidate| {
                c.capacity >= item.size && !taken.contains(&c.store) && !item.avoid.contains(&c.store)
            };
            let unrestricted = taken.is_empty() && item.avoid.is_empty();
            let Some((chosen, offset)) = self.choose(state, entry, item, &fits, unrestricted) else { break };
            let Some(segment) = state.segments.get(chosen.segment) else { break };
            replicas.push(PutReplica {
                segment: chosen.segment,
                placed: PlacedReplica {
                    store: chosen.store,
                    epoch: segment.epoch,
                    segment: segment.number,
                    offset,
                    len: item.size,
                    index: entry.order,
                },
            });
        }
        if replicas.is_empty() { Err(Code::NoAvailableHandle) } else { Ok(replicas) }
    }

    fn choose(
        &mut self,
        state: &mut State,
        entry: &Entry<'_>,
        item: &PutStartItem,
        fits: &dyn Fn(&Candidate) -> bool,
        unrestricted: bool,
    ) -> Option<(Candidate, u64)> {
        if self.full.contains(&item.size) {
            return None;
        }
        for &store in &item.preferred {
            let Some(mounted) = state.stores.mounted(store) else { continue };
            let numbers = mounted.numbers();
            let from = self.candidates.partition_point(|c| c.segment < numbers.start);
            let to = self.candidates.partition_point(|c| c.segment < numbers.end);
            let found = self.first_with_room(from..to, state, item.size, fits);
            if found.is_some() {
                return found;
            }
        }
        let found = self
            .better_of_two(state, item.size, fits)
            .or_else(|| self.first_with_room(0..self.candidates.len(), state, item.size, fits))
            .or_else(|| self.take_back(state, entry, item.size, fits));
        if found.is_none() && unrestricted {
            self.full.insert(item.size);
        }
        found
    }

    /// The one of two random candidates with more of its space free: close to the best balance, without a search.
    fn better_of_two(
        &mut self,
        state: &mut State,
        size: u64,
        fits: &dyn Fn(&Candidate) -> bool,
    ) -> Option<(Candidate, u64)> {
        let mut pick = || {
            let at = self.random.below(self.candidates.len())?;
            self.candidates.get(at).copied().filter(|c| fits(c))
        };
        let (a, b) = (pick(), pick());
        let (first, second) = match (a, b) {
            (Some(a), Some(b)) if has_more_free(state, b, a) => (Some(b), Some(a)),
            (None, b) => (b, None),
            both => both,
        };
        [first, second]
            .into_iter()
            .flatten()
            .find_map(|c| state.segments.alloc(c.segment, size).map(|offset| (c, offset)))
    }

    /// The first of these candidates with room, from a random one on.
    fn first_with_room(
        &mut self,
        among: Range<usize>,
        state: &mut State,
        size: u64,
        fits: &dyn Fn(&Candidate) -> bool,
    ) -> Option<(Candidate, u64)> {
        let candidates = &self.candidates[among];
        let (before, after) = candidates.split_at(self.random.below(candidates.len())?);
        after
            .iter()
            .chain(before)
            .filter(|c| fits(c))
            .find_map(|c| state.segments.alloc(c.segment, size).map(|offset| (*c, offset)))
    }

    /// Frees held bytes, the longest held first, until the put fits: bytes whose time has come anywhere, others only
    /// where TCP alone reaches them, because there the store refuses a reader whose bytes have a new owner.
    fn take_back(
        &mut self,
        state: &mut State,
        entry: &Entry<'_>,
        size: u64,
        fits: &dyn Fn(&Candidate) -> bool,
    ) -> Option<(Candidate, u64)> {
        while self.take_back_left > 0 {
            let usable = |&(time, number): &(_, u32)| {
                let at = self.candidates.binary_search_by_key(&number, |c| c.segment).ok()?;
                let candidate = self.candidates[at];
                (fits(&candidate) && (candidate.tcp_only || time <= entry.now)).then_some(candidate)
            };
            let chosen = state.segments.holding().find_map(|held| usable(&held))?;
            self.take_back_left -= 1;
            state.segments.release_first(chosen.segment);
            // What was full for other sizes may have room now.
            self.full.clear();
            if let Some(offset) = state.segments.alloc(chosen.segment, size) {
                return Some((chosen, offset));
            }
        }
        None
    }
}

/// Whether `a` has a larger part of its space free than `b`.
fn has_more_free(state: &State, a: Candidate, b: Candidate) -> bool {
    let free = |c: Candidate| {
        let used = state.segments.space(c.segment).map_or(c.capacity, |space| space.alloc.used());
        u128::from(c.capacity - used)
    };
    free(a) * u128::from(b.capacity) > free(b) * u128::from(a.capacity)
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers from the same seed on every replica.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; `None` for zero.
    fn below(&mut self, n: usize) -> Option<usize> {
        let scaled = (u128::from(self.next()) * (n as u128)) >> 64;
        usize::try_from(scaled).ok().filter(|&at| at < n)
    }
}
