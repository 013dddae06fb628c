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

/// Orders of one choice: that of a tenant, or all of them for the pool.
pub(super) type OrderScope = Option<usize>;

/// Rank of an order among all, least first: the call that used its candidate last, the candidates that have stayed in this
/// choice, and the number of the order.
type Rank = (u64, u32, Reverse<usize>);

/// The common order, and one for each tenant with a quota that has units.
///
/// Policies are changed by [`Self::change`] and [`Self::hit`] alone, which rank the orders again. So the ranks are right
/// whenever they are asked.
#[derive(Debug)]
pub(super) struct Orders {
    /// The common order, then those of tenants.
    all: Vec<Order>,
    by_tenant: HashMap<TenantName, usize>,
    /// Numbers of orders that are free for further tenants.
    free: Vec<usize>,
    /// Orders that have lost their last unit.
    emptied: Vec<usize>,
    /// Number of calls so far. Units know its lower half, by which the policy tells uses of one call from those of several.
    calls: u64,
    /// Orders with a candidate, for each class.
    ranked: [BTreeSet<Rank>; 2],
    with_hard: BTreeSet<usize>,
    with_aside: BTreeSet<usize>,
    /// Number of units without a pin.
    unpinned: usize,
    /// Candidates without a pin that choices for the pool passed over one after the other.
    passed_over: usize,
    /// Orders of which candidates have stayed in this choice.
    stayed: Vec<usize>,
}

/// Units of one tenant, or of all that have no quota, in the order of eviction.
#[derive(Debug, Default)]
struct Order {
    policy: Policy<Tracked>,
    /// The tenant; `None` for the common order, and for a free one.
    tenant: Option<TenantName>,
    standing: Contribution,
    /// Candidates without a pin that choices for the tenant passed over one after the other.
    passed_over: usize,
    /// Candidates that have stayed in this choice.
    stayed: u32,
}

/// Part of an order in the sums and sets of all.
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
            ranked: Default::default(),
            with_hard: BTreeSet::new(),
            with_aside: BTreeSet::new(),
            unpinned: 0,
            passed_over: 0,
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

    /// Tenants with an order of their own.
    pub(super) fn tenants(&self) -> impl Iterator<Item = &TenantName> {
        self.by_tenant.keys().inspect(|_| count_work(1))
    }

    /// Returns the order of a tenant, if it has one of its own.
    pub(super) fn of(&self, tenant: &TenantName) -> Option<usize> {
        self.by_tenant.get(tenant).copied()
    }

    /// Returns the order of a tenant, made when it is needed first.
    pub(super) fn make(&mut self, tenant: TenantName) -> usize {
        *self.by_tenant.entry(tenant).or_insert_with(|| {
            let order = self.free.pop().unwrap_or_else(|| {
                self.all.push(Order::default());
                self.all.len() - 1
            });
            self.all[order].tenant = Some(tenant);
            order
        })
    }

    /// Forgets the orders of tenants that have nothing left, with the ghosts in them.
    pub(super) fn drop_empty(&mut self) {
        for at in std::mem::take(&mut self.emptied) {
            let order = &mut self.all[at];
            if !order.policy.is_empty() {
                continue;
            }
            if let Some(tenant) = std::mem::take(order).tenant {
                self.by_tenant.remove(&tenant);
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
        match scope {
            None => self.ranked[class as usize].first().map(|(_, _, Reverse(order))| *order),
            Some(order) => self.all[order].standing.ranks[class as usize].map(|_| order),
        }
    }

    /// Number of units without a pin.
    pub(super) fn unpinned(&self, scope: OrderScope) -> usize {
        scope.map_or(self.unpinned, |order| self.all[order].standing.unpinned)
    }

    /// Whether there are units with a hard pin.
    pub(super) fn has_hard(&self, scope: OrderScope) -> bool {
        scope.map_or(!self.with_hard.is_empty(), |order| self.all[order].standing.has_hard)
    }

    /// Whether there are units aside.
    pub(super) fn has_aside(&self, scope: OrderScope) -> bool {
        scope.map_or(!self.with_aside.is_empty(), |order| self.all[order].standing.has_aside)
    }

    /// Orders with units aside.
    pub(super) fn with_aside(&self) -> impl Iterator<Item = usize> {
        self.with_aside.iter().copied().inspect(|_| count_work(1))
    }

    /// Returns the order with hard-pinned units that comes after another one, in turn.
    pub(super) fn with_hard_after(&self, order: usize) -> Option<usize> {
        self.with_hard.range(order + 1..).next().or_else(|| self.with_hard.first()).copied()
    }

    /// Number of candidates without a pin that choices in a scope passed over one after the other.
    ///
    /// Each scope counts its own. The candidates that others passed over tell nothing about those that a tenant has left,
    /// and a tenant finds victims among objects on suspect stores, which free nothing for the pool.
    pub(super) fn passed_over(&mut self, scope: OrderScope) -> &mut usize {
        match scope {
            None => &mut self.passed_over,
            Some(order) => &mut self.all[order].passed_over,
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
        let before = std::mem::replace(&mut self.all[order].standing, now);
        self.unpinned = self.unpinned - before.unpinned + now.unpinned;
        // Units that have left are not left to pass over.
        self.passed_over = self.passed_over.min(self.unpinned);
        let of_order = &mut self.all[order].passed_over;
        *of_order = (*of_order).min(now.unpinned);
        for ((ranked, before), now) in self.ranked.iter_mut().zip(before.ranks).zip(now.ranks) {
            if before != now {
                before.inspect(|before| _ = ranked.remove(before));
                ranked.extend(now);
            }
        }
        let sets = [
            (&mut self.with_hard, before.has_hard, now.has_hard),
            (&mut self.with_aside, before.has_aside, now.has_aside),
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

    /// The choice by a look at all orders, next one first.
    fn by_looking_at_all(orders: &Orders, class: Class) -> Vec<usize> {
        let rank = |(at, order): (usize, &Order)| {
            let unit = match class {
                Class::Unpinned => order.policy.candidate(),
                Class::Soft => order.policy.soft_candidate(),
            }?;
            Some((orders.age(at, unit)?, Reverse(order.stayed), at))
        };
        let mut ranks: Vec<_> = orders.all.iter().enumerate().filter_map(rank).collect();
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

    fn those(orders: &Orders, has: impl Fn(&Policy<Tracked>) -> bool) -> BTreeSet<usize> {
        (0..orders.len()).filter(|at| has(&orders.all[*at].policy)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn ranks_and_sums_are_those_of_a_look_at_all_orders(
            calls_before in prop_oneof![Just(0), u64::from(u32::MAX) - 60..=u64::from(u32::MAX)],
            steps in prop::collection::vec((0..14u8, 0..6u8, 0..40usize), 1..200),
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
                            _ => orders.make(TenantName::new(&[tenant])),
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
                    let ranked = orders.ranked[class as usize].iter().map(|(_, _, Reverse(order))| *order);
                    prop_assert_eq!(ranked.collect::<Vec<_>>(), by_looking_at_all(&orders, class));
                }
                prop_assert_eq!(&orders.with_hard, &those(&orders, Policy::has_hard));
                prop_assert_eq!(&orders.with_aside, &those(&orders, |policy| policy.aside() > 0));
                let unpinned: usize = orders.all.iter().map(|order| order.policy.unpinned()).sum();
                prop_assert_eq!(orders.unpinned, unpinned);
            }
            // Orders with units are those of their tenants, whatever was dropped and made again.
            orders.drop_empty();
            prop_assert_eq!(orders.by_tenant.len() + 1 + orders.free.len(), orders.len());
            for (tenant, order) in &orders.by_tenant {
                prop_assert_eq!(orders.all[*order].tenant, Some(*tenant));
            }
        }
    }
}
