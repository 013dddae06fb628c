//! The allocator of one segment: offsets and lengths, no memory.
//!
//! KV caches are a few exact sizes repeated millions of times, so equal sizes live together. A *run* is a row of up to
//! 64 slots of one size, carved from free space by best fit and given back whole when its last slot is freed. The next
//! allocation of the same size fills a hole in a run without waste. Best fit over mixed sizes can't do that: there a
//! small size breaks up the hole of a large one. The length of a run grows with the number of live slots of its size. A
//! rare size gets runs of one slot, which is plain best fit.
//!
//! When no free space is left, a size may take a free slot of a larger size and cut that into a run of its own (one
//! level deep). So a shift in the mix of sizes does not strand the slots of the size that shrank.
//!
//! All other data can be rebuilt from the runs, so a snapshot lists only them. When it is read, every owner of an
//! allocation claims its slot again ([`Allocator::claim`]).

mod extent;
mod free;
pub(crate) mod run;

use mc_types::ALLOCATION_ALIGN;

use crate::bounds::bound;
use crate::cow::CowMap;
use free::FreeSpace;
use run::Run;

/// Divisor of the segment size that gives the longest run, so that small segments are not cut into coarse pieces.
pub(crate) const RUN_PART: u64 = 256;
/// Divisor of a size's live slots that gives the slots of its next run, so that free slots stay in proportion.
pub(crate) const GROWTH_PART: u64 = 8;
/// Maximum number of larger sizes that are searched for a slot to cut up.
pub(crate) const NEST_TRIES: usize = 64;

/// A run as a snapshot lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLayout {
    /// Bytes of a slot.
    pub slot: u64,
    /// Offset of the first byte of the run.
    pub offset: u64,
    /// Number of slots, at most 64.
    pub slots: u8,
    /// Bytes of the slot that the run was cut from; zero when it was carved from free space.
    pub parent: u64,
}

/// Error of a layout or a claim that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No allocator would have made this run.
    #[error("a run that is empty, misaligned, too long or out of place")]
    Run,
    /// Two runs overlap, or have the same slot size and offset.
    #[error("two runs of slots overlap")]
    Overlap,
    /// No run has this slot.
    #[error("an allocation that is in no run")]
    NoSlot,
    /// Two owners claim the same slot.
    #[error("two owners of one allocation")]
    Claimed,
    /// A run has no owner.
    #[error("a run without an owner")]
    Unused,
}

/// Allocates ranges of one segment. Deterministic; a clone is O(1).
#[derive(Clone)]
pub struct Allocator {
    capacity: u64,
    used: u64,
    free: FreeSpace,
    /// Number of live slots of each size.
    live: CowMap<u64, u64>,
    /// Runs by (slot size, offset).
    runs: CowMap<(u64, u64), Run>,
    /// Runs with a free slot, by (slot size, nested, offset). Allocations fill carved runs first, and those by address,
    /// so that high and nested runs drain.
    partial: CowMap<(u64, bool, u64), ()>,
}

/// Rounds up to the alignment; `None` from 2^64 on.
fn rounded(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(ALLOCATION_ALIGN)
}

/// Bytes that an allocation of `len` bytes takes. A length that no segment has room for is not checked yet.
pub(crate) fn allocated(len: u64) -> u64 {
    len.checked_next_multiple_of(ALLOCATION_ALIGN).unwrap_or(u64::MAX)
}

impl Allocator {
    /// An allocator over `bytes` bytes, rounded down to the alignment.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let capacity = bytes - bytes % ALLOCATION_ALIGN;
        Self {
            capacity,
            used: 0,
            free: FreeSpace::new(capacity),
            live: CowMap::new(),
            runs: CowMap::new(),
            partial: CowMap::new(),
        }
    }

    /// Bytes that can be allocated in all.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes allocated, including the rounding to the alignment.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Allocates `len` bytes (at least 1) and returns their offset; `None` when nothing fits.
    pub fn alloc(&mut self, len: u64) -> Option<u64> {
        let slot = rounded(len)?;
        if slot > self.capacity - self.used {
            return None;
        }
        let offset = self
            .take_from_run(slot, false)
            .or_else(|| self.take_from_free(slot))
            .or_else(|| self.take_from_run(slot, true))
            .or_else(|| self.take_from_larger(slot))?;
        self.used += slot;
        match self.live.get_mut(&slot) {
            Some(live) => *live += 1,
            None => drop(self.live.insert(slot, 1)),
        }
        Some(offset)
    }

    /// Frees an allocation of `len` bytes. Returns false and does nothing when there is no such allocation.
    pub fn free(&mut self, offset: u64, len: u64) -> bool {
        let Some(slot) = rounded(len) else { return false };
        if !self.release(slot, offset) {
            return false;
        }
        self.used -= slot;
        match self.live.get_mut(&slot) {
            Some(live) if *live > 1 => *live -= 1,
            _ => drop(self.live.remove(&slot)),
        }
        true
    }

    /// Takes a free slot of a run of exactly this size.
    fn take_from_run(&mut self, slot: u64, nested: bool) -> Option<u64> {
        let (&key, ()) = self.partial.at_or_after(&(slot, nested, 0))?;
        if (key.0, key.1) != (slot, nested) {
            return None;
        }
        let run = self.runs.get_mut(&(slot, key.2))?;
        let at = run.take()?;
        if run.is_full() {
            self.partial.remove(&key);
        }
        Some(key.2 + u64::from(at) * slot)
    }

    /// Carves a new run from free space and takes its first slot. The run is shorter when no free range is long enough.
    fn take_from_free(&mut self, slot: u64) -> Option<u64> {
        let live = self.live.get(&slot).copied().unwrap_or(0);
        let share = self.capacity / bound(RUN_PART, 4) / slot;
        let wanted = (live / bound(GROWTH_PART, 1)).min(share).clamp(1, u64::from(Run::MAX_SLOTS));
        let slots = wanted.min(self.free.longest() / slot);
        let offset = self.free.take(slots.checked_mul(slot).filter(|&len| len > 0)?)?;
        self.start_run(slot, offset, slots, 0);
        Some(offset)
    }

    /// Cuts a free slot of the next larger size that has one into a new run, and takes its first slot.
    fn take_from_larger(&mut self, slot: u64) -> Option<u64> {
        let parent = self.larger(slot)?;
        let offset = self.take_from_run(parent, false)?;
        let slots = (parent / slot).min(u64::from(Run::MAX_SLOTS));
        self.start_run(slot, offset, slots, parent);
        Some(offset)
    }

    /// Returns the next larger size with a free slot that may be cut up.
    fn larger(&self, slot: u64) -> Option<u64> {
        let mut from = (slot + 1, false, 0);
        for _ in 0..bound(NEST_TRIES, 1) {
            let (&(parent, nested, _), ()) = self.partial.at_or_after(&from)?;
            if !nested {
                return Some(parent);
            }
            from = (parent + 1, false, 0);
        }
        None
    }

    /// Registers a run whose first slot is taken.
    fn start_run(&mut self, slot: u64, offset: u64, slots: u64, parent: u64) {
        let mut run = Run::new(slots, parent);
        run.take();
        if !run.is_full() {
            self.partial.insert((slot, run.is_nested(), offset), ());
        }
        self.runs.insert((slot, offset), run);
    }

    fn release(&mut self, slot: u64, offset: u64) -> bool {
        let Some((start, at)) = self.slot_at(slot, offset) else { return false };
        let Some(run) = self.runs.get_mut(&(slot, start)) else { return false };
        let was_full = run.is_full();
        if !run.put_back(at) {
            return false;
        }
        let run = *run;
        let key = (slot, run.is_nested(), start);
        if !run.is_empty() {
            if was_full {
                self.partial.insert(key, ());
            }
            return true;
        }
        if !was_full {
            self.partial.remove(&key);
        }
        self.runs.remove(&(slot, start));
        if run.is_nested() {
            self.release(run.parent(), start);
        } else {
            self.free.give(start, slot * u64::from(run.slots()));
        }
        true
    }

    /// Returns the start of the run of that slot size which has a slot at `offset`, and the slot's number.
    fn slot_at(&self, slot: u64, offset: u64) -> Option<(u64, u8)> {
        let (&(size, start), run) = self.runs.at_or_before(&(slot, offset))?;
        if size != slot {
            return None;
        }
        let into = offset - start;
        let at = u8::try_from(into / slot).ok()?;
        (into.is_multiple_of(slot) && at < run.slots()).then_some((start, at))
    }

    /// Lists the runs by slot size and offset.
    pub fn runs(&self) -> impl Iterator<Item = RunLayout> {
        self.runs.iter().map(|(&(slot, offset), run)| RunLayout {
            slot,
            offset,
            slots: run.slots(),
            parent: run.parent(),
        })
    }

    /// Restores an allocator with these runs and all their slots free; the owners then [`Self::claim`] theirs.
    ///
    /// # Errors
    /// [`LayoutError`] when the runs do not fit the segment or each other.
    pub fn from_runs(bytes: u64, runs: impl IntoIterator<Item = RunLayout>) -> Result<Self, LayoutError> {
        let mut alloc = Self::new(bytes);
        let mut nested = Vec::new();
        for layout in runs {
            let len = layout.slot.checked_mul(u64::from(layout.slots)).ok_or(LayoutError::Run)?;
            let end = layout.offset.checked_add(len).ok_or(LayoutError::Run)?;
            let aligned = layout.slot.is_multiple_of(ALLOCATION_ALIGN)
                && layout.offset.is_multiple_of(ALLOCATION_ALIGN);
            let slots_fit = layout.slots > 0 && layout.slots <= Run::MAX_SLOTS;
            let parent_fits = layout.parent == 0 || (layout.parent > layout.slot && len <= layout.parent);
            if !aligned || layout.slot == 0 || !slots_fit || !parent_fits || end > alloc.capacity {
                return Err(LayoutError::Run);
            }
            if layout.parent == 0 {
                if !alloc.free.take_at(layout.offset, len) {
                    return Err(LayoutError::Overlap);
                }
            } else {
                nested.push(layout);
            }
            let run = Run::new(u64::from(layout.slots), layout.parent);
            alloc.partial.insert((layout.slot, run.is_nested(), layout.offset), ());
            if alloc.runs.insert((layout.slot, layout.offset), run).is_some() {
                return Err(LayoutError::Overlap);
            }
        }
        for layout in nested {
            let (start, _) = alloc.slot_at(layout.parent, layout.offset).ok_or(LayoutError::NoSlot)?;
            if alloc.runs.get(&(layout.parent, start)).is_none_or(Run::is_nested) {
                return Err(LayoutError::Run);
            }
            alloc.take_slot(layout.parent, layout.offset)?;
        }
        Ok(alloc)
    }

    /// Marks an allocation as owned, in an allocator restored by [`Self::from_runs`].
    ///
    /// # Errors
    /// [`LayoutError`] when no run has that slot or it is owned already.
    pub fn claim(&mut self, offset: u64, len: u64) -> Result<(), LayoutError> {
        let slot = rounded(len).ok_or(LayoutError::NoSlot)?;
        self.take_slot(slot, offset)?;
        self.used += slot;
        match self.live.get_mut(&slot) {
            Some(live) => *live += 1,
            None => drop(self.live.insert(slot, 1)),
        }
        Ok(())
    }

    /// Checks that every run has an owner, after all owners have claimed their slots.
    ///
    /// # Errors
    /// [`LayoutError::Unused`] for a run without one.
    pub fn check_claimed(&self) -> Result<(), LayoutError> {
        if self.runs.iter().any(|(_, run)| run.is_empty()) { Err(LayoutError::Unused) } else { Ok(()) }
    }

    fn take_slot(&mut self, slot: u64, offset: u64) -> Result<(), LayoutError> {
        let (start, at) = self.slot_at(slot, offset).ok_or(LayoutError::NoSlot)?;
        let run = self.runs.get_mut(&(slot, start)).ok_or(LayoutError::NoSlot)?;
        if !run.take_at(at) {
            return Err(LayoutError::Claimed);
        }
        if run.is_full() {
            self.partial.remove(&(slot, run.is_nested(), start));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
