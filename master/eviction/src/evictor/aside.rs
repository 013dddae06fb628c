//! Candidates on stores that do not count now, such as suspect ones. They keep their place in the order until the stores
//! count again: a store that was silent for a moment must not make its cold objects the last to go.

use std::collections::BTreeMap;

use mc_index::{State, bound};
use mc_types::StoreId;

use super::orders::{OrderScope, Part};
use super::{Evictor, Scope, Tracked, UnitObjects, UnitPosition};

/// Maximum number of units aside that one choice looks at, once other stores count.
const LOOKS_PER_CHOICE: usize = 1024;

/// Units set aside that are still to be looked at.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// Those of the shared orders.
    shared: Looks,
    /// Those of each own order that has units aside.
    own: BTreeMap<usize, Looks>,
}

/// Units set aside by choices for one memory.
#[derive(Debug, Default)]
struct Looks {
    /// Stores that did not count in the last choice for the memory, sorted.
    without: Vec<StoreId>,
    /// Number of units aside in each order that are to be looked at.
    left: BTreeMap<usize, usize>,
}

impl Evictor {
    /// Sets a unit aside, in a choice for the memory of its order.
    pub(super) fn set_aside(&mut self, place: UnitPosition, without: &[StoreId]) {
        let order = place.order as usize;
        self.change(place, |policy| policy.set_aside(place.unit));
        let looks = match self.orders.part(order) {
            Part::Shared => &mut self.aside.shared,
            Part::Own => {
                let looks = || Looks { without: without.to_vec(), left: BTreeMap::new() };
                self.aside.own.entry(order).or_insert_with(looks)
            }
        };
        // It is looked at before the others: one more look, so that the last of these gets its own.
        if let Some(left) = looks.left.get_mut(&order) {
            *left += 1;
        }
    }

    /// Takes units back into their order that would free bytes now, or that count wherever they lie, a slice at each choice.
    pub(super) fn look_aside(
        &mut self,
        scope: Scope,
        orders: OrderScope,
        state: &State,
        without: &[StoreId],
    ) {
        match orders {
            OrderScope::Parts(parts) => {
                let mut looks = std::mem::take(&mut self.aside.shared);
                self.look_again(&mut looks, None, state, without);
                self.aside.shared = looks;
                // In a choice of objects, those on own stores count.
                if parts.contains(&Part::Own) {
                    for _ in 0..bound(LOOKS_PER_CHOICE, 2) {
                        let Some(order) = self.orders.with_aside(Part::Own).next() else { break };
                        self.orders.change(order, |policy| policy.look_aside(|_| true));
                    }
                }
            }
            OrderScope::Orders(orders) => {
                for order in orders.into_iter().flatten() {
                    if matches!(scope, Scope::Quota(_)) {
                        // All stores count in a quota.
                        self.orders.change(order, |policy| {
                            let looks = policy.aside().min(bound(LOOKS_PER_CHOICE, 2));
                            (0..looks).for_each(|_| policy.look_aside(|_| true));
                        });
                    } else if let Some(mut looks) = self.aside.own.remove(&order) {
                        self.look_again(&mut looks, Some(order), state, without);
                        if self.orders.policy(order).is_some_and(|policy| policy.aside() > 0) {
                            self.aside.own.insert(order, looks);
                        }
                    }
                }
            }
        }
    }

    /// Looks at units aside in an own order, or in all shared ones, once other stores count than in the choice before.
    fn look_again(&mut self, looks: &mut Looks, own: Option<usize>, state: &State, without: &[StoreId]) {
        if looks.without != without {
            looks.without = without.to_vec();
            let aside = |order| Some((order, self.orders.policy(order)?.aside()));
            looks.left = match own {
                Some(order) => aside(order).into_iter().filter(|(_, aside)| *aside > 0).collect(),
                None => self.orders.with_aside(Part::Shared).filter_map(aside).collect(),
            };
        }
        for _ in 0..bound(LOOKS_PER_CHOICE, 2) {
            let Some(mut left) = looks.left.first_entry() else { return };
            let order = *left.key();
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
            // One whose objects are gone is dropped when it is a candidate.
            let takes_back = |it: &Tracked| {
                let found = UnitObjects::of(*it, state);
                found.objects.is_empty() || found.bytes_without(without) > 0
            };
            self.orders.change(order, |policy| policy.look_aside(takes_back));
        }
    }
}
