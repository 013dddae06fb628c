//! The allocator of one segment: offsets and lengths, no memory.
//!
//! KV caches are a few exact sizes repeated millions of times, so equal sizes live together: a *run* is a row of up
//! to 64 slots of one size, carved from free space by best fit and given back whole when its last slot is freed. A
//! hole in a run is filled by the next allocation of the same size, without waste, which is what best fit over mixed
//! sizes can't do: there a small size breaks the hole of a large one. Runs grow with what a size has live, so a size
//! that is rare is a run of one slot and this is plain best fit.
//!
//! When no free space is left, a size may take a free slot of a larger size and cut that into a run of its own (one
//! level deep): a shift in the mix of sizes does not strand the slots of the one that shrank.
//!
//! Everything but the runs themselves can be rebuilt from them, so a snapshot lists the runs, and every owner of an
//! allocation claims its slot again when it is read ([`Allocator::claim`]).

mod free;
mod run;

use mc_types::ALLOCATION_ALIGN;

use super::cow::CowMap;
use free::FreeSpace;
use run::Run;

/// A run takes at most this part of its segment, so that small segments are not cut into coarse pieces.
const RUN_PART: u64 = 256;
/// A new run has this part of what its size has live: the slots that a size holds in reserve stay in proportion.
const GROWTH_PART: u64 = 8;
/// Most larger sizes looked at for a slot to cut up.
const NEST_TRIES: usize = 64;

/// A run as a snapshot lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLayout {
    /// Bytes of a slot.
    pub slot: u64,
    /// First byte of the run.
    pub offset: u64,
    /// How many slots, at most 64.
    pub slots: u8,
    /// Bytes of the slot that it was cut from; zero when it was carved from free space.
    pub parent: u64,
}

/// Why a layout or a claim does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A run that no allocator would have made.
    #[error("a run that is empty, misaligned, too long or out of place")]
    Run,
    /// Two runs, or a run and its place, overlap.
    #[error("two runs overlap")]
    Overlap,
    /// No run has that slot.
    #[error("an allocation that is in no run")]
    NoSlot,
    /// Two owners of one slot.
    #[error("two owners of one allocation")]
    Claimed,
    /// A run that nothing owns.
    #[error("a run without an owner")]
    Unused,
}

/// Hands out ranges of one segment. Deterministic; a clone is O(1).
#[derive(Clone)]
pub struct Allocator {
    capacity: u64,
    used: u64,
    free: FreeSpace,
    /// Live slots of each size.
    live: CowMap<u64, u64>,
    /// By (slot size, offset).
    runs: CowMap<(u64, u64), Run>,
    /// Runs with a free slot, by (slot size, nested, offset): carved ones first, then by address, so that high and
    /// nested runs drain.
    partial: CowMap<(u64, bool, u64), ()>,
}

/// Rounds up to the alignment; `None` above 2^64.
fn rounded(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(ALLOCATION_ALIGN)
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

    /// Bytes that can be handed out.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes handed out, rounding to the alignment included.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Allocates `len` bytes (at least 1); `None` when nothing fits.
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

    /// Frees what [`Self::alloc`] returned for `len`. False, and nothing is done, when that is not allocated.
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

    /// A free slot of a run of this very size.
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

    /// A new run from free space: as many slots as the size deserves, fewer when no free range is that long.
    fn take_from_free(&mut self, slot: u64) -> Option<u64> {
        let live = self.live.get(&slot).copied().unwrap_or(0);
        let share = self.capacity / RUN_PART / slot;
        let wanted = (live / GROWTH_PART).min(share).clamp(1, u64::from(Run::MAX_SLOTS));
        let slots = wanted.min(self.free.longest() / slot);
        let offset = self.free.take(slots.checked_mul(slot).filter(|&len| len > 0)?)?;
        self.start_run(slot, offset, slots, 0);
        Some(offset)
    }

    /// A new run in a free slot of a carved run of the next larger size that has one.
    fn take_from_larger(&mut self, slot: u64) -> Option<u64> {
        let mut from = (slot + 1, false, 0);
        for _ in 0..NEST_TRIES {
            let (&(parent, nested, _), ()) = self.partial.at_or_after(&from)?;
            if nested {
                from = (parent + 1, false, 0);
                continue;
            }
            let offset = self.take_from_run(parent, false)?;
            let slots = (parent / slot).min(u64::from(Run::MAX_SLOTS));
            self.start_run(slot, offset, slots, parent);
            return Some(offset);
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

    /// The run of that slot size which has a slot at `offset`, and the slot's number.
    fn slot_at(&self, slot: u64, offset: u64) -> Option<(u64, u8)> {
        let (&(size, start), run) = self.runs.at_or_before(&(slot, offset))?;
        if size != slot {
            return None;
        }
        let into = offset - start;
        let at = u8::try_from(into / slot).ok()?;
        (into.is_multiple_of(slot) && at < run.slots()).then_some((start, at))
    }

    /// The runs, in a fixed order.
    pub fn runs(&self) -> impl Iterator<Item = RunLayout> {
        self.runs.iter().map(|(&(slot, offset), run)| RunLayout {
            slot,
            offset,
            slots: run.slots(),
            parent: run.parent(),
        })
    }

    /// An allocator with these runs and no slot of them taken; the owners then [`Self::claim`] theirs.
    ///
    /// # Errors
    /// [`LayoutError`] for runs that can't stand together.
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

    /// Marks an allocation as owned, in an allocator made by [`Self::from_runs`].
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

    /// Checks that every run has an owner, once all have claimed.
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
