//! Pins of units: those that are candidates are looked up, and taken out of the order until their pin ends.

use std::collections::{BTreeMap, HashMap};

use mc_index::{KeyHash, Pin, State, bound};
use mc_types::ClusterTime;

use super::orders::Class;
use super::{Evictor, PINS_PER_CHOICE, Tracked, UnitObjects, UnitPosition};

/// Units behind all others because of a soft pin, by its end.
#[derive(Debug, Default)]
pub(super) struct SoftPins {
    by_end: BTreeMap<(ClusterTime, u64), KeyHash>,
    end_of: HashMap<KeyHash, ClusterTime>,
}

impl SoftPins {
    fn insert(&mut self, unit: KeyHash, until: ClusterTime) {
        self.forget(unit);
        self.by_end.insert((until, unit.to_u64()), unit);
        self.end_of.insert(unit, until);
    }

    /// Forgets a unit that is gone, or whose pin is looked up again.
    pub(super) fn forget(&mut self, unit: KeyHash) {
        if let Some(until) = self.end_of.remove(&unit) {
            self.by_end.remove(&(until, unit.to_u64()));
        }
    }

    /// Removes and returns a unit whose pin has ended.
    fn ended(&mut self, now: ClusterTime) -> Option<KeyHash> {
        let unit = self.by_end.first_entry().filter(|entry| entry.key().0 <= now)?.remove();
        self.end_of.remove(&unit);
        Some(unit)
    }
}

impl Evictor {
    /// Takes a unit out of the order if one of its objects is pinned. Returns whether it is out.
    ///
    /// The pins are those of the index now, which may be ahead of the order: a soft-pinned candidate may have been
    /// replaced by a hard-pinned version since. A soft pin takes no unit out of the class of the soft-pinned ones.
    pub(super) fn take_out_pinned(
        &mut self,
        place: UnitPosition,
        it: Tracked,
        class: Class,
        found: &UnitObjects,
        now: ClusterTime,
    ) -> bool {
        if found.is_hard_pinned() {
            self.soft_pins.forget(it.hash);
            self.change(place, |policy| policy.pin(place.unit, true));
            return true;
        }
        if class == Class::Soft {
            return false;
        }
        let pins = found.objects.iter().map(|object| object.pin.at(now));
        let Some(until) = pins.filter_map(Pin::soft_until).max() else { return false };
        self.change(place, |policy| policy.pin(place.unit, false));
        self.soft_pins.insert(it.hash, until);
        true
    }

    /// Brings units back into the order whose soft pins have ended, a slice at each call.
    pub(super) fn end_soft_pins(&mut self, now: ClusterTime) {
        for _ in 0..bound(PINS_PER_CHOICE, 2) {
            let Some(unit) = self.soft_pins.ended(now) else { return };
            if let Some(place) = self.find(unit) {
                self.change(place, |policy| policy.unpin(place.unit));
            }
        }
    }

    /// Brings units back into the order that have no hard-pinned object any more, and drops those without any object.
    /// Looks at `looks` units at most, one of each order in turn. Returns whether one came back.
    ///
    /// A hard pin ends with its object. That of a group's member may end without a word about the group: the member was
    /// removed, lost, or replaced by a version outside of the group.
    pub(super) fn end_hard_pins(&mut self, looks: usize, state: &State) -> bool {
        let mut came_back = false;
        for _ in 0..looks {
            let Some(order) = self.orders.with_hard_after(self.hard_looked) else { break };
            self.hard_looked = order;
            let oldest = self.orders.policy(order).and_then(|policy| {
                let unit = policy.oldest_hard()?;
                Some((unit, *policy.get(unit)?))
            });
            let Some((unit, it)) = oldest else { break };
            let found = UnitObjects::of(it, state);
            if found.objects.is_empty() {
                self.forget(it.hash);
                self.orders.change(order, |policy| policy.remove(unit));
            } else if found.is_hard_pinned() {
                self.orders.change(order, |policy| policy.pin(unit, true));
            } else {
                self.orders.change(order, |policy| policy.unpin(unit));
                came_back = true;
            }
        }
        came_back
    }
}

impl UnitObjects {
    fn is_hard_pinned(&self) -> bool {
        self.objects.iter().any(|object| object.pin.is_hard())
    }
}

#[cfg(test)]
mod tests {
    use mc_index::{
        Change, Command, EvictItem, Memory, MountStore, Op, PutEndItem, PutStartItem, RemoveItem, Settings,
        Stamp,
    };
    use mc_types::{GrantKey, PinAction, PutId, PutMode, SegmentEpoch, StoreId};

    use super::super::{EvictionGoal, Scope};
    use super::*;
    use crate::Leases;

    fn unit(n: u8) -> KeyHash {
        KeyHash::of("", &[n])
    }

    #[test]
    fn a_unit_has_one_soft_pin_until_it_ends_or_the_unit_is_gone() {
        let mut pins = SoftPins::default();
        pins.insert(unit(1), ClusterTime(10));
        pins.insert(unit(2), ClusterTime(10));
        pins.insert(unit(3), ClusterTime(20));
        pins.insert(unit(2), ClusterTime(30));
        pins.forget(unit(3));
        assert_eq!(pins.ended(ClusterTime(9)), None);
        assert_eq!(pins.ended(ClusterTime(29)), Some(unit(1)));
        assert_eq!(pins.ended(ClusterTime(29)), None, "the pin of 2 was prolonged, and 3 is gone");
        assert_eq!(pins.ended(ClusterTime(30)), Some(unit(2)));
        assert!(pins.by_end.is_empty() && pins.end_of.is_empty());
    }

    #[test]
    fn soft_pins_of_evicted_removed_and_replaced_objects_are_forgotten() {
        let (mut state, mut evictor, mut index) = (State::new(Settings::default()), Evictor::default(), 0);
        let mut apply = |evictor: &mut Evictor, op: Op| {
            index += 1;
            let command = Command { stamp: Stamp { term: 1, ..Stamp::default() }, op };
            let response = state.apply(index, 1, &command);
            if let Some(change) = Change::of(&command, &response) {
                evictor.follow(&change, &state);
            }
            state.clone()
        };
        let mount = MountStore {
            store: StoreId(1),
            epoch: SegmentEpoch(1),
            name: "a".into(),
            grant_key: GrantKey([0; 32]),
            endpoints: Vec::new(),
            segments: vec![1 << 20],
            http: String::new(),
        };
        apply(&mut evictor, Op::MountStore(mount));
        let mut put = |evictor: &mut Evictor, put: u128, key: u8, pin: PinAction<ClusterTime>| {
            let new = PutStartItem::new(PutId(put), &[key], 64, ClusterTime(1000));
            let items = vec![PutStartItem { mode: PutMode::Upsert, pin, ..new }];
            apply(evictor, Op::PutStart { tenant: String::new(), items });
            apply(evictor, Op::PutEnd { items: vec![PutEndItem::new(PutId(put), unit(key), 0)] })
        };
        let soft = PinAction::Soft(ClusterTime(60_000));
        for n in 1..=3 {
            put(&mut evictor, n.into(), n, soft);
        }
        let state = put(&mut evictor, 4, 4, PinAction::Preserve);
        let scope = Scope::Memory(Memory::Common);
        let want = EvictionGoal { scope, bytes: 64, objects: 0, max: 10 };
        let choose = |evictor: &mut Evictor, state: &State| -> Vec<EvictItem> {
            evictor.choose(want, state, &Leases::new(), ClusterTime(1), &[]).items
        };
        assert_eq!(choose(&mut evictor, &state)[0].version, PutId(4));
        assert_eq!(evictor.soft_pins.by_end.len(), 3, "all were candidates");
        let state = put(&mut evictor, 5, 3, PinAction::Preserve);
        assert_eq!(evictor.soft_pins.by_end.len(), 2, "its pin is looked up again");
        let evicted = choose(&mut evictor, &state);
        assert_eq!(
            (evicted.len(), evictor.soft_pins.by_end.len()),
            (1, 2),
            "one is evicted, one is looked up"
        );
        let rest: Vec<RemoveItem> = [(1u8, 1u128), (2, 2), (3, 5)]
            .into_iter()
            .map(|(key, put)| RemoveItem { key: vec![key], version: PutId(put), reuse_at: ClusterTime(0) })
            .collect();
        apply(&mut evictor, Op::Remove { tenant: String::new(), items: rest });
        assert!(evictor.soft_pins.by_end.is_empty() && evictor.soft_pins.end_of.is_empty());
    }
}
