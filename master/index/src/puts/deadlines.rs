use mc_types::{ClusterTime, PutId};

use crate::cow::CowMap;

/// Maximum number of ids of one deadline that are kept without checking which are still in flight. The puts of a batch
/// share a deadline and end together. The ids take 2 KiB, at most once for each millisecond of the last minute.
const KEPT: usize = 128;

/// Puts in flight by their deadline.
///
/// Hardly any put reaches its deadline, but a full order would cost every put. So the puts of one deadline are
/// unordered, and a put that ends is only counted: its id stays until most puts of its deadline have ended, too.
#[derive(Clone)]
pub(super) struct Deadlines {
    by_time: CowMap<ClusterTime, Bucket>,
    in_flight: usize,
}

/// Puts of one deadline.
#[derive(Clone)]
struct Bucket {
    /// Ids in flight, plus ids that no longer are: at most about as many, or [`KEPT`] of them.
    ids: Vec<PutId>,
    in_flight: usize,
}

impl Deadlines {
    pub(super) fn new() -> Self {
        Self { by_time: CowMap::new(), in_flight: 0 }
    }

    /// Number of puts in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The earliest deadline.
    pub(super) fn first(&self) -> Option<ClusterTime> {
        self.by_time.first().map(|(&deadline, _)| deadline)
    }

    /// Adds a put that was started.
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

    /// Removes a put with that deadline; `is_in_flight` tells which ids are still in flight.
    pub(super) fn remove(&mut self, deadline: ClusterTime, is_in_flight: impl Fn(PutId) -> bool) {
        let Some(bucket) = self.by_time.get_mut(&deadline) else { return };
        self.in_flight -= 1;
        bucket.in_flight -= 1;
        if bucket.in_flight == 0 {
            self.by_time.remove(&deadline);
        } else if bucket.ids.len() > KEPT && bucket.in_flight < bucket.ids.len() / 2 {
            bucket.ids.retain(|id| is_in_flight(*id));
            // A put that ended and was started again is listed twice.
            bucket.ids.sort_unstable();
            bucket.ids.dedup();
            bucket.ids.shrink_to_fit();
        }
    }

    /// Lists puts whose deadline has come, by deadline and id, at most `limit` of them. It goes through all puts of a
    /// deadline, which were started within a millisecond.
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
        /// Puts start, end and come due in any order, and every answer equals that of a sorted set.
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
