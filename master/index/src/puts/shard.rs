use mc_types::{ClusterTime, PutId};
use triomphe::Arc;

use super::ENDED_PER_SHARD;
use crate::puts::{Ended, Put};

/// Capacity for puts in flight that an empty list keeps; a list with a larger capacity frees it when it gets empty.
const IN_FLIGHT_KEPT: usize = 4;

/// Puts whose ids share a hash: those in flight, and the last ones that ended.
#[derive(Default)]
pub(super) struct Shard {
    /// Puts in flight, sorted by id. Usually a handful, but a client may start any number whose ids share a hash.
    in_flight: Vec<(PutId, Arc<Put>)>,
    /// Ids of ended puts, at most [`ENDED_PER_SHARD`], unordered. They are stored apart from the outcomes to keep them
    /// close together: every start searches them.
    ended_ids: Vec<PutId>,
    /// Outcome and deadline for each of `ended_ids`.
    ended: Vec<Ended>,
}

impl Clone for Shard {
    fn clone(&self) -> Self {
        // The copy is about to be written to, and mostly grows by one: spare room avoids a second copy.
        fn with_room<T: Clone>(from: &[T], room: usize) -> Vec<T> {
            let mut copy = Vec::with_capacity(from.len() + room);
            copy.extend_from_slice(from);
            copy
        }
        let room = ENDED_PER_SHARD.saturating_sub(self.ended.len());
        Self {
            in_flight: with_room(&self.in_flight, 1),
            ended_ids: with_room(&self.ended_ids, room),
            ended: with_room(&self.ended, room),
        }
    }
}

impl Shard {
    fn find_in_flight(&self, id: PutId) -> Result<usize, usize> {
        self.in_flight.binary_search_by_key(&id, |(put, _)| *put)
    }

    pub(super) fn in_flight(&self, id: PutId) -> Option<&Arc<Put>> {
        let at = self.find_in_flight(id).ok()?;
        self.in_flight.get(at).map(|(_, put)| put)
    }

    pub(super) fn ended(&self, id: PutId) -> Option<&Ended> {
        let at = self.ended_ids.iter().position(|ended| *ended == id)?;
        self.ended.get(at)
    }

    pub(super) fn start(&mut self, id: PutId, put: Put) {
        let (Ok(at) | Err(at)) = self.find_in_flight(id);
        self.in_flight.insert(at, (id, Arc::new(put)));
    }

    pub(super) fn is_full(&self) -> bool {
        self.ended.len() >= ENDED_PER_SHARD
    }

    /// Records how a put ended. A full list first drops the puts past their deadline, so that forgetting does not
    /// depend on whether the turn of this shard has come. If there are none, it drops the half with the earliest
    /// deadlines: half, so that the search for them costs each put little.
    pub(super) fn end(&mut self, id: PutId, ended: Ended, now: ClusterTime) {
        if self.is_full() {
            self.forget_due(now);
        }
        if self.is_full() {
            let mut order: Vec<_> =
                self.ended.iter().map(|e| e.deadline).zip(self.ended_ids.iter().copied()).collect();
            let (_, &mut median, _) = order.select_nth_unstable(ENDED_PER_SHARD / 2);
            self.retain_ended(|id, ended| (ended.deadline, id) >= median);
        }
        self.ended_ids.push(id);
        self.ended.push(ended);
    }

    pub(super) fn take_in_flight(&mut self, id: PutId) -> Option<Arc<Put>> {
        let at = self.find_in_flight(id).ok()?;
        let put = self.in_flight.remove(at).1;
        if self.in_flight.is_empty() && self.in_flight.capacity() > IN_FLIGHT_KEPT {
            self.in_flight = Vec::new();
        }
        Some(put)
    }

    pub(super) fn has_due(&self, now: ClusterTime) -> bool {
        self.ended.iter().any(|ended| ended.deadline <= now)
    }

    pub(super) fn forget_due(&mut self, now: ClusterTime) {
        self.retain_ended(|_, ended| ended.deadline > now);
        if self.ended.is_empty() {
            (self.ended_ids, self.ended) = (Vec::new(), Vec::new());
        }
    }

    fn retain_ended(&mut self, keep: impl Fn(PutId, &Ended) -> bool) {
        let mut at = 0;
        while let (Some(&id), Some(ended)) = (self.ended_ids.get(at), self.ended.get(at)) {
            if keep(id, ended) {
                at += 1;
            } else {
                self.ended_ids.swap_remove(at);
                self.ended.swap_remove(at);
            }
        }
    }

    pub(super) fn iter_in_flight(&self) -> impl Iterator<Item = (PutId, &Put)> {
        self.in_flight.iter().map(|(id, put)| (*id, &**put))
    }

    pub(super) fn iter_ended(&self) -> impl Iterator<Item = (PutId, Ended)> {
        self.ended_ids.iter().copied().zip(self.ended.iter().copied())
    }

    /// Reads the memory that a start or an end is going to read, to bring it into the cache.
    pub(super) fn prefetch(&self) -> u64 {
        let first = |ids: &[PutId]| ids.first().map_or(0, |id| id.0 as u64);
        first(&self.ended_ids) ^ self.in_flight.first().map_or(0, |(id, _)| id.0 as u64)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::puts::Outcome;
    use mc_types::PutMode;

    fn ended(deadline: u64) -> Ended {
        Ended { outcome: Outcome::Failed, deadline: ClusterTime(deadline) }
    }

    fn remembered(shard: &Shard) -> Vec<u128> {
        let mut ids: Vec<_> = shard.iter_ended().map(|(id, _)| id.0).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn a_full_shard_forgets_the_earlier_half_whatever_the_order_of_the_ends() {
        let max = ENDED_PER_SHARD as u128;
        // Deadlines go down as ids go up, and the last two are equal.
        let put = |id: u128| (PutId(id), ended(100 - u64::try_from(id.min(max - 2)).unwrap()));
        let (mut up, mut down) = (Shard::default(), Shard::default());
        for id in 0..max {
            let ((a, a_ended), (b, b_ended)) = (put(id), put(max - 1 - id));
            up.end(a, a_ended, ClusterTime(0));
            down.end(b, b_ended, ClusterTime(0));
        }
        assert_eq!(remembered(&up).len(), ENDED_PER_SHARD, "nothing is forgotten before it is full");
        for shard in [&mut up, &mut down] {
            shard.end(PutId(1000), ended(1), ClusterTime(0));
        }
        let kept: Vec<u128> = (0..max / 2).chain([1000]).collect();
        assert_eq!(remembered(&up), kept);
        assert_eq!(remembered(&down), kept);
    }

    #[test]
    fn a_put_is_found_while_it_is_in_flight_and_after_it_ended_until_its_deadline() {
        let key = crate::key::IndexKey::new("", b"k").unwrap();
        let deadline = ClusterTime(10);
        let put = Put {
            key,
            size: 1,
            mode: PutMode::Upsert,
            deadline,
            pin: crate::command::Pin::NONE,
            data_type: 0,
            group: None,
            replicas: SmallVec::new(),
        };
        let mut shard = Shard::default();
        for id in [4, 1, 5, 2] {
            shard.start(PutId(id), put.clone());
        }
        assert!(shard.in_flight(PutId(1)).is_some() && shard.ended(PutId(1)).is_none());
        assert!(shard.take_in_flight(PutId(1)).is_some() && shard.take_in_flight(PutId(1)).is_none());
        shard.end(PutId(1), ended(10), ClusterTime(0));
        shard.end(PutId(3), ended(11), ClusterTime(0));
        assert_eq!(shard.ended(PutId(1)), Some(&ended(10)));
        assert!(!shard.has_due(ClusterTime(9)) && shard.has_due(deadline));
        shard.forget_due(deadline);
        assert_eq!(remembered(&shard), [3]);
        let in_flight: Vec<_> = shard.iter_in_flight().map(|(id, _)| id.0).collect();
        assert_eq!(in_flight, [2, 4, 5], "only ended puts are forgotten here");
        assert!(in_flight.iter().all(|&id| shard.in_flight(PutId(id)).is_some()));
    }
}
