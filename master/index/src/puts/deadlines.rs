use mc_types::{ClusterTime, PutId};

use super::CowMap;

/// Ids of one deadline that are kept without a look at which are still in flight: those of a batch, which end together.
/// They are 2 KiB, for each millisecond of the last minute at most.
const KEPT: usize = 128;

/// Puts in flight by their deadline.
///
/// Hardly any put gets as far as its deadline, and every put would pay for an order of all. So those of one deadline are
/// in no order, and one that ends is only counted: its id stays until most of those beside it are gone, too.
#[derive(Clone)]
pub(super) struct Deadlines {
    by_time: CowMap<ClusterTime, Bucket>,
    in_flight: usize,
}

/// Puts of one deadline.
#[derive(Clone)]
struct Bucket {
    /// Those in flight, and about as many at most that no longer are, or [`KEPT`] of these.
    ids: Vec<PutId>,
    in_flight: usize,
}

impl Deadlines {
    pub(super) fn new() -> Self {
        Self { by_time: CowMap::new(), in_flight: 0 }
    }

    /// How many puts are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The earliest.
    pub(super) fn first(&self) -> Option<ClusterTime> {
        self.by_time.first().map(|(&deadline, _)| deadline)
    }

    /// A put was started.
    pub(super) fn add(&mut self, deadline: ClusterTime, id: PutId) {
        self.in_flight += 1;
        match self.by_time.get_mut(&deadline) {
            Some(bucket) => {
                bucket.ids.push(id);
                bucket.in_flight += 1;
            }
            None => _ = self.by_time.insert(deadline, Bucket { ids: vec![id], in_flight: 1 }),
        }
    }

    /// A put with that deadline is in flight no longer; `is_in_flight` says which still are.
    pub(super) fn remove(&mut self, deadline: ClusterTime, is_in_flight: impl Fn(PutId) -> bool) {
        let Some(bucket) = self.by_time.get_mut(&deadline) else { return };
        self.in_flight -= 1;
        bucket.in_flight -= 1;
        if bucket.in_flight == 0 {
            self.by_time.remove(&deadline);
        } else if bucket.ids.len() > KEPT && bucket.in_flight < bucket.ids.len() / 2 {
            bucket.ids.retain(|id| is_in_flight(*id));
            // One that ended and was started again is there twice.
            bucket.ids.sort_unstable();
            bucket.ids.dedup();
            bucket.ids.shrink_to_fit();
        }
    }

    /// Puts whose deadline has come, by deadline and id, at most `limit` of them. Looks through all puts of a deadline,
    /// which are those that were started within a millisecond.
    pub(super) fn due(
        &self,
        now: ClusterTime,
        limit: usize,
        is_in_flight: impl Fn(PutId, ClusterTime) -> bool,
    ) -> Vec<PutId> {
        let mut due = Vec::new();
        for (&deadline, bucket) in self.by_time.iter().take_while(|(deadline, _)| **deadline <= now) {
            if due.len() >= limit {
                break;
            }
            let mut ids: Vec<_> =
                bucket.ids.iter().copied().filter(|id| is_in_flight(*id, deadline)).collect();
            ids.sort_unstable();
            ids.dedup();
            due.extend(ids);
        }
        due.truncate(limit);
        due
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Puts start, end and come due in any order, and every answer is that of a sorted set.
        #[test]
        fn it_answers_as_a_sorted_set_of_those_in_flight(
            steps in prop::collection::vec((0..4_u8, 0..3_u64, 0..400_u128), 0..2_000),
            limit in 1..10_usize,
        ) {
            let mut deadlines = Deadlines::new();
            let mut model: BTreeSet<(ClusterTime, PutId)> = BTreeSet::new();
            for (what, time, id) in steps {
                let (deadline, id) = (ClusterTime(time), PutId(id));
                let known = model.iter().any(|(_, other)| *other == id);
                if what > 0 && !known {
                    deadlines.add(deadline, id);
                    model.insert((deadline, id));
                } else if model.remove(&(deadline, id)) {
                    deadlines.remove(deadline, |id| model.contains(&(deadline, id)));
                }
                let due = deadlines.due(deadline, limit, |id, at| model.contains(&(at, id)));
                let expected = model.iter().take_while(|(at, _)| *at <= deadline).take(limit);
                prop_assert_eq!(due, expected.map(|(_, id)| *id).collect::<Vec<_>>());
                prop_assert_eq!(deadlines.first(), model.first().map(|(at, _)| *at));
                prop_assert_eq!(deadlines.in_flight(), model.len());
                for (at, bucket) in deadlines.by_time.iter() {
                    let there = model.iter().filter(|(other, _)| other == at).count();
                    let most = there + KEPT.max(there + 1);
                    prop_assert!(bucket.ids.len() <= most, "ids of puts that ended pile up");
                    prop_assert!(bucket.ids.capacity() <= 2 * most, "their memory is kept");
                }
            }
        }
    }
}
