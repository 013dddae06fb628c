use std::collections::{BTreeMap, BTreeSet};

use mc_types::{Code, Replication, StoreId};
use smallvec::SmallVec;
use triomphe::Arc;

use super::EntryFacts;
use crate::bounds::bound;
use crate::command::{PlacedReplica, PutStartItem};
use crate::key::TenantName;
use crate::puts::PutReplica;
use crate::random::SplitMix64;
use crate::state::State;
use crate::stores::{Candidate, Candidates};
use crate::work::count_work;

/// Maximum number of held ranges that the puts of one entry may take back.
pub(crate) const TAKE_BACK_MAX: usize = 4096;

/// Chooses the places of the puts of one entry.
pub(crate) struct Placer {
    /// Segments of live stores that are open to the tenant and not suspect.
    candidates: Arc<Candidates>,
    /// The same: first those of the stores of the tenant's own or the common ones, of which the larger part is free, then the others.
    tiers: SmallVec<[Arc<Candidates>; 2]>,
    /// Bytes of the largest live segment that is open to the tenant, including those of suspect stores.
    largest: u64,
    random: SplitMix64,
    take_back_left: usize,
    /// Sizes that no candidate had room for, each with the sets of stores that were avoided. It saves searching a full
    /// cluster again for each item. It lasts for the puts of one entry and depends on the index and the entry alone, so
    /// it is the same on all masters.
    full: BTreeMap<u64, BTreeSet<Avoided>>,
    #[cfg(test)]
    searches: usize,
}

/// Stores that must not take a replica: those the item avoids and those that have one. Ascending, without duplicates.
type Avoided = SmallVec<[StoreId; 4]>;

impl Placer {
    pub(crate) fn new(state: &State, tenant: &TenantName, suspects: &BTreeSet<StoreId>) -> Self {
        let without = |from: &Arc<Candidates>, stores: &BTreeSet<StoreId>| match stores.is_empty() {
            true => Arc::clone(from),
            false => Arc::new(from.without(stores)),
        };
        let owned = state.owned_stores();
        let of = |is_own: bool| owned.iter().filter(move |(_, owner)| (*owner == tenant) == is_own);
        let [own, others] = [true, false].map(|is_own| of(is_own).map(|(store, _)| *store).collect());
        let open = without(state.stores.candidates(&state.segments), &others);
        let candidates = without(&open, suspects);
        let random = SplitMix64::new(0);
        Self {
            tiers: tiers(state, &candidates, &own),
            candidates,
            largest: open.largest,
            random,
            take_back_left: bound(TAKE_BACK_MAX, 2),
            full: BTreeMap::new(),
            #[cfg(test)]
            searches: 0,
        }
    }

    /// Seeds the random choices of one item, from the entry's seed and the item's position alone.
    pub(crate) fn begin_item(&mut self, seed: u64, at: u64) {
        self.random = SplitMix64::new(seed ^ at.wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03));
    }

    /// Whether no segment is large enough, whatever is evicted.
    pub(crate) fn is_too_large(&self, size: u64) -> bool {
        self.largest > 0 && size > self.largest
    }

    /// Allocates replicas on distinct stores: as many as the item asks for, or fewer when fewer stores have room.
    pub(crate) fn place(
        &mut self,
        state: &mut State,
        entry: &EntryFacts<'_>,
        item: &PutStartItem,
    ) -> Result<SmallVec<[PutReplica; 1]>, Code> {
        let mut replicas: SmallVec<[PutReplica; 1]> = SmallVec::new();
        for _ in 0..item.replicas {
            let taken = replicas.iter().map(|replica| replica.placed.store);
            let mut avoided: Avoided = taken.chain(item.avoid.iter().copied()).collect();
            avoided.sort_unstable();
            avoided.dedup();
            let Some((chosen, offset)) = self.choose(state, entry, item, avoided) else { break };
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
        let wanted = match item.replication {
            Replication::BestEffort => 1,
            Replication::Strict => usize::from(item.replicas),
        };
        if replicas.len() >= wanted {
            return Ok(replicas);
        }
        for replica in replicas {
            state.segments.free(replica.segment, replica.placed.offset, item.size);
        }
        Err(Code::NoAvailableHandle)
    }

    fn choose(
        &mut self,
        state: &mut State,
        entry: &EntryFacts<'_>,
        item: &PutStartItem,
        avoided: Avoided,
    ) -> Option<(Candidate, u64)> {
        // If no store had room with none avoided, or with this set avoided, none has it now.
        if let Some(sets) = self.full.get(&item.size)
            && (sets.contains(&Avoided::new()) || sets.contains(&avoided))
        {
            return None;
        }
        let fits = |c: &Candidate| c.capacity >= item.size && avoided.binary_search(&c.store).is_err();
        let found = self.search(state, entry, item, &fits);
        if found.is_none() {
            self.full.entry(item.size).or_default().insert(avoided);
        }
        found
    }

    fn search(
        &mut self,
        state: &mut State,
        entry: &EntryFacts<'_>,
        item: &PutStartItem,
        fits: &dyn Fn(&Candidate) -> bool,
    ) -> Option<(Candidate, u64)> {
        #[cfg(test)]
        {
            self.searches += 1;
        }
        for &store in &item.preferred {
            let from = self.candidates.all.partition_point(|c| c.store < store);
            let to = self.candidates.all.partition_point(|c| c.store <= store);
            let found =
                first_with_room(&self.candidates.all[from..to], &mut self.random, state, item.size, fits);
            if found.is_some() {
                return found;
            }
        }
        for tier in &self.tiers {
            let random = &mut self.random;
            let found = better_of_two(tier, random, state, item.size, fits)
                .or_else(|| first_with_room(&tier.all, random, state, item.size, fits));
            if found.is_some() {
                return found;
            }
        }
        self.take_back(state, entry, item.size, fits)
    }

    /// Frees held bytes, those with the earliest reuse time first, until the put fits.
    ///
    /// Bytes whose reuse time has come may be taken from any store. Earlier, they may be taken only from a store that
    /// serves TCP alone, because it refuses readers of bytes that have a new owner.
    fn take_back(
        &mut self,
        state: &mut State,
        entry: &EntryFacts<'_>,
        size: u64,
        fits: &dyn Fn(&Candidate) -> bool,
    ) -> Option<(Candidate, u64)> {
        while self.take_back_left > 0 {
            let usable = |&(time, number): &(_, u32)| {
                let key = (state.segments.get(number)?.store, number);
                let at = self.candidates.all.binary_search_by_key(&key, |c| (c.store, c.segment)).ok()?;
                let candidate = self.candidates.all[at];
                (fits(&candidate) && (candidate.tcp_only || time <= entry.now)).then_some(candidate)
            };
            let chosen = state.segments.holding().find_map(|held| usable(&held))?;
            self.take_back_left -= 1;
            state.segments.release_first(chosen.segment);
            // Other sizes and sets of avoided stores may have room now.
            self.full.clear();
            if let Some(offset) = state.segments.alloc(chosen.segment, size) {
                return Some((chosen, offset));
            }
        }
        None
    }
}

/// Allocates on the freer of two random candidates: nearly the best balance, without a search.
///
/// A candidate is drawn with the probability of its share of all capacity, so that segments of very different sizes
/// fill alike. With two draws, a store that comes empty gets at most twice its share of the puts, however full the
/// others are.
fn better_of_two(
    among: &Candidates,
    random: &mut SplitMix64,
    state: &mut State,
    size: u64,
    fits: &dyn Fn(&Candidate) -> bool,
) -> Option<(Candidate, u64)> {
    let mut pick = || {
        let drawn = random.below_u64(among.capacity())?;
        let at = among.all.partition_point(|candidate| candidate.until <= drawn);
        among.all.get(at).copied().filter(|c| fits(c))
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

/// Allocates on the first of these candidates with room, starting at a random one.
fn first_with_room(
    candidates: &[Candidate],
    random: &mut SplitMix64,
    state: &mut State,
    size: u64,
    fits: &dyn Fn(&Candidate) -> bool,
) -> Option<(Candidate, u64)> {
    let (before, after) = candidates.split_at(random.below(candidates.len())?);
    let candidates = after.iter().chain(before).inspect(|_| count_work(1));
    candidates
        .filter(|c| fits(c))
        .find_map(|c| state.segments.alloc(c.segment, size).map(|offset| (*c, offset)))
}

/// Divides candidates by whether their stores are in `own`, those first of which a larger part is free.
///
/// So both fill alike, and common stores take nothing of a tenant's while they are the fuller ones and its own have room.
fn tiers(state: &State, all: &Arc<Candidates>, own: &BTreeSet<StoreId>) -> SmallVec<[Arc<Candidates>; 2]> {
    if own.is_empty() {
        return [Arc::clone(all)].into_iter().collect();
    }
    let common = all.without(own);
    let own = all.without(&common.all.iter().map(|candidate| candidate.store).collect());
    let free = |candidates: &Candidates| -> u128 {
        let used =
            |it: &Candidate| state.segments.space(it.segment).map_or(it.capacity, |space| space.alloc.used());
        candidates.all.iter().map(|it| u128::from(it.capacity - used(it))).sum()
    };
    let is_common_freer =
        free(&common) * u128::from(own.capacity()) > free(&own) * u128::from(common.capacity());
    let mut tiers: SmallVec<[Arc<Candidates>; 2]> = [Arc::new(own), Arc::new(common)].into_iter().collect();
    if is_common_freer {
        tiers.reverse();
    }
    tiers
}

/// Whether `a` has a larger part of its space free than `b`.
fn has_more_free(state: &State, a: Candidate, b: Candidate) -> bool {
    let free = |c: Candidate| {
        let used = state.segments.space(c.segment).map_or(c.capacity, |space| space.alloc.used());
        u128::from(c.capacity - used)
    };
    free(a) * u128::from(b.capacity) > free(b) * u128::from(a.capacity)
}

#[cfg(test)]
mod tests {
    use mc_types::{ClusterTime, GrantKey, PutId, PutMode, SegmentEpoch};

    use super::*;
    use crate::command::Settings;
    use crate::command::{Command, MountStore, Op, Stamp};

    const SIZE: u64 = 4096;

    /// Stores 1 to 4, each of one segment with room for `room` puts.
    fn pool(room: u64) -> State {
        let mut state = State::new(Settings::default());
        for store in 1..=4 {
            let mount = MountStore {
                store: StoreId(store),
                epoch: SegmentEpoch(store),
                name: format!("store {store}"),
                grant_key: GrantKey([0; 32]),
                endpoints: Vec::new(),
                segments: vec![room * SIZE],
                http: String::new(),
            };
            state.apply(
                store,
                1,
                &Command { stamp: Stamp { term: 1, ..Stamp::default() }, op: Op::MountStore(mount) },
            );
        }
        state
    }

    fn item(size: u64, replicas: u8, avoid: &[u64]) -> PutStartItem {
        PutStartItem {
            mode: PutMode::Upsert,
            replicas,
            avoid: avoid.iter().copied().map(StoreId).collect(),
            ..PutStartItem::new(PutId(1), b"k", size, ClusterTime(1000))
        }
    }

    /// Segment and offset of each item's replicas, and the number of searches that it took.
    type Placed = (Vec<Result<Vec<(u32, u64)>, Code>>, usize);

    fn place_all(
        state: &mut State,
        items: &[PutStartItem],
        mut placer_of: impl FnMut(&State, Option<Placer>) -> Placer,
    ) -> Placed {
        let stamp = Stamp { term: 1, ..Stamp::default() };
        let entry = EntryFacts { order: 9, stamp: &stamp, now: ClusterTime(1) };
        let (mut placer, mut searches) = (None, 0);
        let mut placed = Vec::new();
        for (at, item) in (0..).zip(items) {
            let mut now = placer_of(state, placer.take());
            now.begin_item(7, at);
            let before = now.searches;
            let replicas = now.place(state, &entry, item);
            searches += now.searches - before;
            placed.push(replicas.map(|replicas| {
                replicas.iter().map(|replica| (replica.segment, replica.placed.offset)).collect()
            }));
            placer = Some(now);
        }
        (placed, searches)
    }

    fn in_one_entry(state: &mut State, items: &[PutStartItem]) -> Placed {
        place_all(state, items, |state, placer| {
            placer.unwrap_or_else(|| Placer::new(state, &TenantName::new(b""), &BTreeSet::new()))
        })
    }

    #[test]
    fn a_full_cluster_is_searched_once_for_each_size_and_set_of_avoided_stores() {
        let mut state = pool(2);
        let fill: Vec<_> = (0..8).map(|_| item(SIZE, 1, &[])).collect();
        let (placed, searches) = in_one_entry(&mut state, &fill);
        assert!(placed.iter().all(Result::is_ok) && searches == 8);

        let sets: [&[u64]; 5] = [&[1], &[2, 1], &[1, 2, 1], &[3], &[1, 2, 3, 4]];
        let items: Vec<_> = (0..100)
            .flat_map(|_| sets.map(|avoid| item(SIZE, 2, avoid)))
            .chain((0..100).map(|_| item(2 * SIZE, 1, &[1])))
            .collect();
        let (placed, searches) = in_one_entry(&mut state, &items);
        assert!(placed.iter().all(|placed| *placed == Err(Code::NoAvailableHandle)));
        // Five sets for one size, two of them the same, and one set for the other size.
        assert_eq!(searches, 5, "of {} items", items.len());

        // Without stores to avoid there is no room either, so no other set is searched.
        let items: Vec<_> = [item(SIZE, 1, &[])].into_iter().chain(items).collect();
        assert_eq!(in_one_entry(&mut state, &items).1, 2);
    }

    #[test]
    fn replicas_that_find_no_further_store_are_searched_for_once() {
        let mut state = pool(100);
        let items: Vec<_> = (0..50).map(|_| item(SIZE, 3, &[2, 3])).collect();
        let (placed, searches) = in_one_entry(&mut state, &items);
        assert!(placed.iter().all(|placed| placed.as_ref().is_ok_and(|replicas| replicas.len() == 2)));
        // Two for each item, and one that finds nothing.
        assert_eq!(searches, 101);
    }

    /// The same places are chosen as by a placer that remembers nothing, before and after the cluster is full.
    #[test]
    fn remembering_changes_no_answer() {
        let sets: [&[u64]; 5] = [&[], &[1], &[2, 3], &[4, 1], &[1, 2, 3]];
        let items: Vec<_> = (0..400usize)
            .map(|n| item(SIZE * (1 + n as u64 % 3), 1 + (n % 4) as u8, sets[n * 7 % sets.len()]))
            .collect();
        let (mut one, mut other) = (pool(90), pool(90));
        let (remembering, searches) = in_one_entry(&mut one, &items);
        let (forgetting, all) = place_all(&mut other, &items, |state, _| {
            Placer::new(state, &TenantName::new(b""), &BTreeSet::new())
        });
        assert_eq!(remembering, forgetting);
        assert!(remembering.last().is_some_and(Result::is_err) && searches < all, "{searches} of {all}");
    }
}
