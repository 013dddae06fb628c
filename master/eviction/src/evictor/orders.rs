//! The orders of the tenants, ranked by their next victims: a choice for the pool looks only at the orders that it takes
//! units from, however many there are.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use mc_index::{TenantName, count_work};
use smallvec::SmallVec;

use super::Tracked;
use crate::policy::{Policy, Unit, VictimQueue};

/// Candidates for eviction, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Unpinned,
    Soft,
}

/// Part of the orders, by the stores that their objects lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// The common order and those of quotas: their objects lie, at least in part, on common stores.
    Shared,
    /// The orders of objects that lie on stores of their tenant alone.
    Own,
}

/// Orders of one choice.
#[derive(Clone, Copy, Debug)]
pub(super) enum OrderScope {
    /// All orders of some parts, for the pool.
    Parts(&'static [Part]),
    /// At least one order of a tenant.
    Orders([Option<usize>; 2]),
}

/// Rank of an order among all, least first: the call that used its candidate last, the candidates that have stayed in this
/// choice, and the number of the order.
type Rank = (u64, u32, Reverse<usize>);

/// The common order, and those of tenants that have units: one for a quota, and one for the tenant's own stores.
///
/// Policies are changed by [`Self::change`] and [`Self::hit`] alone, which rank the orders again. So the ranks are right
/// whenever they are asked.
#[derive(Debug)]
pub(super) struct Orders {
    /// The common order, then those of tenants.
    all: Vec<Order>,
    by_tenant: HashMap<(TenantName, Part), usize>,
    /// Numbers of orders that are free for further tenants.
    free: Vec<usize>,
    /// Orders that have lost their last unit.
    emptied: Vec<usize>,
    /// Number of calls so far. Units know its lower half, by which the policy tells uses of one call from those of several.
    calls: u64,
    /// Sums and sets of each part.
    parts: [PartSums; 2],
    /// Orders of which candidates have stayed in this choice.
    stayed: Vec<usize>,
}

/// Sums and sets of all orders of one part.
#[derive(Debug, Default)]
struct PartSums {
    /// Orders with a candidate, for each class.
    ranked: [BTreeSet<Rank>; 2],
    with_hard: BTreeSet<usize>,
    with_aside: BTreeSet<usize>,
    /// Number of units without a pin.
    unpinned: usize,
    /// Candidates without a pin that choices for the pool passed over one after the other.
    passed_over: usize,
}

/// Units in the order of eviction: of one tenant, or of all that have no order of their own.
#[derive(Debug, Default)]
struct Order {
    policy: Policy<Tracked>,
    /// The tenant; `None` for the common order, and for a free one.
    tenant: Option<(TenantName, Part)>,
    /// Whether the tenant of an own order had a quota when the orders were last known to be right.
    is_limited: bool,
    standing: Contribution,
    /// Candidates without a pin that choices for the tenant passed over one after the other.
    passed_over: usize,
    /// Candidates that have stayed in this choice.
    stayed: u32,
}

impl Order {
    fn part(&self) -> Part {
        self.tenant.map_or(Part::Shared, |(_, part)| part)
    }
}

/// Share of an order in the sums and sets of its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Contribution {
    ranks: [Option<Rank>; 2],
    has_hard: bool,
    has_aside: bool,
    unpinned: usize,
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            all: vec![Order::default()],
            by_tenant: HashMap::new(),
            free: Vec::new(),
            emptied: Vec::new(),
            calls: 0,
            parts: Default::default(),
            stayed: Vec::new(),
        }
    }
}

impl Orders {
    /// Number of orders, free ones included.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn policy(&self, order: usize) -> Option<&Policy<Tracked>> {
        Some(&self.all.get(order)?.policy)
    }

    /// Returns the part that an order belongs to.
    pub(super) fn part(&self, order: usize) -> Part {
        self.all.get(order).map_or(Part::Shared, Order::part)
    }

    /// Changes a policy, and ranks its order again. Orders are never removed, so that the number of one stays valid.
    pub(super) fn change<R>(&mut self, order: usize, change: impl FnOnce(&mut Policy<Tracked>) -> R) -> R {
        let result = change(&mut self.all[order].policy);
        if order > 0 && self.all[order].policy.is_empty() {
            self.emptied.push(order);
        }
        self.rank(order);
        result
    }

    /// Records that the present call used units, one after the other, and ranks their orders again.
    pub(super) fn hit(&mut self, units: impl Iterator<Item = (usize, Unit)>) {
        let call = self.call();
        let mut changed: SmallVec<[usize; 1]> = SmallVec::new();
        for (order, unit) in units {
            self.all[order].policy.hit(unit, call);
            if !changed.contains(&order) {
                changed.push(order);
            }
        }
        for order in changed {
            self.rank(order);
        }
    }

    /// Returns the data of a unit that was reused, to change it. No rank depends on it.
    pub(super) fn reused_mut(&mut self, order: usize, unit: Unit) -> Option<&mut Tracked> {
        let policy = &mut self.all.get_mut(order)?.policy;
        if policy.is_reused(unit) { policy.get_mut(unit) } else { None }
    }

    /// Whether a tenant has an order.
    pub(super) fn has_tenants(&self) -> bool {
        !self.by_tenant.is_empty()
    }

    /// Tenants with an order in some parts, once for each.
    pub(super) fn tenants(&self, parts: &'static [Part]) -> impl Iterator<Item = &TenantName> {
        let all = self.by_tenant.keys().inspect(|_| count_work(1));
        all.filter(|(_, part)| parts.contains(part)).map(|(tenant, _)| tenant)
    }

    /// Returns the order of a tenant in a part, if it has one.
    pub(super) fn of(&self, tenant: &TenantName, part: Part) -> Option<usize> {
        self.by_tenant.get(&(*tenant, part)).copied()
    }

    /// Returns the order of a tenant in a part, made when it is needed first.
    pub(super) fn make(&mut self, tenant: TenantName, part: Part) -> usize {
        *self.by_tenant.entry((tenant, part)).or_insert_with(|| {
            let order = self.free.pop().unwrap_or_else(|| {
                self.all.push(Order::default());
                self.all.len() - 1
            });
            self.all[order].tenant = Some((tenant, part));
            order
        })
    }

    /// Returns the own order of a tenant, made when it is needed first. It is `limited` from the first if the tenant is known
    /// to have a quota.
    pub(super) fn make_own(&mut self, tenant: TenantName, limited: bool) -> usize {
        let is_new = self.of(&tenant, Part::Own).is_none();
        let order = self.make(tenant, Part::Own);
        self.all[order].is_limited |= is_new && limited;
        order
    }

    /// Whether a tenant has an own order, and had a quota when the orders were last known to be right.
    pub(super) fn is_limited(&self, tenant: &TenantName) -> bool {
        self.of(tenant, Part::Own).is_some_and(|order| self.all[order].is_limited)
    }

    /// Records which tenants with an own order have a quota.
    pub(super) fn set_limited(&mut self, is_limited: impl Fn(&TenantName) -> bool) {
        for (&(tenant, part), &order) in &self.by_tenant {
            self.all[order].is_limited = part == Part::Own && is_limited(&tenant);
        }
    }

    /// Forgets the orders of tenants that have nothing left, with the ghosts in them.
    pub(super) fn drop_empty(&mut self) {
        for at in std::mem::take(&mut self.emptied) {
            let order = &mut self.all[at];
            if !order.policy.is_empty() {
                continue;
            }
            if let Some(key) = std::mem::take(order).tenant {
                self.by_tenant.remove(&key);
                self.free.push(at);
            }
        }
    }

    /// Begins the next call that uses units.
    pub(super) fn begin_call(&mut self) {
        self.calls = self.calls.wrapping_add(1);
    }

    /// Number of the present call, as units know it.
    pub(super) fn call(&self) -> u32 {
        self.calls as u32
    }

    /// Number of calls since a unit was used last.
    pub(super) fn age(&self, order: usize, unit: Unit) -> Option<u32> {
        Some(self.call().wrapping_sub(self.policy(order)?.last_used(unit)?))
    }

    /// Returns the order whose candidate was used longest ago; of several, the one of which fewer have stayed.
    pub(super) fn next(&self, scope: OrderScope, class: Class) -> Option<usize> {
        let class = class as usize;
        let least = match scope {
            OrderScope::Parts(parts) => self.of_parts(parts).filter_map(|it| it.ranked[class].first()).min(),
            OrderScope::Orders(orders) => {
                self.of_orders(orders).filter_map(|it| it.standing.ranks[class].as_ref()).min()
            }
        };
        least.map(|(_, _, Reverse(order))| *order)
    }

    fn of_parts(&self, parts: &'static [Part]) -> impl Iterator<Item = &PartSums> {
        parts.iter().map(|part| &self.parts[*part as usize])
    }

    fn of_orders(&self, orders: [Option<usize>; 2]) -> impl Iterator<Item = &Order> {
        orders.into_iter().flatten().map(|order| &self.all[order])
    }

    /// Whether there are units with a hard pin.
    pub(super) fn has_hard(&self, scope: OrderScope) -> bool {
        match scope {
            OrderScope::Parts(parts) => self.of_parts(parts).any(|it| !it.with_hard.is_empty()),
            OrderScope::Orders(orders) => self.of_orders(orders).any(|it| it.standing.has_hard),
        }
    }

    /// Whether there are units aside.
    pub(super) fn has_aside(&self, scope: OrderScope) -> bool {
        match scope {
            OrderScope::Parts(parts) => self.of_parts(parts).any(|it| !it.with_aside.is_empty()),
            OrderScope::Orders(orders) => self.of_orders(orders).any(|it| it.standing.has_aside),
        }
    }

    /// Orders of a part with units aside.
    pub(super) fn with_aside(&self, part: Part) -> impl Iterator<Item = usize> {
        self.parts[part as usize].with_aside.iter().copied().inspect(|_| count_work(1))
    }

    /// Returns the order with hard-pinned units that comes after another one, in turn.
    pub(super) fn with_hard_after(&self, order: usize) -> Option<usize> {
        let sets = || self.parts.iter().map(|part| &part.with_hard);
        let after = sets().filter_map(|set| set.range(order + 1..).next()).min();
        after.or_else(|| sets().filter_map(BTreeSet::first).min()).copied()
    }

    /// Whether all units without a pin were passed over one after the other, by choices in this scope.
    ///
    /// The pool counts for each part, and tenants for each of their orders. The candidates that others passed over tell nothing
    /// about those that a tenant has left, and a tenant finds victims among objects on suspect stores, which free nothing for
    /// the pool.
    pub(super) fn all_passed_over(&self, scope: OrderScope) -> bool {
        match scope {
            OrderScope::Parts(parts) => self.of_parts(parts).all(|it| it.passed_over >= it.unpinned),
            OrderScope::Orders(orders) => {
                self.of_orders(orders).all(|it| it.passed_over >= it.standing.unpinned)
            }
        }
    }

    /// Counts a candidate of an order that was passed over.
    pub(super) fn pass_over(&mut self, scope: OrderScope, order: usize) {
        match scope {
            OrderScope::Parts(_) => self.parts[self.part(order) as usize].passed_over += 1,
            OrderScope::Orders(_) => self.all[order].passed_over += 1,
        }
    }

    /// Forgets which candidates were passed over, once one was not.
    pub(super) fn start_over(&mut self, scope: OrderScope) {
        match scope {
            OrderScope::Parts(parts) => {
                parts.iter().for_each(|part| self.parts[*part as usize].passed_over = 0);
            }
            OrderScope::Orders(orders) => {
                orders.into_iter().flatten().for_each(|order| self.all[order].passed_over = 0);
            }
        }
    }

    /// Number of candidates of an order that have stayed in this choice.
    pub(super) fn stayed(&self, order: usize) -> u32 {
        self.all[order].stayed
    }

    /// Counts a candidate of an order that stays.
    pub(super) fn stay(&mut self, order: usize) {
        self.all[order].stayed += 1;
        self.stayed.push(order);
        self.rank(order);
    }

    /// Forgets which candidates have stayed.
    pub(super) fn end_choice(&mut self) {
        for order in std::mem::take(&mut self.stayed) {
            self.all[order].stayed = 0;
            self.rank(order);
        }
    }

    fn rank(&mut self, order: usize) {
        count_work(1);
        let policy = &self.all[order].policy;
        let now = Contribution {
            ranks: [policy.candidate_of(VictimQueue::ByShare), policy.soft_candidate()].map(|candidate| {
                let age = self.age(order, candidate?)?;
                Some((self.calls.saturating_sub(age.into()), self.all[order].stayed, Reverse(order)))
            }),
            has_hard: policy.has_hard(),
            has_aside: policy.aside() > 0,
            unpinned: policy.unpinned(),
        };
        let of_order = &mut self.all[order];
        let part = &mut self.parts[of_order.part() as usize];
        let before = std::mem::replace(&mut of_order.standing, now);
        part.unpinned = part.unpinned - before.unpinned + now.unpinned;
        // Units that have left are not left to pass over.
        part.passed_over = part.passed_over.min(part.unpinned);
        of_order.passed_over = of_order.passed_over.min(now.unpinned);
        for ((ranked, before), now) in part.ranked.iter_mut().zip(before.ranks).zip(now.ranks) {
            if before != now {
                before.inspect(|before| _ = ranked.remove(before));
                ranked.extend(now);
            }
        }
        let sets = [
            (&mut part.with_hard, before.has_hard, now.has_hard),
            (&mut part.with_aside, before.has_aside, now.has_aside),
        ];
        for (set, before, now) in sets {
            match (before, now) {
                (false, true) => _ = set.insert(order),
                (true, false) => _ = set.remove(&order),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mc_index::KeyHash;
    use proptest::prelude::*;

    use super::*;

    const BOTH: &[Part] = &[Part::Shared, Part::Own];

    /// The choice by a look at all orders of some parts, next one first.
    fn by_looking_at_all(orders: &Orders, parts: &[Part], class: Class) -> Vec<usize> {
        let rank = |(at, order): (usize, &Order)| {
            let unit = match class {
                Class::Unpinned => order.policy.candidate(),
                Class::Soft => order.policy.soft_candidate(),
            }?;
            Some((orders.age(at, unit)?, Reverse(order.stayed), at))
        };
        let of_parts = orders.all.iter().enumerate().filter(|(_, order)| parts.contains(&order.part()));
        let mut ranks: Vec<_> = of_parts.filter_map(rank).collect();
        ranks.sort_unstable();
        ranks.into_iter().rev().map(|(_, _, at)| at).collect()
    }

    #[test]
    fn the_common_order_keeps_what_it_has_learned_while_it_is_empty() {
        let mut orders = Orders::default();
        orders.change(0, |policy| policy.set_once_share(7 << 28));
        orders.drop_empty();
        assert_eq!(orders.policy(0).map(Policy::once_share), Some(7 << 28));
    }

    fn those(orders: &Orders, part: Part, has: impl Fn(&Policy<Tracked>) -> bool) -> BTreeSet<usize> {
        (0..orders.len()).filter(|at| orders.part(*at) == part && has(&orders.all[*at].policy)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn ranks_and_sums_are_those_of_a_look_at_all_orders(
            calls_before in prop_oneof![Just(0), u64::from(u32::MAX) - 60..=u64::from(u32::MAX)],
            steps in prop::collection::vec((0..14u8, 0..7u8, 0..40usize), 1..200),
        ) {
            let mut orders = Orders { calls: calls_before, ..Orders::default() };
            let mut units: Vec<(usize, Unit)> = Vec::new();
            for (key, (step, tenant, nth)) in (0u64..).zip(steps) {
                let call = orders.call();
                let chosen = (!units.is_empty()).then(|| nth % units.len());
                match (step, chosen) {
                    (0..=2, _) | (_, None) => {
                        orders.begin_call();
                        let order = match tenant {
                            0 => 0,
                            // Tenants 1 to 3 have two orders.
                            4.. => orders.make(TenantName::new(&[tenant - 3]), Part::Own),
                            _ => orders.make(TenantName::new(&[tenant]), Part::Shared),
                        };
                        let hash = KeyHash::of("", &key.to_le_bytes());
                        let it = Tracked { hash, is_group: false, noted: 0 };
                        let call = orders.call();
                        let unit = orders.change(order, |policy| policy.insert(hash.to_u64(), call, it));
                        units.push((order, unit));
                    }
                    (3, _) => orders.begin_call(),
                    (4, _) => orders.drop_empty(),
                    (5, _) => orders.end_choice(),
                    (_, Some(at)) => {
                        let (order, unit) = units[at];
                        match step {
                            6 => orders.hit([(order, unit), units[(at + 1) % units.len()]].into_iter()),
                            7 => orders.change(order, |policy| policy.defer(unit, call)),
                            8 => orders.change(order, |policy| policy.pin(unit, tenant < 3)),
                            9 => orders.change(order, |policy| policy.unpin(unit)),
                            10 => orders.change(order, |policy| policy.set_aside(unit)),
                            11 => orders.change(order, |policy| policy.look_aside(|_| tenant < 3)),
                            12 => orders.stay(order),
                            _ => {
                                units.swap_remove(at);
                                prop_assert!(orders.change(order, |policy| policy.evict(unit)).is_some());
                            }
                        }
                    }
                }
                for class in [Class::Unpinned, Class::Soft] {
                    for part in BOTH {
                        let ranked = orders.parts[*part as usize].ranked[class as usize].iter();
                        let ranked: Vec<_> = ranked.map(|(_, _, Reverse(order))| *order).collect();
                        prop_assert_eq!(ranked, by_looking_at_all(&orders, &[*part], class));
                    }
                    let first = by_looking_at_all(&orders, BOTH, class).first().copied();
                    prop_assert_eq!(orders.next(OrderScope::Parts(BOTH), class), first);
                    let tenant = TenantName::new(&[tenant]);
                    let of_tenant = BOTH.iter().map(|part| orders.of(&tenant, *part));
                    let [shared, own] = of_tenant.collect::<Vec<_>>()[..] else { unreachable!() };
                    let mut those = by_looking_at_all(&orders, BOTH, class);
                    those.retain(|order| [shared, own].contains(&Some(*order)));
                    let next = orders.next(OrderScope::Orders([shared, own]), class);
                    prop_assert_eq!(next, those.first().copied());
                }
                for part in BOTH {
                    let sums = &orders.parts[*part as usize];
                    prop_assert_eq!(&sums.with_hard, &those(&orders, *part, Policy::has_hard));
                    prop_assert_eq!(&sums.with_aside, &those(&orders, *part, |policy| policy.aside() > 0));
                    let of_part = orders.all.iter().filter(|order| order.part() == *part);
                    let unpinned: usize = of_part.map(|order| order.policy.unpinned()).sum();
                    prop_assert_eq!(sums.unpinned, unpinned);
                }
                // Hard pins have their turn whatever their part.
                let hard: Vec<_> = (0..orders.len()).filter(|at| orders.all[*at].policy.has_hard()).collect();
                let after = hard.iter().find(|at| **at > nth).or(hard.first()).copied();
                prop_assert_eq!(orders.with_hard_after(nth), after);
            }
            // Orders with units are those of their tenants, whatever was dropped and made again.
            orders.drop_empty();
            prop_assert_eq!(orders.by_tenant.len() + 1 + orders.free.len(), orders.len());
            for (key, order) in &orders.by_tenant {
                prop_assert_eq!(orders.all[*order].tenant, Some(*key));
            }
        }
    }
}
