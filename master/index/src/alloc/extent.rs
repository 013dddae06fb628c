//! Ranges that become free as a whole when the allocations in them are freed.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Allocator, rounded};

/// A range of a segment that is about to be emptied for one larger allocation.
///
/// It is made of whole runs and the free space beside them, or is one slot that was cut up into a nested run. Whoever
/// empties it counts each allocation, because allocations of others (puts in flight, held bytes) may lie between.
#[derive(Debug)]
pub(crate) struct Extent {
    range: Range<u64>,
    kind: Kind,
    /// Number of slots that become free, of each run in the range.
    freed: BTreeMap<(u64, u64), u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One slot, of at least the length of the larger allocation.
    Slot,
    /// Whole runs that were carved from free space, and free space beside them.
    Runs,
}

impl Allocator {
    /// Whether an allocation of `len` bytes would succeed.
    #[must_use]
    pub fn fits(&self, len: u64) -> bool {
        let Some(slot) = rounded(len).filter(|&slot| slot <= self.capacity - self.used) else { return false };
        let has_slot = |nested| {
            let first = self.partial.at_or_after(&(slot, nested, 0));
            first.is_some_and(|(key, ())| (key.0, key.1) == (slot, nested))
        };
        self.free.longest() >= slot || has_slot(false) || has_slot(true) || self.larger(slot).is_some()
    }

    /// Returns the extent to empty around an allocation of `len` bytes at `offset`, so that `wanted` bytes fit, or fit
    /// once it is extended.
    pub(crate) fn extent(&self, offset: u64, len: u64, wanted: u64) -> Option<Extent> {
        let (slot, wanted) = (rounded(len)?, rounded(wanted)?);
        let (start, _) = self.slot_at(slot, offset)?;
        let parent = self.runs.get(&(slot, start))?.parent();
        let slot_of = |offset, len| Extent::new(offset..offset + len, Kind::Slot);
        // A free slot of a nested run serves its own size alone, any other slot smaller sizes, too.
        if slot == wanted || (parent == 0 && slot > wanted) {
            return Some(slot_of(offset, slot));
        }
        if parent >= wanted {
            return Some(slot_of(start, parent));
        }
        let mut range = self.carved(slot, start)?;
        if range.end - range.start < wanted {
            range = self.free.around(range);
        }
        Some(Extent::new(range, Kind::Runs))
    }

    /// Returns the range of a run that was carved from free space: this run, or the one that it was cut from.
    fn carved(&self, slot: u64, start: u64) -> Option<Range<u64>> {
        let run = self.runs.get(&(slot, start))?;
        if run.is_nested() {
            return self.carved(run.parent(), self.slot_at(run.parent(), start)?.0);
        }
        Some(start..start + slot * u64::from(run.slots()))
    }
}

impl Extent {
    fn new(range: Range<u64>, kind: Kind) -> Self {
        Self { range, kind, freed: BTreeMap::new() }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Extends the range by the run that begins at its end and has an allocation of `len` bytes at `offset`, and by the
    /// free space behind that. Returns false if the run does not begin there.
    pub(crate) fn extend(&mut self, alloc: &Allocator, offset: u64, len: u64) -> bool {
        let place = rounded(len).and_then(|slot| Some((slot, alloc.slot_at(slot, offset)?.0)));
        let Some(run) = place.and_then(|(slot, start)| alloc.carved(slot, start)) else { return false };
        let follows = self.kind == Kind::Runs && run.start == self.range.end;
        if follows {
            self.range.end = alloc.free.around(run).end;
        }
        follows
    }

    /// Counts an allocation in the range as one that becomes free. Returns false if there is none.
    pub(crate) fn count(&mut self, alloc: &Allocator, offset: u64, len: u64) -> bool {
        let place = rounded(len).and_then(|slot| Some((slot, alloc.slot_at(slot, offset)?.0)));
        let Some((slot, start)) = place else { return false };
        let freed = self.freed.entry((slot, start)).or_default();
        *freed += 1;
        let parent = alloc.runs.get(&(slot, start)).map_or(0, super::Run::parent);
        if *freed == 1 && parent > 0 && self.kind == Kind::Runs {
            // Once the nested run is empty, its slot is free.
            if let Some((start, _)) = alloc.slot_at(parent, start) {
                *self.freed.entry((parent, start)).or_default() += 1;
            }
        }
        true
    }

    /// Whether the counted allocations are all that lie in the range.
    pub(crate) fn is_whole(&self, alloc: &Allocator) -> bool {
        let is_slot = |&(slot, _): &(u64, u64)| self.kind == Kind::Slot && slot == self.len();
        let whole = |(run, freed): (&(u64, u64), &u32)| {
            // An allocation that is the slot itself leaves the others of its run alone.
            is_slot(run) || alloc.runs.get(run).is_some_and(|run| run.taken() == *freed)
        };
        !self.freed.is_empty() && self.freed.iter().all(whole)
    }
}
