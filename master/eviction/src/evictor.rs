use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hashbrown::HashTable;
use mc_index::{Change, EvictItem, KeyHash, ObjectAge, Pin, State, Usage, reuse_epoch};
use mc_types::{ClusterTime, MAX_ITEMS, StoreId};

use super::leases::Leases;
use super::policy::{Policy, Unit};

/// Maximum number of objects that a leader evicts in one entry. The index is locked against changes while they are
/// chosen.
pub const OBJECTS_PER_ENTRY: usize = 512;
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

/// Maximum number of reused objects that wait to be noted in the index. Further ones are noted when they are used
/// again.
const NOTES_MAX: usize = 64 << 10;

/// Maximum number of pins that one choice looks up, and of those that it ends.
const PINS_PER_CHOICE: usize = 1024;

/// Extent of one eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Bytes to free.
    pub bytes: u64,
    /// Maximum number of objects.
    pub objects: usize,
}

/// Objects chosen for one eviction. Their versions are marked in the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The objects.
    pub items: Vec<EvictItem>,
    /// Bytes that their replicas free on the stores that count.
    pub bytes: u64,
    /// Why fewer bytes were chosen than wanted, if that is not for the number of objects.
    pub blocked: Option<Blocked>,
}

/// Why no more objects can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// No object is left.
    Empty,
    /// The next candidates are leased by readers, or lie on stores that do not count.
    Leased,
    /// No object is left but hard-pinned ones.
    Pinned,
}

/// Candidates for eviction, in the order in which they are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Unpinned,
    Soft,
}

/// Bytes above the low watermark, once the high one is passed; 0 below that. Stores in `without`, which is sorted, do
/// not count.
#[must_use]
pub fn excess(state: &State, without: &[StoreId]) -> u64 {
    let Usage { capacity, live, .. } = state.usage(without);
    let settings = state.settings();
    if live <= settings.eviction_high_watermark.of(capacity) {
        return 0;
    }
    live.saturating_sub(settings.eviction_low_watermark.of(capacity))
}

/// Follows the objects of the index and their use, and chooses which to evict.
///
/// It costs constant work for each object put, read, removed or evicted. Objects are known by the hash of their key.
/// When two keys share one, the order of both is that of the last used, and they are evicted together.
#[derive(Debug, Default)]
pub struct Evictor {
    policy: Policy<Tracked>,
    units: HashTable<Unit>,
    /// Number of calls so far, by which the policy tells uses of one call from those of several.
    calls: u32,
    /// Unit to check next against the index.
    prune_from: usize,
    /// Epoch of reuse now (see [`mc_index::reuse_epoch`]).
    epoch: u32,
    /// Reused objects whose epoch in the index is behind.
    to_note: VecDeque<KeyHash>,
    /// Number of candidates without a pin that were passed over one after the other, over several choices.
    passed_over: usize,
    /// Soft-pinned objects that were candidates, by the end of their pin. Objects may be gone since.
    soft_pins: BTreeMap<(ClusterTime, u64), KeyHash>,
}

/// An object in the order.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    key: KeyHash,
    /// Epoch of reuse that is noted in the index, or waits to be.
    noted: u32,
}

impl Evictor {
    /// Begins with the objects of `state`: those that were noted as reused by the epoch of their last use, the others
    /// in the order in which they were put.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let mut ages: Vec<ObjectAge> = state.ages().collect();
        ages.sort_unstable_by_key(|age| (age.reused, age.put, age.key.to_u64()));
        let mut evictor = Self { epoch: reuse_epoch(state.time()), ..Self::default() };
        if let Some(share) = state.once_share() {
            evictor.policy.set_once_share(share);
        }
        for ObjectAge { key, reused: noted, .. } in ages {
            let unit = evictor.policy.restore(key.to_u64(), noted > 0, Tracked { key, noted });
            evictor.add(key, unit);
        }
        evictor
    }

    /// Brings the epoch of reuse up to date.
    pub fn set_time(&mut self, now: ClusterTime) {
        self.epoch = reuse_epoch(now);
    }

    /// Takes at most `max` objects whose reuse is to be noted in the index ([`mc_index::Op::NoteReuse`]), and returns
    /// them with the epoch and the share of the once-seen queue. `None` if there are none.
    ///
    /// An object is noted at most once in an epoch. When an entry with notes is lost, a next leader orders these
    /// objects as if they were used earlier.
    pub fn take_notes(&mut self, max: usize) -> Option<(Vec<KeyHash>, u32, u32)> {
        let keys: Vec<_> = self.to_note.drain(..max.min(self.to_note.len())).collect();
        (!keys.is_empty()).then(|| (keys, self.epoch, self.policy.once_share()))
    }

    /// Number of objects in the order.
    #[must_use]
    pub fn len(&self) -> usize {
        self.policy.len()
    }

    /// Whether the order is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn find(&self, key: KeyHash) -> Option<Unit> {
        self.units.find(key.to_u64(), |unit| self.policy.get(*unit).is_some_and(|it| it.key == key)).copied()
    }

    fn add(&mut self, key: KeyHash, unit: Unit) {
        let policy = &self.policy;
        let hash = |unit: &Unit| policy.get(*unit).map_or(0, |it| it.key.to_u64());
        self.units.insert_unique(key.to_u64(), unit, hash);
    }

    fn forget(&mut self, key: KeyHash) -> Option<Unit> {
        let policy = &self.policy;
        let is_it = |unit: &Unit| policy.get(*unit).is_some_and(|it| it.key == key);
        let entry = self.units.find_entry(key.to_u64(), is_it).ok()?;
        Some(entry.remove().0)
    }

    /// Follows a change of the index.
    pub fn follow(&mut self, change: &Change) {
        match change {
            Change::Put(keys) => self.used(keys, true),
            Change::Gone(keys) => {
                for &key in keys {
                    if let Some(unit) = self.forget(key) {
                        self.policy.remove(unit);
                    }
                }
            }
        }
    }

    /// Records that one call found these objects, in the order of the call.
    pub fn hit(&mut self, keys: &[KeyHash]) {
        self.used(keys, false);
    }

    /// Uses the keys of a call from the last to the first. A call names the blocks of a prefix in their order, and a
    /// block is of no use without those before it, so the first one must be evicted last.
    fn used(&mut self, keys: &[KeyHash], put: bool) {
        self.calls = self.calls.wrapping_add(1);
        for &key in keys.iter().rev() {
            let unit = match self.find(key) {
                Some(unit) => {
                    self.policy.hit(unit, self.calls);
                    if put && let Some(replaced) = self.policy.get_mut(unit) {
                        replaced.noted = 0;
                        // The new version may have another pin. The next choice that meets it looks it up.
                        self.policy.unpin(unit);
                    }
                    unit
                }
                None if put => {
                    let unit = self.policy.insert(key.to_u64(), self.calls, Tracked { key, noted: 0 });
                    self.add(key, unit);
                    unit
                }
                // The object has just been evicted or removed.
                None => continue,
            };
            self.note(unit);
        }
    }

    /// Lets a reused object be noted in the index, once in an epoch.
    fn note(&mut self, unit: Unit) {
        if !self.policy.is_reused(unit) || self.to_note.len() >= NOTES_MAX {
            return;
        }
        if let Some(it) = self.policy.get_mut(unit).filter(|it| it.noted < self.epoch) {
            it.noted = self.epoch;
            self.to_note.push_back(it.key);
        }
    }

    /// Chooses objects to evict and marks their versions in `leases`. Only bytes on stores that are not in `without`,
    /// which is sorted, count, and objects without such bytes stay. Soft-pinned objects are chosen only when not enough
    /// others can be, hard-pinned ones never.
    ///
    /// Candidates that stay or are leased go to the other end of their queue. After four of them for each victim the
    /// choice stops, so that its cost depends on the number of victims alone. A pin is looked up when its object becomes a
    /// candidate, at most 1,024 times in one choice. If that limit is reached, fewer bytes than wanted may be chosen, and
    /// `blocked` is `None`.
    pub fn choose(
        &mut self,
        want: Want,
        state: &State,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> Chosen {
        self.end_soft_pins(now);
        let mut chosen = Chosen::default();
        let mut leased = false;
        for class in [Class::Unpinned, Class::Soft] {
            let (mut looks, mut pins) = (0, 0);
            let before = chosen.items.len();
            loop {
                if chosen.bytes >= want.bytes || chosen.items.len() >= want.objects || pins >= PINS_PER_CHOICE
                {
                    return chosen;
                }
                if looks >= FIRST_LOOKS + LOOKS_PER_VICTIM * (chosen.items.len() - before) {
                    leased = true;
                    if class == Class::Unpinned && self.passed_over < self.policy.unpinned() {
                        // Others without a pin may be free: soft-pinned objects wait for a later choice.
                        chosen.blocked = Some(Blocked::Leased);
                        return chosen;
                    }
                    break;
                }
                let candidate = match class {
                    Class::Unpinned => self.policy.candidate(),
                    Class::Soft => self.policy.soft_candidate(),
                };
                let found = candidate.and_then(|unit| Some((unit, self.policy.get(unit)?.key)));
                let Some((unit, key)) = found else { break };
                if class == Class::Unpinned && self.take_out_pinned(unit, key, state, now) {
                    pins += 1;
                    continue;
                }
                let stays = !self.try_evict(unit, key, &mut chosen, state, leases, now, without);
                looks += usize::from(stays);
                if class == Class::Unpinned {
                    self.passed_over = if stays { self.passed_over + 1 } else { 0 };
                }
            }
        }
        chosen.blocked = Some(match leased {
            true => Blocked::Leased,
            false if self.policy.has_hard() => Blocked::Pinned,
            false => Blocked::Empty,
        });
        chosen
    }

    /// Takes a unit whose object is pinned out of the order. Returns whether it is.
    fn take_out_pinned(&mut self, unit: Unit, key: KeyHash, state: &State, now: ClusterTime) -> bool {
        let pins = || state.with_hash(key).map(|object| object.pin.at(now));
        if pins().any(Pin::is_hard) {
            self.policy.pin(unit, true);
            return true;
        }
        let Some(until) = pins().filter_map(Pin::soft_until).max() else { return false };
        self.policy.pin(unit, false);
        self.soft_pins.insert((until, key.to_u64()), key);
        true
    }

    /// Brings units back into the order whose soft pins have ended, a slice at each call.
    fn end_soft_pins(&mut self, now: ClusterTime) {
        for _ in 0..PINS_PER_CHOICE {
            let Some(first) = self.soft_pins.first_entry().filter(|entry| entry.key().0 <= now) else {
                return;
            };
            let key = first.remove();
            if let Some(unit) = self.find(key) {
                self.policy.unpin(unit);
            }
        }
    }

    /// Adds the objects of a unit to the chosen ones and takes it out of the order, or defers it. Returns whether it is
    /// out.
    #[expect(clippy::too_many_arguments, reason = "the parameters of a choice")]
    fn try_evict(
        &mut self,
        unit: Unit,
        key: KeyHash,
        chosen: &mut Chosen,
        state: &State,
        leases: &Leases,
        now: ClusterTime,
        without: &[StoreId],
    ) -> bool {
        let mut stays = false;
        let before = chosen.items.len();
        for object in state.with_hash(key) {
            let counts = object.stores.iter().filter(|store| without.binary_search(store).is_err());
            let replicas = counts.count() as u64;
            if replicas == 0 || !leases.mark(object.version, now) {
                stays = true;
                continue;
            }
            chosen.bytes += object.size * replicas;
            chosen.items.push(EvictItem { key, version: object.version });
        }
        if stays {
            self.policy.defer(unit);
            return false;
        }
        self.forget(key);
        if chosen.items.len() > before {
            self.policy.evict(unit);
        } else {
            // Its store was dropped.
            self.policy.remove(unit);
        }
        true
    }

    /// Takes objects back into the order whose eviction was refused; they are the next candidates but for age.
    pub fn keep(&mut self, items: &[EvictItem]) {
        for &EvictItem { key, .. } in items {
            if self.find(key).is_none() {
                let unit = self.policy.restore(key.to_u64(), false, Tracked { key, noted: 0 });
                self.add(key, unit);
            }
        }
    }

    /// Drops units whose objects a dropped store took along, a slice at each call, while there seem to be many.
    pub fn prune(&mut self, state: &State) {
        if self.len() as u64 <= state.objects() + state.objects() / 8 + PRUNE_SLICE as u64 {
            return;
        }
        for _ in 0..PRUNE_SLICE {
            let Some(unit) = self.policy.slot(self.prune_from) else {
                self.prune_from = 0;
                return;
            };
            self.prune_from += 1;
            if let Some(key) = unit.and_then(|unit| self.policy.get(unit)).map(|it| it.key)
                && state.with_hash(key).next().is_none()
                && let Some(unit) = self.forget(key)
            {
                self.policy.remove(unit);
            }
        }
    }
}
