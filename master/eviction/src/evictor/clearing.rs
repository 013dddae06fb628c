//! Eviction of objects that lie side by side, so that a larger one fits where free space is in pieces.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use mc_index::{ClearingObject, HashedObject, KeyHash, SegmentRange, State};
use mc_types::{ClusterTime, MAX_ITEMS, StoreId};

use super::{Evictor, OBJECTS_PER_ENTRY_FOR_PUTS, Tracked, UnitObjects, Victims, mark_all};
use crate::leases::Leases;

/// Next objects to evict of a place that is being cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClearingStep {
    /// These. Their versions are marked in the leases.
    Chosen(Victims),
    /// No objects are left.
    Cleared,
    /// One must stay: it is leased or hard-pinned since the place was chosen, or was put since.
    Spoiled,
}

/// Order in which clearings are tried: the least is the coldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Warmth {
    has_soft_pin: bool,
    /// Number of calls since the last use of any of the objects.
    unused_for: Reverse<u32>,
    /// Order of the newest allocation, to tell which objects were not used in this term.
    newest_put: u64,
    objects: usize,
}

/// Units whose objects make a clearing, by their hash.
type Units = BTreeMap<u64, (KeyHash, Vec<HashedObject>)>;

impl Evictor {
    /// Chooses a place whose objects are to be evicted together, so that an object of `size` bytes fits where free bytes
    /// are in pieces. `None` if there is none. [`Self::next_slice`] chooses its objects, entry by entry.
    ///
    /// Of the places that the index samples, the coldest is taken: the one whose last use is the longest ago. Places with
    /// leased or hard-pinned objects are left out; those with soft-pinned ones come last. `without` is sorted.
    pub fn choose_clearing(
        &mut self,
        size: u64,
        state: &State,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> Option<SegmentRange> {
        self.clearings = self.clearings.wrapping_add(1);
        let found = state.clearings(size, without, self.clearings).filter_map(|clearing| {
            let units = self.units_of(&clearing.objects, state, usize::MAX)?;
            Some((self.warmth(&clearing.objects, &units, leases, now)?, clearing.stretch))
        });
        found.min_by_key(|(warmth, _)| *warmth).map(|(_, stretch)| stretch)
    }

    /// Chooses the next objects of a place that is being cleared, and marks their versions in `leases`. An object in a group
    /// takes its group along.
    ///
    /// The place has its room once it is cleared, if no put was started meanwhile that may have been placed there.
    pub fn next_slice(
        &mut self,
        stretch: &SegmentRange,
        state: &State,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> ClearingStep {
        let objects = state.objects_in(stretch, OBJECTS_PER_ENTRY_FOR_PUTS);
        if objects.is_empty() {
            return ClearingStep::Cleared;
        }
        let units = self.units_of(&objects, state, MAX_ITEMS);
        let units = units.filter(|units| self.warmth(&objects, units, leases, now).is_some());
        // An object that a `remove_all` has removed is not evicted: the sweep frees its bytes.
        let chosen = units.and_then(|units| self.take_clearing(units, leases, now, without));
        match chosen.filter(|chosen| !chosen.items.is_empty()) {
            Some(chosen) => ClearingStep::Chosen(chosen),
            None => ClearingStep::Spoiled,
        }
    }

    /// Returns the first units of objects that lie side by side, with at most `max` objects. `None` if one is not known to
    /// the order, because it was put just now, or if a put is about to join one.
    fn units_of(&self, cleared: &[ClearingObject], state: &State, max: usize) -> Option<Units> {
        let (mut units, mut count) = (Units::new(), 0);
        for object in cleared {
            let group = state.unit_of(object.key)?.group;
            let hash = group.map_or(object.key, |group| group.unit());
            if units.contains_key(&hash.to_u64()) {
                continue;
            }
            let it: Tracked = *self.tracked(hash)?;
            let UnitObjects { objects, is_joined } = UnitObjects::of(it, state);
            if is_joined {
                return None;
            }
            count += objects.len();
            if count > max {
                break;
            }
            units.insert(hash.to_u64(), (hash, objects.into_vec()));
        }
        Some(units)
    }

    /// `None` if an object must stay.
    fn warmth(
        &self,
        cleared: &[ClearingObject],
        units: &Units,
        leases: &Leases,
        now: ClusterTime,
    ) -> Option<Warmth> {
        let mut warmth = Warmth {
            has_soft_pin: false,
            unused_for: Reverse(u32::MAX),
            newest_put: cleared.iter().map(|object| object.put).max().unwrap_or_default(),
            objects: units.values().map(|(_, objects)| objects.len()).sum(),
        };
        for (hash, objects) in units.values() {
            let place = self.find(*hash)?;
            let age = self.orders.age(place.order as usize, place.unit)?;
            warmth.unused_for = warmth.unused_for.max(Reverse(age));
            for object in objects {
                let pin = object.pin.at(now);
                if pin.is_hard() || leases.holds(object.version, now) {
                    return None;
                }
                warmth.has_soft_pin |= pin.soft_until().is_some();
            }
        }
        Some(warmth)
    }

    /// Marks all objects of a clearing and takes them out of the order. `None`, without any change, if one is leased.
    fn take_clearing(
        &mut self,
        units: Units,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> Option<Victims> {
        let all: Vec<HashedObject> = units.values().flat_map(|(_, objects)| objects.clone()).collect();
        if !mark_all(leases, &all, now) {
            return None;
        }
        let mut chosen = Victims::default();
        for object in all {
            let counts = object.stores.iter().filter(|store| without.binary_search(store).is_err());
            chosen.bytes += object.size * counts.count() as u64;
            chosen.add(&object);
        }
        for (hash, _) in units.into_values() {
            if let Some(place) = self.forget(hash) {
                self.change(place, |policy| policy.evict(place.unit));
            }
        }
        Some(chosen)
    }
}
