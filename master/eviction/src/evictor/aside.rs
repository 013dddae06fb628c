//! Candidates on stores that do not count now, such as suspect ones. They keep their place in the order until the stores
//! count again: a store that was silent for a moment must not make its cold objects the last to go.

use std::collections::BTreeMap;

use mc_index::{State, bound};
use mc_types::StoreId;

use super::orders::OrderScope;
use super::{Evictor, Tracked, UnitObjects, UnitPosition};

/// Maximum number of units aside that one choice looks at, once other stores count.
const LOOKS_PER_CHOICE: usize = 1024;

/// Units set aside that are still to be looked at.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// Stores that did not count in the last choice for the pool, sorted.
    without: Vec<StoreId>,
    /// Number of units aside in each order that are to be looked at.
    left: BTreeMap<usize, usize>,
}

impl Evictor {
    pub(super) fn set_aside(&mut self, place: UnitPosition) {
        self.change(place, |policy| policy.set_aside(place.unit));
        // It is looked at before the others: one more look, so that the last of these gets its own.
        if let Some(left) = self.aside.left.get_mut(&(place.order as usize)) {
            *left += 1;
        }
    }

    /// Takes units back into their order that would free bytes now, a slice at each choice.
    pub(super) fn look_aside(&mut self, scope: OrderScope, state: &State, without: &[StoreId]) {
        if let Some(order) = scope {
            // All stores count in a quota.
            self.orders.change(order, |policy| {
                (0..policy.aside().min(bound(LOOKS_PER_CHOICE, 2))).for_each(|_| policy.look_aside(|_| true));
            });
            return;
        }
        if self.aside.without != without {
            self.aside.without = without.to_vec();
            let aside = |order| Some((order, self.orders.policy(order)?.aside()));
            self.aside.left = self.orders.with_aside().filter_map(aside).collect();
        }
        for _ in 0..bound(LOOKS_PER_CHOICE, 2) {
            let Some(mut left) = self.aside.left.first_entry() else { return };
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
