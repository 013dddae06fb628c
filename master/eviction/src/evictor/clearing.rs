//! Eviction of objects that lie side by side, so that a larger one fits where free space is in pieces.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use mc_index::{Clearing, HashedObject, KeyHash, State};
use mc_types::{ClusterTime, MAX_ITEMS, StoreId};

use super::{Chosen, Evictor, Found, Tracked, mark_all};
use crate::leases::Leases;

/// Order in which clearings are tried: the least is the coldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Warmth {
    has_soft_pin: bool,
    /// Number of calls since the last use of any of the objects.
    unused_for: Reverse<u32>,
    /// Order of the newest allocation, by which those are told apart that were not used in this term.
    newest_put: u64,
    objects: usize,
}

/// Units whose objects make a clearing, by their hash.
type Units = BTreeMap<u64, (KeyHash, Vec<HashedObject>)>;

impl Evictor {
    /// Chooses objects to evict together, so that an object of `size` bytes fits where free bytes are in pieces, and
    /// marks their versions in `leases`. Returns them with the length of the range that they leave, in which some bytes
    /// may be free already. `None` if no such objects are found.
    ///
    /// Of the places that the index samples, the coldest is taken: the one whose last use is the longest ago. Places with
    /// leased or hard-pinned objects are left out; those with soft-pinned ones come last. An object in a group takes its
    /// group along. `without` is sorted.
    pub fn choose_clearing(
        &mut self,
        size: u64,
        state: &State,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> Option<(Chosen, u64)> {
        self.clearings = self.clearings.wrapping_add(1);
        let mut found: Vec<(Warmth, Units, u64)> = state
            .clearings(size, without, self.clearings)
            .filter_map(|clearing| {
                let units = self.units_of(&clearing, state)?;
                Some((self.warmth(&clearing, &units, now)?, units, clearing.bytes))
            })
            .collect();
        found.sort_by_key(|(warmth, ..)| *warmth);
        found.into_iter().find_map(|(_, units, bytes)| {
            let chosen = self.take_clearing(units, leases, now, without)?;
            Some((chosen, bytes))
        })
    }

    /// Returns the units of a clearing's objects. `None` if one is not known to the order, because it was put just now,
    /// if a put is about to join one, or if there are too many objects for one entry.
    fn units_of(&self, clearing: &Clearing, state: &State) -> Option<Units> {
        let mut units = Units::new();
        for object in &clearing.objects {
            let group = state.unit_of(object.key)?.group;
            let hash = group.map_or(object.key, |group| group.unit());
            if units.contains_key(&hash.to_u64()) {
                continue;
            }
            let it: Tracked = *self.tracked(hash)?;
            let Found { objects, is_joined } = Found::of(it, state);
            if is_joined {
                return None;
            }
            units.insert(hash.to_u64(), (hash, objects.into_vec()));
        }
        let count: usize = units.values().map(|(_, objects)| objects.len()).sum();
        (count <= MAX_ITEMS).then_some(units)
    }

    /// `None` if an object must stay.
    fn warmth(&self, clearing: &Clearing, units: &Units, now: ClusterTime) -> Option<Warmth> {
        let mut warmth = Warmth {
            has_soft_pin: false,
            unused_for: Reverse(u32::MAX),
            newest_put: clearing.objects.iter().map(|object| object.put).max().unwrap_or_default(),
            objects: units.values().map(|(_, objects)| objects.len()).sum(),
        };
        for (hash, objects) in units.values() {
            let place = self.find(*hash)?;
            let used = self.orders.get(place.order as usize)?.policy.last_used(place.unit)?;
            warmth.unused_for = warmth.unused_for.max(Reverse(self.calls.wrapping_sub(used)));
            for pin in objects.iter().map(|object| object.pin.at(now)) {
                if pin.is_hard() {
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
    ) -> Option<Chosen> {
        let all: Vec<HashedObject> = units.values().flat_map(|(_, objects)| objects.clone()).collect();
        if !mark_all(leases, &all, now) {
            return None;
        }
        let mut chosen = Chosen::default();
        for object in all {
            let counts = object.stores.iter().filter(|store| without.binary_search(store).is_err());
            chosen.bytes += object.size * counts.count() as u64;
            chosen.add(&object);
        }
        for (hash, _) in units.into_values() {
            if let Some(place) = self.forget(hash) {
                self.policy(place).evict(place.unit);
            }
        }
        Some(chosen)
    }
}
