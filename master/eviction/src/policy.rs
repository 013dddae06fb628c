use super::grow::{Chunks, Table};

/// Handle of a unit in a [`Policy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit(u32);

/// End of a list.
const NONE: u32 = u32::MAX;

/// Part of the units that are watched at the end of each queue: a twelfth.
///
/// Hits just beyond the end of the once-seen queue, and hits just before the end of the reused queue, tell which of the
/// two would gain more from a little room.
const MARGIN_PART: usize = 12;

/// Remembered units that were evicted, for each unit in the order.
const GHOSTS_PER_UNIT: usize = 2;

/// Units by which the once-seen queue's share grows when a ghost returns that a slightly longer queue would have kept.
///
/// This and [`REUSED_STEP`] were chosen by replaying a trace of conversations through 4,000 to 50,000 units, and
/// synthetic ones: independent keys, scans, growing conversations, a shift of the working set, sliding windows. Slower
/// steps lose where frequency counts, faster ones where recency does.
const ONCE_STEP: u64 = 3;
/// Units by which the once-seen queue's share shrinks at a hit near the end of the reused queue.
const REUSED_STEP: u64 = 6;

/// The whole, in which the once-seen queue's share of all units is counted.
const WHOLE: u64 = 1 << 32;
/// Least share of each of the two queues.
const LEAST_SHARE: u64 = WHOLE / 20;

/// An order of units for eviction that weighs recency against frequency, and learns which of the two counts.
///
/// A unit enters the *once-seen* queue, and moves to the *reused* queue when another call uses it. Each queue is in the
/// order of the last use. The next victim comes from the end of the once-seen queue while that holds more than its share
/// of all units, else from the end of the reused queue. So a scan of units that are never used again passes through the
/// once-seen queue, and leaves the reused units alone.
///
/// The share adapts. The policy remembers the keys of evicted units, the *ghosts*: twice as many as there are units. A
/// put of a ghost that left the once-seen queue just now would have been a hit, had that queue been a little longer, so
/// its share grows. A hit near the end of the reused queue would have been lost, had that queue been a little shorter,
/// so the share of the other shrinks. A put of any ghost enters the reused queue, because it is the second use.
///
/// Each operation takes constant time, besides the growth of a small part of a table. The policy does not know the
/// capacity: it evicts when it is asked to. The order is the same for the same calls: nothing is random.
#[derive(Debug)]
pub struct Policy<T> {
    slots: Chunks<Slot<T>>,
    /// First of the free slots, linked by `next`.
    free: u32,
    queues: [Queue; 6],
    ghosts: Ghosts,
    /// Share of the once-seen queue, of [`WHOLE`].
    once_share: u64,
}

/// A unit, or a free slot if it has no data.
#[derive(Debug)]
struct Slot<T> {
    data: Option<T>,
    /// Hash of the unit's key, which its ghost has, too.
    ghost_key: u64,
    /// Last call that used it.
    used: u32,
    newer: u32,
    older: u32,
    queue: QueueName,
    /// Queue that it returns to if it is aside; else the one that it is in.
    home: QueueName,
}

/// Queue that the next victim comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimQueue {
    /// The one that holds more than its share.
    ByShare,
    /// The other one, because the candidates of the first can't be evicted now.
    Other,
}

/// Name of a queue. The reused queue is in two parts, so that a hit near its end is recognised without a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueName {
    Once,
    Reused,
    /// The oldest part of the reused queue.
    ReusedEnd,
    /// Units that are evicted only when no other can be, in the order of the last use.
    Soft,
    /// Units that are never evicted.
    Hard,
    /// Units that would free nothing now, from any of the other queues.
    Aside,
}

impl QueueName {
    fn is_pinned(self) -> bool {
        matches!(self, Self::Soft | Self::Hard)
    }

    /// The queue itself, or `home` for a unit that goes aside.
    fn or(self, home: Self) -> Self {
        if self == Self::Aside { home } else { self }
    }
}

/// A list of slots from the newest to the oldest.
#[derive(Clone, Copy, Debug)]
struct Queue {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Queue {
    const EMPTY: Self = Self { newest: NONE, oldest: NONE, len: 0 };
}

impl<T> Default for Policy<T> {
    fn default() -> Self {
        Self {
            slots: Chunks::default(),
            free: NONE,
            queues: [Queue::EMPTY; 6],
            ghosts: Ghosts::default(),
            once_share: WHOLE / 2,
        }
    }
}

impl<T> Policy<T> {
    /// An order without units.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of units, pinned ones included.
    pub fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.len).sum()
    }

    /// Number of units that are not pinned, of which the once-seen queue has its share.
    pub fn unpinned(&self) -> usize {
        [QueueName::Once, QueueName::Reused, QueueName::ReusedEnd]
            .map(|name| self.queue(name).len)
            .into_iter()
            .sum()
    }

    /// Whether there are units that are never evicted.
    pub fn has_hard(&self) -> bool {
        self.queue(QueueName::Hard).len > 0
    }

    /// Whether there are no units.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the data of a unit.
    pub fn get(&self, unit: Unit) -> Option<&T> {
        self.slots.get(unit.0 as usize)?.data.as_ref()
    }

    /// Returns the data of a unit, to change it.
    pub fn get_mut(&mut self, unit: Unit) -> Option<&mut T> {
        self.slots.get_mut(unit.0 as usize)?.data.as_mut()
    }

    /// Whether a unit is in the reused queue.
    pub fn is_reused(&self, unit: Unit) -> bool {
        let slot = self.slots.get(unit.0 as usize).filter(|slot| slot.data.is_some());
        slot.is_some_and(|slot| slot.home != QueueName::Once)
    }

    /// Share of the once-seen queue, of 2^32; never 0.
    pub fn once_share(&self) -> u32 {
        u32::try_from(self.once_share).unwrap_or(u32::MAX)
    }

    /// Sets the share of the once-seen queue, in units of 2^-32.
    pub fn set_once_share(&mut self, share: u32) {
        self.once_share = u64::from(share).clamp(LEAST_SHARE, WHOLE - LEAST_SHARE);
    }

    /// Returns the unit in the slot `at`, if it holds one; `None` beyond the last slot.
    pub fn slot(&self, at: usize) -> Option<Option<Unit>> {
        let slot = self.slots.get(at)?;
        Some(slot.data.as_ref().and(u32::try_from(at).ok()).map(Unit))
    }

    /// Adds a unit that call number `call` made.
    pub fn insert(&mut self, ghost_key: u64, call: u32, data: T) -> Unit {
        let queue = match self.ghosts.take(ghost_key) {
            Some(ghost) => {
                if ghost.was_once && ghost.age < self.margin() {
                    self.shift_share(true);
                }
                QueueName::Reused
            }
            None => QueueName::Once,
        };
        self.add(ghost_key, call, data, queue)
    }

    /// Adds a unit that call number `call` used last as the most recent one of its queue, without a look at the ghosts.
    pub fn restore(&mut self, ghost_key: u64, reused: bool, call: u32, data: T) -> Unit {
        self.add(ghost_key, call, data, if reused { QueueName::Reused } else { QueueName::Once })
    }

    /// Number of the last call that used a unit.
    pub fn last_used(&self, unit: Unit) -> Option<u32> {
        self.get(unit)?;
        self.slots.get(unit.0 as usize).map(|slot| slot.used)
    }

    /// Takes a unit out of the order of eviction, for a hard pin, or behind all others, for a soft one.
    pub fn pin(&mut self, unit: Unit, hard: bool) {
        self.move_to(unit, if hard { QueueName::Hard } else { QueueName::Soft });
    }

    /// Takes a pinned unit back into the order, as the most recent of those that were seen once.
    pub fn unpin(&mut self, unit: Unit) {
        if self.slots.get(unit.0 as usize).is_some_and(|slot| slot.home.is_pinned()) {
            self.move_to(unit, QueueName::Once);
        }
    }

    fn move_to(&mut self, unit: Unit, queue: QueueName) {
        if self.get(unit).is_some() {
            self.unlink(unit.0);
            self.push_newest(unit.0, queue);
            self.balance();
        }
    }

    /// Records that call number `call` used a unit. Further uses by the same call only move it.
    pub fn hit(&mut self, unit: Unit, call: u32) {
        let Some(slot) = self.slots.get_mut(unit.0 as usize).filter(|slot| slot.data.is_some()) else {
            return;
        };
        let (again, from) = (slot.used == call, slot.home);
        slot.used = call;
        if slot.queue == QueueName::ReusedEnd {
            self.shift_share(false);
        }
        self.unlink(unit.0);
        self.push_newest(unit.0, if again || from.is_pinned() { from } else { QueueName::Reused });
        self.balance();
    }

    /// Removes a unit that is gone for another reason than eviction.
    pub fn remove(&mut self, unit: Unit) -> Option<T> {
        self.get(unit)?;
        self.unlink(unit.0);
        let slot = &mut self.slots[unit.0 as usize];
        let data = slot.data.take();
        slot.older = self.free;
        self.free = unit.0;
        self.balance();
        data
    }

    /// Removes a unit that is evicted, and remembers its key.
    pub fn evict(&mut self, unit: Unit) -> Option<T> {
        self.get(unit)?;
        let Slot { ghost_key, home, .. } = self.slots[unit.0 as usize];
        self.ghosts.add(ghost_key, home == QueueName::Once, GHOSTS_PER_UNIT * self.len());
        self.remove(unit)
    }

    /// Returns the next victim among the soft-pinned units.
    pub fn soft_candidate(&self) -> Option<Unit> {
        Some(self.queue(QueueName::Soft).oldest).filter(|oldest| *oldest != NONE).map(Unit)
    }

    /// Returns the hard-pinned unit that was pinned or used longest ago.
    pub fn oldest_hard(&self) -> Option<Unit> {
        Some(self.queue(QueueName::Hard).oldest).filter(|oldest| *oldest != NONE).map(Unit)
    }

    /// Returns the next victim that is not pinned.
    pub fn candidate(&self) -> Option<Unit> {
        self.candidate_of(VictimQueue::ByShare)
    }

    /// Returns the next victim that is not pinned, from the queue whose turn it is.
    pub fn candidate_of(&self, turn: VictimQueue) -> Option<Unit> {
        let once = self.queue(QueueName::Once);
        let share = (self.unpinned() as u64).saturating_mul(self.once_share >> 16) >> 16;
        let reused = [QueueName::ReusedEnd, QueueName::Reused].map(|name| self.queue(name).oldest);
        let reused = reused.into_iter().find(|oldest| *oldest != NONE);
        let from_once = (once.len as u64 > share) == (turn == VictimQueue::ByShare);
        let first = if from_once { Some(once.oldest) } else { reused };
        let unit = first.filter(|unit| *unit != NONE).or(reused).or(Some(once.oldest))?;
        (unit != NONE).then_some(Unit(unit))
    }

    /// Iterates over the data of a unit and of those that were used after it, in the order of their use, to the end of its
    /// part of the queue.
    pub fn from(&self, unit: Unit) -> impl Iterator<Item = &T> {
        let slot = |at: u32| self.slots.get(at as usize);
        let slots = std::iter::successors(slot(unit.0), move |it| slot(it.newer));
        slots.filter_map(|slot| slot.data.as_ref())
    }

    /// Moves a unit to the newest end of its queue, as if call number `call` had used it, without counting that as a reuse:
    /// a candidate that must not be evicted now, or one that has grown.
    pub fn defer(&mut self, unit: Unit, call: u32) {
        if self.get(unit).is_some() {
            let slot = &mut self.slots[unit.0 as usize];
            slot.used = call;
            let home = slot.home;
            self.move_to(unit, if home == QueueName::ReusedEnd { QueueName::Reused } else { home });
        }
    }

    /// Takes a unit out of its queue that would free nothing if it were evicted now.
    pub fn set_aside(&mut self, unit: Unit) {
        self.move_to(unit, QueueName::Aside);
    }

    /// Number of units aside.
    pub fn aside(&self) -> usize {
        self.queue(QueueName::Aside).len
    }

    /// Returns the unit that was set aside last.
    pub fn newest_aside(&self) -> Option<Unit> {
        Some(self.queue(QueueName::Aside).newest).filter(|newest| *newest != NONE).map(Unit)
    }

    /// Looks at the unit that was set aside last: takes it back to the oldest end of its queue, or puts it behind all
    /// others that are aside. Looking at all of them leaves both parts in the order in which they were candidates.
    pub fn look_aside(&mut self, take_back: impl FnOnce(&T) -> bool) {
        let Some(unit) = self.newest_aside() else { return };
        let back = self.get(unit).is_some_and(take_back);
        let home = match self.slots[unit.0 as usize].home {
            QueueName::Reused if self.queue(QueueName::ReusedEnd).len > 0 => QueueName::ReusedEnd,
            home => home,
        };
        self.unlink(unit.0);
        self.push_oldest(unit.0, if back { home } else { QueueName::Aside });
        self.balance();
    }

    fn queue(&self, name: QueueName) -> &Queue {
        &self.queues[name as usize]
    }

    /// Number of units that are watched at the end of each queue.
    fn margin(&self) -> usize {
        (self.unpinned() / MARGIN_PART).max(1)
    }

    /// Shifts the share by the part that a few units are of all. See [`ONCE_STEP`].
    fn shift_share(&mut self, to_once: bool) {
        let unit = WHOLE / (self.unpinned() as u64).max(16);
        self.once_share = if to_once {
            (self.once_share + ONCE_STEP * unit).min(WHOLE - LEAST_SHARE)
        } else {
            self.once_share.saturating_sub(REUSED_STEP * unit).max(LEAST_SHARE)
        };
    }

    fn add(&mut self, ghost_key: u64, call: u32, data: T, queue: QueueName) -> Unit {
        let slot =
            Slot { data: Some(data), ghost_key, used: call, newer: NONE, older: NONE, queue, home: queue };
        let at = self.free;
        let at = if let Some(free) = self.slots.get_mut(at as usize) {
            self.free = free.older;
            *free = slot;
            at
        } else {
            // A policy has far fewer than 2^32 units: an index of as many would take a terabyte.
            let at = u32::try_from(self.slots.len()).unwrap_or(NONE);
            self.slots.push(slot);
            at
        };
        self.push_newest(at, queue);
        self.balance();
        Unit(at)
    }

    fn unlink(&mut self, at: u32) {
        let Slot { newer, older, queue, .. } = self.slots[at as usize];
        match self.slots.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.queues[queue as usize].newest = older,
        }
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.queues[queue as usize].oldest = newer,
        }
        self.queues[queue as usize].len -= 1;
    }

    fn push_newest(&mut self, at: u32, name: QueueName) {
        let queue = &mut self.queues[name as usize];
        let before = std::mem::replace(&mut queue.newest, at);
        if before == NONE {
            queue.oldest = at;
        }
        queue.len += 1;
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older, slot.queue) = (NONE, before, name);
        slot.home = name.or(slot.home);
        if let Some(before) = self.slots.get_mut(before as usize) {
            before.newer = at;
        }
    }

    fn push_oldest(&mut self, at: u32, name: QueueName) {
        let queue = &mut self.queues[name as usize];
        let before = std::mem::replace(&mut queue.oldest, at);
        if before == NONE {
            queue.newest = at;
        }
        queue.len += 1;
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older, slot.queue) = (before, NONE, name);
        slot.home = name.or(slot.home);
        if let Some(before) = self.slots.get_mut(before as usize) {
            before.older = at;
        }
    }

    /// Moves units between the two parts of the reused queue until its end has the right length. Each operation changes
    /// a length by one, so a few moves do.
    fn balance(&mut self) {
        for _ in 0..2 {
            let reused = self.queue(QueueName::Reused).len + self.queue(QueueName::ReusedEnd).len;
            let wanted = reused / MARGIN_PART;
            let end = self.queue(QueueName::ReusedEnd).len;
            if end < wanted {
                let at = self.queue(QueueName::Reused).oldest;
                self.unlink(at);
                self.push_newest(at, QueueName::ReusedEnd);
            } else if end > wanted {
                let at = self.queue(QueueName::ReusedEnd).newest;
                self.unlink(at);
                self.push_oldest(at, QueueName::Reused);
            }
        }
    }
}

/// Keys of evicted units, oldest first.
#[derive(Debug, Default)]
struct Ghosts {
    /// Keys in the order of their eviction. The lowest bit of each is whether the unit was seen once.
    keys: Chunks<u64>,
    /// Number of the first key.
    first: u32,
    /// Numbers of the keys that were not put again since, by key.
    numbers: Table<u32>,
}

/// An evicted unit that the policy remembers.
struct Ghost {
    was_once: bool,
    /// Number of units evicted since.
    age: usize,
}

impl Ghosts {
    fn key_of(keys: &Chunks<u64>, first: u32, number: u32) -> u64 {
        keys.get(number.wrapping_sub(first) as usize).map_or(0, |key| key & !1)
    }

    fn add(&mut self, key: u64, was_once: bool, limit: usize) {
        let number = self.first.wrapping_add(self.keys.len() as u32);
        let _older = self.take(key);
        self.keys.push(key & !1 | u64::from(was_once));
        let Self { keys, first, numbers } = self;
        numbers.insert(key & !1, number, |number| Self::key_of(keys, *first, *number));
        while self.keys.len() > limit.max(1) && self.forget_oldest() {}
    }

    /// Forgets the key that was evicted first. Returns false if there is none.
    fn forget_oldest(&mut self) -> bool {
        let Self { keys, first, numbers } = self;
        let Some(key) = keys.get(0) else { return false };
        // Its number is gone if it was put again since.
        numbers.take(key & !1, |number| number == first);
        keys.remove_first();
        *first = first.wrapping_add(1);
        true
    }

    fn take(&mut self, key: u64) -> Option<Ghost> {
        let Self { keys, first, numbers } = self;
        let same = |number: &u32| Self::key_of(keys, *first, *number) == key & !1;
        let number = numbers.take(key & !1, same)?;
        let at = number.wrapping_sub(*first) as usize;
        Some(Ghost { was_once: keys.get(at)? & 1 == 1, age: keys.len() - 1 - at })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    /// A cache of `room` units in front of a policy.
    struct Cache {
        policy: Policy<u64>,
        units: BTreeMap<u64, Unit>,
        room: usize,
        call: u32,
    }

    impl Cache {
        fn new(room: usize) -> Self {
            Self { policy: Policy::new(), units: BTreeMap::new(), room, call: 0 }
        }

        /// One call that uses these keys, the last one first. Returns the number of hits.
        fn call(&mut self, keys: &[u64]) -> usize {
            self.call += 1;
            let mut hits = 0;
            for &key in keys.iter().rev() {
                if let Some(&unit) = self.units.get(&key) {
                    hits += 1;
                    self.policy.hit(unit, self.call);
                    continue;
                }
                while self.units.len() >= self.room {
                    let victim = self.policy.candidate().expect("a full order has a victim");
                    let key = self.policy.evict(victim).unwrap();
                    self.units.remove(&key);
                }
                // Multiplied, because the lowest bit of a ghost's key does not count.
                self.units.insert(key, self.policy.insert(key * 2, self.call, key));
            }
            hits
        }
    }

    #[test]
    fn the_tail_of_a_call_is_evicted_before_its_head() {
        let mut cache = Cache::new(4);
        cache.call(&[1, 2, 3, 4]);
        cache.call(&[5]);
        assert_eq!(cache.units.keys().collect::<Vec<_>>(), [&1, &2, &3, &5]);
        cache.call(&[6]);
        assert_eq!(cache.units.keys().collect::<Vec<_>>(), [&1, &2, &5, &6]);
    }

    #[test]
    fn a_scan_leaves_reused_units_alone() {
        let mut cache = Cache::new(100);
        for _ in 0..3 {
            for key in 0..40 {
                cache.call(&[key]);
            }
        }
        for key in 1000..5000 {
            cache.call(&[key]);
        }
        assert_eq!((0..40).map(|key| cache.call(&[key])).sum::<usize>(), 40);
    }

    #[test]
    fn units_that_are_used_twice_by_one_call_are_still_seen_once() {
        let mut cache = Cache::new(10);
        cache.call(&[1, 1, 1]);
        assert_eq!(cache.policy.queue(QueueName::Once).len, 1);
        cache.call(&[1]);
        assert_eq!(cache.policy.queue(QueueName::Once).len, 0);
    }

    #[test]
    fn the_share_follows_what_would_have_been_hits() {
        // Keys that come back just after they were evicted: the once-seen queue is too short.
        let mut cache = Cache::new(200);
        for key in 0..100 {
            cache.call(&[key]);
            cache.call(&[key]);
        }
        let before = cache.policy.once_share;
        for key in 1000..3000 {
            cache.call(&[key]);
            cache.call(&[key - 104]);
        }
        assert!(cache.policy.once_share > before);
        // Many reused keys, used in turn beside keys that never come back: the reused queue is too short.
        let mut cache = Cache::new(200);
        let before = cache.policy.once_share;
        for round in 0..50 {
            for key in 0..90 {
                cache.call(&[key]);
                cache.call(&[10_000 + round * 90 + key]);
            }
        }
        assert!(cache.policy.once_share < before);
    }

    #[test]
    fn a_unit_that_returns_after_its_eviction_is_a_reused_one() {
        let mut cache = Cache::new(10);
        for key in 0..15 {
            cache.call(&[key]);
        }
        assert_eq!(cache.call(&[2]), 0);
        assert!(cache.policy.queues[QueueName::Reused as usize].len == 1);
    }

    #[test]
    fn deferred_candidates_are_the_last_of_their_queue() {
        let mut cache = Cache::new(10);
        for key in 0..10 {
            cache.call(&[key]);
        }
        let first = cache.policy.candidate().unwrap();
        cache.policy.defer(first, 0);
        for expected in 1..10 {
            let unit = cache.policy.candidate().unwrap();
            assert_eq!(cache.policy.evict(unit), Some(expected));
        }
        assert_eq!(cache.policy.candidate(), Some(first));
        assert_eq!((cache.policy.evict(first), cache.policy.candidate()), (Some(0), None));
        assert_eq!(cache.policy.evict(first), None, "it is gone");
    }

    /// The units of a queue, newest first.
    fn listed<T>(policy: &Policy<T>, name: QueueName) -> Vec<Unit> {
        let mut at = policy.queue(name).newest;
        let mut units = Vec::new();
        while let Some(slot) = policy.slots.get(at as usize) {
            assert_eq!(slot.queue, name);
            units.push(Unit(at));
            at = slot.older;
        }
        units
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

        /// The links against plain lists of the two queues, newest first.
        #[test]
        fn the_queues_hold_what_plain_lists_would(
            steps in prop::collection::vec((0..6u8, 0..40usize), 1..600),
        ) {
            let mut policy = Policy::new();
            let mut once: VecDeque<(Unit, u32)> = VecDeque::new();
            let mut reused: VecDeque<Unit> = VecDeque::new();
            for (call, (step, nth)) in (1..).zip(steps) {
                let total = once.len() + reused.len();
                let unit = (total > 0).then(|| {
                    let nth = nth % total;
                    once.get(nth).map_or_else(|| reused[nth - once.len()], |(unit, _)| *unit)
                });
                let was_once = once.iter().any(|(known, _)| Some(*known) == unit);
                match (step, unit) {
                    // Keys are new ones, so that no ghost returns.
                    (0..=2, _) => once.push_front((policy.insert(u64::from(call) * 2, call, call), call)),
                    (3, Some(unit)) => {
                        once.retain(|(known, _)| *known != unit);
                        reused.retain(|known| *known != unit);
                        reused.push_front(unit);
                        policy.hit(unit, call);
                    }
                    (4, Some(unit)) => {
                        let made = once.iter().find(|(known, _)| *known == unit).map(|(_, made)| *made);
                        once.retain(|(known, _)| *known != unit);
                        reused.retain(|known| *known != unit);
                        policy.defer(unit, call);
                        match made {
                            Some(made) if was_once => once.push_front((unit, made)),
                            _ => reused.push_front(unit),
                        }
                    }
                    (_, Some(unit)) => {
                        once.retain(|(known, _)| *known != unit);
                        reused.retain(|known| *known != unit);
                        prop_assert!(policy.evict(unit).is_some());
                    }
                    _ => {}
                }
                let listed = [QueueName::Once, QueueName::Reused, QueueName::ReusedEnd].map(|name| listed(&policy, name));
                prop_assert!(listed[0].iter().eq(once.iter().map(|(unit, _)| unit)));
                prop_assert!(listed[1].iter().chain(&listed[2]).eq(reused.iter()));
                prop_assert_eq!(policy.queue(QueueName::ReusedEnd).len, reused.len() / MARGIN_PART);
                prop_assert_eq!(policy.len(), once.len() + reused.len());
                prop_assert!(policy.ghosts.keys.len() <= (GHOSTS_PER_UNIT * (policy.len() + 1)).max(1));
                prop_assert!(policy.ghosts.numbers.len() <= policy.ghosts.keys.len());
                let candidate = policy.candidate();
                prop_assert_eq!(candidate.is_some(), !policy.is_empty());
                let ends = [once.back().map(|(unit, _)| *unit), reused.back().copied()];
                prop_assert!(candidate.is_none() || ends.contains(&candidate));
            }
        }
    }
}
