mod aside;
mod clearing;
mod orders;
mod pins;

pub use clearing::ClearingStep;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use mc_index::{
    Change, EvictItem, EvictionUnit, GroupView, HashedObject, KeyHash, Memory, ObjectAge, State, TenantName,
    bound, reuse_epoch,
};
use mc_types::{ClusterTime, MAX_ITEMS, StoreId};
use smallvec::SmallVec;

use super::grow::Table;
use super::leases::Leases;
use super::policy::{Policy, Unit, VictimQueue};
use aside::Aside;
use orders::{Class, OrderScope, Orders, Part};
use pins::SoftPins;

/// Maximum number of objects that a leader evicts in one entry, besides the rest of the last group. The index is locked
/// against changes while they are chosen.
pub const OBJECTS_PER_ENTRY: usize = 512;
/// The same while puts wait for the room. An entry of 512 takes longer to commit than to apply, and puts of large objects
/// in a pool of small ones wait for a hundred of them.
pub const OBJECTS_PER_ENTRY_FOR_PUTS: usize = 2048;
/// Interval between two entries in which a leader notes reused objects.
pub const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of objects in such an entry.
pub const NOTES_PER_ENTRY: usize = MAX_ITEMS;

/// Maximum number of candidates that are passed over for each victim, because they are leased or on other stores.
const LOOKS_PER_VICTIM: usize = 4;
/// Number of candidates that are passed over beyond that: the leased ones of one call lie side by side.
const FIRST_LOOKS: usize = 64;

/// Number of units that are checked against the index at a time, once many of them may be gone.
const PRUNE_SLICE: usize = 1024;

/// Maximum number of reused units that wait to be noted in the index. Further ones are noted when they are used again.
const NOTES_MAX: usize = 64 << 10;

/// Maximum number of pins that one choice looks up, and of those that it ends.
const PINS_PER_CHOICE: usize = 1024;
/// Number of units with a hard pin that each choice looks at again.
const HARD_PINS_PER_CHOICE: usize = 32;

/// Maximum number of units whose objects are gone that one choice drops. A `remove_all` leaves any number of them.
const GONE_PER_CHOICE: usize = 1024;

/// Maximum number of candidates that are looked up together.
const AHEAD_MAX: usize = 32;

const ALL_PARTS: &[Part] = &[Part::Shared, Part::Own];

/// Room that objects compete for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The stores of a memory. [`Memory::Common`] is the pool, whose limits on objects count those on all stores.
    Memory(Memory),
    /// The quota of a tenant, which counts its objects on all stores.
    Quota(TenantName),
}

/// Extent of one eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionGoal {
    /// Where room is made.
    pub scope: Scope,
    /// Bytes to free, at least. With 0, the pool evicts objects on stores of one tenant, too.
    pub bytes: u64,
    /// Objects to evict, at least.
    pub objects: u64,
    /// Maximum number of objects, besides the rest of the last group.
    pub max: usize,
}

/// Objects chosen for one eviction. Their versions are marked in the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Victims {
    /// Objects to evict.
    pub items: Vec<EvictItem>,
    /// Order of the put of each (see [`mc_index::allocation_order`]).
    pub put_orders: Vec<u64>,
    /// Bytes that their replicas free on the stores that count.
    pub bytes: u64,
    /// Why fewer were chosen than wanted, if that is not for the number of objects.
    pub blocked: Option<EvictionBlocked>,
}

impl Victims {
    fn add(&mut self, object: &HashedObject) {
        self.items.push(EvictItem { key: object.key, version: object.version });
        self.put_orders.push(object.put_order);
    }

    fn is_enough(&self, want: &EvictionGoal) -> bool {
        let enough = self.bytes >= want.bytes && self.items.len() as u64 >= want.objects;
        enough || self.items.len() >= want.max
    }
}

/// Why no more objects can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionBlocked {
    /// No object is left.
    Empty,
    /// The next candidates are leased by readers, or lie on stores that do not count.
    Leased,
    /// No object is left but hard-pinned ones.
    Pinned,
    /// Puts in flight take as much of the pool as they may evict.
    InFlight,
}

/// Follows the objects of the index and their use, and chooses which to evict.
///
/// It costs constant work for each object put, read, removed or evicted, and ranks the order of a tenant when its next
/// victim changes. Its units are groups, known by the hash of their id, and objects without a group, known by the hash of
/// their key. When two keys share one, the order of both is that of the last used, and they are evicted together.
///
/// Units whose objects lie on stores of their tenant alone are in the tenant's *own order*. All other units are in the *shared
/// orders*: one for each tenant with a quota, and the common one. The pool takes the candidate of the shared orders that was
/// used longest ago, and that of all orders where it is short of objects alone. The memory of a tenant takes its own order. A
/// tenant at its quota takes both of its orders.
///
/// An object moves to the order of its latest version. A group moves to a shared order when a member joins that is not on own
/// stores. It moves back only when it is a candidate and nothing of it is left on common stores.
#[derive(Debug, Default)]
pub struct Evictor {
    orders: Orders,
    units: Table<UnitPosition>,
    /// Order and unit to check next against the index.
    prune_from: (usize, usize),
    /// Epoch of reuse now (see [`mc_index::reuse_epoch`]).
    epoch: u32,
    /// Reused units whose epoch in the index is behind.
    to_note: VecDeque<KeyHash>,
    /// Soft-pinned units that were candidates.
    soft_pins: SoftPins,
    /// Order of the last look at units that were taken out for a hard pin, by which each has its turn.
    hard_looked: usize,
    /// Candidates on stores that did not count lately.
    aside: Aside,
    /// Number of choices of a clearing so far, the seed of the next one.
    clearings: u64,
    /// Tenants with an order that have put objects since they were taken last.
    touched: BTreeSet<TenantName>,
    /// State of the limits (see [`State::limits_changed`]) for which the orders are known to be right.
    limits: u64,
}

/// A unit in an order.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    /// Hash of its key, or of its group.
    hash: KeyHash,
    is_group: bool,
    /// Epoch of the last reuse that the index records, or will record with the next note.
    noted: u32,
}

/// Position of a unit in the orders.
#[derive(Clone, Copy, Debug)]
struct UnitPosition {
    order: u32,
    unit: Unit,
}

impl Evictor {
    /// Begins with the objects of `state`: those that were noted as reused by the epoch of their last use, the others
    /// in the order in which they were put.
    pub fn of(state: &State) -> Self {
        let mut groups: HashMap<KeyHash, ObjectAge> = HashMap::new();
        let mut ages = Vec::new();
        for age in state.ages() {
            let Some(group) = age.unit.group else {
                ages.push((age.key, age));
                continue;
            };
            let known = groups.entry(group.unit()).or_insert(age);
            (known.reused, known.put) = (known.reused.max(age.reused), known.put.max(age.put));
            known.unit.is_on_own_stores &= age.unit.is_on_own_stores;
        }
        ages.extend(groups);
        ages.sort_unstable_by_key(|(hash, age)| (age.reused, age.put, hash.to_u64()));
        let limits = state.limits_changed();
        let mut evictor = Self { epoch: reuse_epoch(state.time()), limits, ..Self::default() };
        if let Some(share) = state.once_share() {
            evictor.orders.change(0, |policy| policy.set_once_share(share));
        }
        for (hash, ObjectAge { unit, reused: noted, .. }) in ages {
            evictor.orders.begin_call();
            evictor.restore(Tracked { hash, is_group: unit.group.is_some(), noted }, unit, state);
        }
        evictor.touched = evictor.orders.tenants(ALL_PARTS).copied().collect();
        evictor
    }

    /// Takes tenants whose use may have passed a watermark of their quota: those that have put objects since, and all of
    /// them after a change of limits; at most `max`.
    pub fn take_touched(&mut self, max: usize) -> Vec<TenantName> {
        std::iter::from_fn(|| self.touched.pop_first()).take(max).collect()
    }

    /// Has a tenant looked at again.
    pub fn touch_tenant(&mut self, tenant: TenantName) {
        self.touched.insert(tenant);
    }

    /// Whether other tenants have a quota than when the orders were made, so that the evictor must begin again. Own orders do
    /// not depend on quotas.
    #[must_use]
    pub fn is_outdated(&mut self, state: &State) -> bool {
        if self.limits == state.limits_changed() {
            return false;
        }
        let limited = |tenant: &TenantName| state.has_quota(tenant);
        let is_new = |tenant: &TenantName| limited(tenant) && !self.is_apart(tenant);
        let mut with_objects = state.tenants().filter(|tenant| tenant.usage.objects.count > 0);
        let outdated = self.orders.tenants(&[Part::Shared]).any(|tenant| !limited(tenant))
            || state.has_quotas() && with_objects.any(|tenant| is_new(&tenant.name));
        if !outdated {
            self.limits = state.limits_changed();
            self.orders.set_limited(limited);
            self.touched.extend(self.orders.tenants(ALL_PARTS));
        }
        outdated
    }

    /// Brings the epoch of reuse up to date.
    pub fn set_time(&mut self, now: ClusterTime) {
        self.epoch = reuse_epoch(now);
    }

    /// Takes at most `max` units whose reuse is to be noted in the index ([`mc_index::Op::NoteReuse`]), and returns an
    /// object of each with the epoch and the share of the once-seen queue. `None` if there are none.
    ///
    /// A unit is noted at most once in an epoch. When an entry with notes is lost, a next leader orders these units as
    /// if they were used earlier.
    pub fn take_notes(&mut self, max: usize, state: &State) -> Option<(Vec<KeyHash>, u32, u32)> {
        let units: Vec<_> = self.to_note.drain(..max.min(self.to_note.len())).collect();
        let object = |hash: KeyHash| match self.tracked(hash)?.is_group {
            true => Some(state.group_of_unit(hash)?.members.first()?.key),
            false => Some(hash),
        };
        let keys: Vec<_> = units.into_iter().filter_map(object).collect();
        let once_share = self.orders.policy(0)?.once_share();
        (!keys.is_empty()).then_some((keys, self.epoch, once_share))
    }

    /// Number of units in the orders.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Number of orders, those included that are free for further tenants.
    pub fn orders(&self) -> usize {
        self.orders.len()
    }

    /// Whether there are no units.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the order of a unit, made when it is needed first.
    ///
    /// After a change of limits that [`Self::is_outdated`] has not looked at, older units of a tenant may be in the common
    /// order. Its further units join those, so that the tenant is found to need an order with all of them.
    fn order_of(&mut self, unit: EvictionUnit, state: &State) -> usize {
        let is_stale = self.limits != state.limits_changed() && !self.is_apart(&unit.tenant);
        let has_quota = !is_stale && state.has_quota(&unit.tenant);
        match (unit.is_on_own_stores, has_quota) {
            (true, _) => self.orders.make_own(unit.tenant, has_quota),
            (false, true) => self.orders.make(unit.tenant, Part::Shared),
            (false, false) => 0,
        }
    }

    /// Whether no units of a tenant are in the common order, as long as it keeps its quota.
    fn is_apart(&self, tenant: &TenantName) -> bool {
        self.has_order(tenant) || self.orders.is_limited(tenant)
    }

    /// Adds a unit as the most recent one of its queue.
    fn restore(&mut self, it: Tracked, of: EvictionUnit, state: &State) {
        let order = self.order_of(of, state);
        self.enter(it, order, it.noted > 0);
    }

    fn enter(&mut self, it: Tracked, order: usize, is_reused: bool) -> UnitPosition {
        let call = self.orders.call();
        let unit = self.orders.change(order, |policy| policy.restore(it.hash.to_u64(), is_reused, call, it));
        self.add(it.hash, order, unit)
    }

    /// Moves a unit to the order that one of its objects belongs to. A group in a shared order stays in those.
    fn settle(&mut self, place: UnitPosition, mut of: EvictionUnit, state: &State) -> UnitPosition {
        let is_own = self.orders.part(place.order as usize) == Part::Own;
        of.is_on_own_stores &= is_own || of.group.is_none();
        let order = self.order_of(of, state);
        self.move_to(place, order)
    }

    /// Moves a unit of a shared order to the own one if nothing of it is left on common stores. Returns whether it was moved.
    fn move_to_own(&mut self, place: UnitPosition, objects: &[HashedObject], state: &State) -> bool {
        let mut owners = objects.iter().flat_map(|object| &object.stores).map(|store| state.owner(*store));
        let Some(owner) = owners.next().flatten() else { return false };
        let is_shared = self.orders.part(place.order as usize) == Part::Shared;
        if !is_shared || owners.any(|other| other != Some(owner)) {
            return false;
        }
        let of = objects.first().and_then(|object| state.unit_of(object.key));
        let Some(of) = of.filter(|of| of.tenant == owner) else { return false };
        let order = self.order_of(EvictionUnit { is_on_own_stores: true, ..of }, state);
        self.move_to(place, order);
        true
    }

    /// Moves a unit to an order, as the most recent one of its queue.
    fn move_to(&mut self, place: UnitPosition, order: usize) -> UnitPosition {
        let Some(it) = tracked(&self.orders, place).copied().filter(|_| place.order as usize != order) else {
            return place;
        };
        self.forget(it.hash);
        let is_reused = self.change(place, |policy| {
            policy.unpin(place.unit);
            let is_reused = policy.is_reused(place.unit);
            policy.remove(place.unit);
            is_reused
        });
        self.enter(it, order, is_reused)
    }

    fn find(&self, hash: KeyHash) -> Option<UnitPosition> {
        let is_it = |place: &UnitPosition| tracked(&self.orders, *place).is_some_and(|it| it.hash == hash);
        self.units.find(hash.to_u64(), is_it).copied()
    }

    fn tracked(&self, hash: KeyHash) -> Option<&Tracked> {
        tracked(&self.orders, self.find(hash)?)
    }

    fn add(&mut self, hash: KeyHash, order: usize, unit: Unit) -> UnitPosition {
        let orders = &self.orders;
        let hash_of = |place: &UnitPosition| tracked(orders, *place).map_or(0, |it| it.hash.to_u64());
        let place = UnitPosition { order: u32::try_from(order).unwrap_or_default(), unit };
        self.units.insert(hash.to_u64(), place, hash_of);
        place
    }

    fn forget(&mut self, hash: KeyHash) -> Option<UnitPosition> {
        self.soft_pins.forget(hash);
        let orders = &self.orders;
        let is_it = |place: &UnitPosition| tracked(orders, *place).is_some_and(|it| it.hash == hash);
        self.units.take(hash.to_u64(), is_it)
    }

    /// Changes the order that a unit is in.
    fn change<R>(&mut self, place: UnitPosition, change: impl FnOnce(&mut Policy<Tracked>) -> R) -> R {
        self.orders.change(place.order as usize, change)
    }

    /// Follows a change of the index, which `state` has gone through.
    pub fn follow(&mut self, change: &Change, state: &State) {
        match change {
            Change::Put(keys) => {
                self.orders.begin_call();
                for &key in keys.iter().rev() {
                    self.put(key, state);
                }
            }
            Change::Gone(keys) => {
                for &key in keys {
                    if let Some(place) = self.forget(key) {
                        self.change(place, |policy| policy.remove(place.unit));
                    }
                }
            }
        }
    }

    /// Records that an object was put or replaced.
    fn put(&mut self, key: KeyHash, state: &State) {
        let of = if state.has_units() || self.orders.has_tenants() { state.unit_of(key) } else { None };
        let group = of.and_then(|of| of.group);
        let hash = group.map_or(key, |group| group.unit());
        let call = self.orders.call();
        let place = match self.find(hash) {
            Some(place) => {
                self.change(place, |policy| {
                    match group {
                        // A further part of the group was put, which is no reuse.
                        Some(_) => policy.defer(place.unit, call),
                        None => policy.hit(place.unit, call),
                    }
                    // The new version may have another pin. The next choice that meets it looks it up.
                    policy.unpin(place.unit);
                    if let Some(replaced) = policy.get_mut(place.unit).filter(|_| group.is_none()) {
                        replaced.noted = 0;
                    }
                });
                self.soft_pins.forget(hash);
                of.map_or(place, |of| self.settle(place, of, state))
            }
            None => {
                let order = of.map_or(0, |of| self.order_of(of, state));
                let tracked = Tracked { hash, is_group: group.is_some(), noted: 0 };
                let unit = self.orders.change(order, |policy| policy.insert(hash.to_u64(), call, tracked));
                self.add(hash, order, unit)
            }
        };
        if let Some(of) = of.filter(|_| place.order > 0) {
            self.touched.insert(of.tenant);
        }
        self.note(place);
    }

    /// Records that one call found these units, in the order of the call: hashes of groups, and of keys of objects without
    /// one.
    ///
    /// They are used from the last to the first. A call names the blocks of a prefix in their order, and a block is of
    /// no use without those before it, so the first one must be evicted last.
    pub fn hit(&mut self, units: &[KeyHash]) {
        self.orders.begin_call();
        // All are looked up first, so that the look-ups wait for memory together. One that is not found has just been evicted
        // or removed.
        let used: Vec<UnitPosition> = units.iter().rev().filter_map(|unit| self.find(*unit)).collect();
        self.orders.hit(used.iter().map(|place| (place.order as usize, place.unit)));
        for place in used {
            self.note(place);
        }
    }

    /// Lets a reused unit be noted in the index, once in an epoch.
    fn note(&mut self, place: UnitPosition) {
        if self.to_note.len() >= NOTES_MAX {
            return;
        }
        let reused = self.orders.reused_mut(place.order as usize, place.unit);
        if let Some(it) = reused.filter(|it| it.noted < self.epoch) {
            it.noted = self.epoch;
            self.to_note.push_back(it.hash);
        }
    }

    /// Chooses objects to evict and marks their versions in `leases`. Only bytes on stores that are not in `without`,
    /// which is sorted, count, and units without such bytes stay. `without` has the stores outside of the memory and the
    /// suspect ones (see [`State::stores_outside`]); for a quota, it is empty. Where the pool is short of objects alone,
    /// units in own orders go whatever bytes count. Soft-pinned units are chosen only when not enough others can be,
    /// hard-pinned ones never. A group is chosen with all its members, or not at all: one leased or pinned member protects
    /// the others. Marks that were taken back again are told by [`Leases::marks_taken_back`].
    ///
    /// Candidates that are leased go to the other end of their queue, and those that stay go aside until their stores count
    /// again. After four of them for each victim, and 64 more, the choice stops, so that its cost depends on the number of
    /// victims alone. A pin is looked up when its unit becomes a candidate, at most 1,024 times in
    /// one choice, and as many units are dropped whose objects are gone. If such a limit is reached, less than wanted may be
    /// chosen, or nothing, and `blocked` is `None`: the next choice goes on. [`EvictionBlocked::Leased`] means that all without a pin
    /// were passed over, by this choice and those before it for the same tenant or for the pool.
    pub fn choose(
        &mut self,
        want: EvictionGoal,
        state: &State,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> Victims {
        self.end_soft_pins(now);
        self.end_hard_pins(HARD_PINS_PER_CHOICE, state);
        let Some(scope) = self.orders_of(&want) else {
            return Victims { blocked: Some(EvictionBlocked::Empty), ..Victims::default() };
        };
        self.look_aside(want.scope, scope, state, without);
        let chosen = self.choose_in(scope, want, state, leases, now, without);
        self.orders.end_choice();
        chosen
    }

    /// Returns the orders that a choice takes units from; `None` if there are none.
    fn orders_of(&self, want: &EvictionGoal) -> Option<OrderScope> {
        let of = |tenant: TenantName, part| self.orders.of(&tenant, part);
        let orders = match want.scope {
            Scope::Memory(Memory::Common) => {
                let parts = if want.bytes == 0 { ALL_PARTS } else { &[Part::Shared] };
                return Some(OrderScope::Parts(parts));
            }
            Scope::Memory(Memory::OwnedBy(tenant)) => [None, of(tenant, Part::Own)],
            Scope::Quota(tenant) => [of(tenant, Part::Shared), of(tenant, Part::Own)],
        };
        orders.iter().any(Option::is_some).then_some(OrderScope::Orders(orders))
    }

    fn choose_in(
        &mut self,
        scope: OrderScope,
        want: EvictionGoal,
        state: &State,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> Victims {
        let mut chosen = Victims::default();
        let mut ahead: HashMap<usize, Prefetched> = HashMap::new();
        let mut leased = false;
        for class in [Class::Unpinned, Class::Soft] {
            let (mut looks, mut pins, mut gone) = (0, 0, 0);
            let before = chosen.items.len();
            loop {
                if chosen.is_enough(&want)
                    || pins >= bound(PINS_PER_CHOICE, 2)
                    || gone >= bound(GONE_PER_CHOICE, 2)
                {
                    return chosen;
                }
                if looks >= FIRST_LOOKS + LOOKS_PER_VICTIM * (chosen.items.len() - before) {
                    if class == Class::Unpinned && !self.orders.all_passed_over(scope) {
                        // Others without a pin may be free: they are left to the next choice, soft-pinned ones to a later
                        // one.
                        return chosen;
                    }
                    leased = true;
                    break;
                }
                let Some(order) = self.orders.next(scope, class) else { break };
                // All of one queue may be leased while the other has victims: those that stay give way to it.
                let turn = if self.orders.stayed(order).is_multiple_of(2) {
                    VictimQueue::ByShare
                } else {
                    VictimQueue::Other
                };
                let Some((place, it)) = self.candidate(order, class, turn) else { break };
                ahead.entry(order).or_default().pass(|units| self.prefetch(place, units, state));
                let found = UnitObjects::of(it, state);
                if self.take_out_pinned(place, it, class, &found, now) {
                    pins += 1;
                    continue;
                }
                let tried = self.try_evict(scope, place, it, found, &mut chosen, state, leases, now, without);
                match tried {
                    CandidateOutcome::Chosen => {}
                    CandidateOutcome::Gone => gone += 1,
                    CandidateOutcome::Leased | CandidateOutcome::Aside => {
                        looks += 1;
                        self.orders.stay(order);
                    }
                }
                if class == Class::Unpinned {
                    match tried {
                        CandidateOutcome::Chosen | CandidateOutcome::Gone => self.orders.start_over(scope),
                        CandidateOutcome::Leased => self.orders.pass_over(scope, order),
                        // It is no candidate any more, so that fewer are left to pass over.
                        CandidateOutcome::Aside => {}
                    }
                }
            }
        }
        if !leased && self.orders.has_hard(scope) && self.end_hard_pins(bound(PINS_PER_CHOICE, 2), state) {
            return chosen;
        }
        chosen.blocked = Some(match leased || self.orders.has_aside(scope) {
            true => EvictionBlocked::Leased,
            false if self.orders.has_hard(scope) => EvictionBlocked::Pinned,
            false => EvictionBlocked::Empty,
        });
        chosen
    }

    /// Whether a tenant has an order for its quota. One whose objects all lie on stores of its own needs none.
    pub fn has_order(&self, tenant: &TenantName) -> bool {
        self.orders.of(tenant, Part::Shared).is_some()
    }

    fn candidate(&self, order: usize, class: Class, turn: VictimQueue) -> Option<(UnitPosition, Tracked)> {
        let policy = self.orders.policy(order)?;
        let unit = match class {
            Class::Unpinned => policy.candidate_of(turn),
            Class::Soft => policy.soft_candidate(),
        }?;
        Some((UnitPosition { order: u32::try_from(order).ok()?, unit }, *policy.get(unit)?))
    }

    /// Looks up a candidate and those that follow it, so many in all, to bring them into the processor's cache.
    fn prefetch(&self, first: UnitPosition, units: usize, state: &State) {
        if let Some(policy) = self.orders.policy(first.order as usize) {
            let next = policy.from(first.unit).take(units);
            state.prefetch(next.filter(|it| !it.is_group).map(|it| it.hash));
        }
    }

    /// Adds the objects of a unit to the chosen ones and takes it out of the order, or defers it.
    #[expect(clippy::too_many_arguments, reason = "the parameters of a choice")]
    fn try_evict(
        &mut self,
        scope: OrderScope,
        place: UnitPosition,
        it: Tracked,
        found: UnitObjects,
        chosen: &mut Victims,
        state: &State,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> CandidateOutcome {
        let bytes = found.bytes_without(without);
        let UnitObjects { objects, is_joined } = found;
        // The pool meets own orders only where it is short of objects alone.
        let counts_anyway =
            matches!(scope, OrderScope::Parts(_)) && self.orders.part(place.order as usize) == Part::Own;
        if !objects.is_empty() && bytes == 0 && !counts_anyway {
            if !self.move_to_own(place, &objects, state) {
                self.set_aside(place, without);
            }
            return CandidateOutcome::Aside;
        }
        let is_free = || !is_joined && mark_all(leases, &objects, now);
        if !objects.is_empty() && !is_free() {
            // Counted as a use, so that the candidates of other orders have their turn.
            let call = self.orders.call();
            self.change(place, |policy| policy.defer(place.unit, call));
            return CandidateOutcome::Leased;
        }
        self.forget(it.hash);
        if objects.is_empty() {
            // Its store was dropped, it was removed with all others, or it belongs to a group now.
            self.change(place, |policy| policy.remove(place.unit));
            return CandidateOutcome::Gone;
        }
        self.change(place, |policy| policy.evict(place.unit));
        chosen.bytes += bytes;
        objects.iter().for_each(|object| chosen.add(object));
        CandidateOutcome::Chosen
    }

    /// Takes objects back into the order whose eviction was refused, as if they were seen once just now.
    pub fn keep(&mut self, items: &[EvictItem], state: &State) {
        for &EvictItem { key, .. } in items {
            let Some(of) = state.unit_of(key) else { continue };
            let hash = of.group.map_or(key, |group| group.unit());
            match self.find(hash) {
                None => self.restore(Tracked { hash, is_group: of.group.is_some(), noted: 0 }, of, state),
                Some(place) => _ = self.settle(place, of, state),
            }
        }
    }

    /// Drops units whose objects a dropped store took along, a slice at each call, while there seem to be many.
    pub fn prune(&mut self, state: &State) {
        self.orders.drop_empty();
        if self.len() as u64 <= state.objects() + state.objects() / 8 + bound(PRUNE_SLICE, 2) as u64 {
            return;
        }
        for _ in 0..bound(PRUNE_SLICE, 2) {
            let (order, at) = self.prune_from;
            let Some(policy) = self.orders.policy(order) else {
                self.prune_from = (0, 0);
                return;
            };
            let Some(unit) = policy.slot(at) else {
                self.prune_from = (order + 1, 0);
                continue;
            };
            self.prune_from = (order, at + 1);
            let it = unit.and_then(|unit| policy.get(unit)).copied();
            if let Some(it) = it.filter(|it| UnitObjects::of(*it, state).objects.is_empty())
                && let Some(place) = self.forget(it.hash)
            {
                self.change(place, |policy| policy.remove(place.unit));
            }
        }
    }
}

fn tracked(orders: &Orders, place: UnitPosition) -> Option<&Tracked> {
    orders.policy(place.order as usize)?.get(place.unit)
}

/// Outcome for a candidate that is not pinned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CandidateOutcome {
    /// Its objects are to be evicted.
    Chosen,
    /// It had no objects, and was dropped.
    Gone,
    /// It stays, because an object is leased or a put is about to join the group.
    Leased,
    /// The unit is set aside until its stores count again, or has moved to the own order of its tenant.
    Aside,
}

/// Objects of a unit, as the index has them.
struct UnitObjects {
    objects: SmallVec<[HashedObject; 1]>,
    /// Whether a put is about to join the group.
    is_joined: bool,
}

impl UnitObjects {
    fn of(it: Tracked, state: &State) -> Self {
        if it.is_group {
            let GroupView { members, joining, .. } = state.group_of_unit(it.hash).unwrap_or_default();
            return Self { objects: members.into(), is_joined: joining > 0 };
        }
        // An object that has joined a group since is evicted with that.
        let objects = state.with_hash(it.hash).filter(|object| object.group.is_none()).collect();
        Self { objects, is_joined: false }
    }

    /// Bytes that the objects have on stores that are not in `without`, which is sorted.
    fn bytes_without(&self, without: &[StoreId]) -> u64 {
        let counted = |object: &HashedObject| {
            let counts = object.stores.iter().filter(|store| without.binary_search(store).is_err());
            object.size * counts.count() as u64
        };
        self.objects.iter().map(counted).sum()
    }
}

/// Candidates of an order that are looked up ahead of their turn.
///
/// The look-ups of one candidate wait for memory in turn, and the processor overlaps those of several. The number grows
/// from one, because a choice may take a single candidate of each of many orders.
#[derive(Clone, Copy, Default)]
struct Prefetched {
    /// Candidates left that were looked up.
    left: usize,
    /// Number that was looked up last.
    last: usize,
}

impl Prefetched {
    /// Passes one candidate, and looks up the next ones with it if it was not looked up.
    fn pass(&mut self, look_up: impl FnOnce(usize)) {
        if self.left == 0 {
            self.last = (2 * self.last).clamp(1, AHEAD_MAX);
            self.left = self.last;
            look_up(self.last);
        }
        self.left -= 1;
    }
}

/// Marks all of these versions, or none if a lease runs on one.
fn mark_all(leases: &Leases, objects: &[HashedObject], now: ClusterTime) -> bool {
    for (at, object) in objects.iter().enumerate() {
        if !leases.mark(object.version, now) {
            leases.take_back(objects[..at].iter().map(|marked| marked.version));
            return false;
        }
    }
    true
}
