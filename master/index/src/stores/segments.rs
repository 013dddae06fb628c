use std::ops::Range;

use mc_types::ClusterTime;

use super::segment::{Segment, Space};
use crate::alloc::allocated;
use crate::command::Pin;
use crate::cow::CowMap;

/// All segments by number, with indexes that save looking at each segment.
#[derive(Clone)]
pub(crate) struct Segments {
    by_number: CowMap<u32, Segment>,
    /// The next number; numbers are never reused.
    next: u32,
    /// Dropped segments that still have residents to sweep.
    dropped: CowMap<u32, ()>,
    /// Earliest reuse time of held bytes, for each live segment that holds some.
    earliest_held: CowMap<(ClusterTime, u32), ()>,
    /// Bytes of the live segments that can be allocated.
    capacity: u64,
    /// Bytes in live segments that hard-pinned replicas take.
    pinned: u64,
}

impl Segments {
    pub(crate) fn new() -> Self {
        Self {
            by_number: CowMap::new(),
            next: 0,
            dropped: CowMap::new(),
            earliest_held: CowMap::new(),
            capacity: 0,
            pinned: 0,
        }
    }

    /// Restores the segments of a snapshot under their numbers; a dropped segment is one without space.
    pub(crate) fn restored(next: u32, segments: impl IntoIterator<Item = (u32, Segment)>) -> Self {
        let mut restored = Self { next, ..Self::new() };
        for (number, segment) in segments {
            if !segment.is_live() {
                restored.dropped.insert(number, ());
            }
            restored.insert(number, segment);
        }
        restored
    }

    fn insert(&mut self, number: u32, segment: Segment) {
        self.capacity += segment.space.as_ref().map_or(0, |space| space.alloc.capacity());
        self.by_number.insert(number, segment);
    }

    /// Bytes of the live segments that can be allocated.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes in live segments that hard-pinned replicas take.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned
    }

    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Segment> {
        self.by_number.get(&number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.by_number.iter().map(|(&number, segment)| (number, segment))
    }

    pub(crate) fn live(&self, number: u32) -> Option<&Segment> {
        self.get(number).filter(|segment| segment.is_live())
    }

    pub(crate) fn space(&self, number: u32) -> Option<&Space> {
        self.get(number)?.space.as_ref()
    }

    pub(crate) fn space_mut(&mut self, number: u32) -> Option<&mut Space> {
        self.by_number.get_mut(&number)?.space.as_mut()
    }

    /// Adds segments under consecutive numbers and returns these; `None` is a segment that was unmounted before, and
    /// takes a number as well. Returns `None` when numbers have run out.
    pub(crate) fn add(&mut self, segments: Vec<Option<Segment>>) -> Option<Range<u32>> {
        let first = self.next;
        self.next = first.checked_add(u32::try_from(segments.len()).ok()?)?;
        for (number, segment) in (first..).zip(segments) {
            if let Some(segment) = segment {
                self.insert(number, segment);
            }
        }
        Some(first..self.next)
    }

    /// Ends a segment: its replicas are invisible from now on, its residents wait for the sweep, and its held bytes and
    /// puts in flight end with it.
    pub(crate) fn drop_segment(&mut self, number: u32) {
        let Some(segment) = self.by_number.get_mut(&number) else { return };
        let Some(space) = segment.space.take() else { return };
        self.capacity -= space.alloc.capacity();
        self.pinned -= space.pinned_bytes;
        if let Some((&(time, _), _)) = space.held.first() {
            self.earliest_held.remove(&(time, number));
        }
        self.dropped.insert(number, ());
        self.forget_if_empty(number);
    }

    fn forget_if_empty(&mut self, number: u32) {
        if self.dropped.contains(&number) && self.get(number).is_none_or(|s| s.residents.len() == 0) {
            self.dropped.remove(&number);
            self.by_number.remove(&number);
        }
    }

    /// Returns the lowest dropped segment that is not swept, and the offset and shard of its lowest resident.
    pub(crate) fn next_to_sweep(&self) -> Option<(u32, u64, u32)> {
        let (&number, ()) = self.dropped.first()?;
        let (offset, shard) = self.get(number)?.residents.first()?;
        Some((number, offset, shard))
    }

    /// Records that an object of that shard lies at this offset.
    pub(crate) fn settle(&mut self, number: u32, offset: u64, shard: u32) {
        if let Some(segment) = self.by_number.get_mut(&number) {
            segment.residents.insert(offset, shard);
        }
    }

    /// Removes the record that an object of that shard lies at this offset.
    pub(crate) fn leave(&mut self, number: u32, offset: u64, shard: u32) {
        if self.get(number).is_some()
            && let Some(segment) = self.by_number.get_mut(&number)
        {
            segment.residents.remove(offset, shard);
        }
        self.forget_if_empty(number);
    }

    pub(crate) fn alloc(&mut self, number: u32, len: u64) -> Option<u64> {
        self.space_mut(number)?.alloc.alloc(len)
    }

    /// Frees bytes; does nothing when the segment is gone.
    pub(crate) fn free(&mut self, number: u32, offset: u64, len: u64) {
        if let Some(space) = self.space_mut(number) {
            space.alloc.free(offset, len);
        }
    }

    /// Counts the bytes of a replica that is placed as hard-pinned; does nothing for another pin or a segment that is
    /// gone.
    pub(crate) fn pin(&mut self, number: u32, len: u64, pin: Pin) {
        if pin.is_hard()
            && let Some(space) = self.space_mut(number)
        {
            space.pinned_bytes += allocated(len);
            self.pinned += allocated(len);
        }
    }

    /// Stops counting the bytes of a replica as hard-pinned; the counterpart of [`Self::pin`].
    pub(crate) fn unpin(&mut self, number: u32, len: u64, pin: Pin) {
        if pin.is_hard()
            && let Some(space) = self.space_mut(number)
        {
            space.pinned_bytes -= allocated(len);
            self.pinned -= allocated(len);
        }
    }

    /// Keeps bytes from being reused until `until`.
    pub(crate) fn hold(&mut self, number: u32, offset: u64, len: u64, until: ClusterTime) {
        let Some(space) = self.space_mut(number) else { return };
        let before = first_of(space);
        if space.held.insert((until, offset), len).is_none() {
            space.held_bytes += allocated(len);
        }
        let after = first_of(space);
        self.note_earliest(number, before, after);
    }

    /// Frees the held bytes of a segment that have the earliest reuse time.
    pub(crate) fn release_first(&mut self, number: u32) {
        let Some(space) = self.space_mut(number) else { return };
        let Some((&key, &len)) = space.held.first() else { return };
        space.held.remove(&key);
        space.held_bytes -= allocated(len);
        space.alloc.free(key.1, len);
        let after = first_of(space);
        self.note_earliest(number, Some(key.0), after);
    }

    fn note_earliest(&mut self, number: u32, before: Option<ClusterTime>, after: Option<ClusterTime>) {
        if before != after {
            if let Some(time) = before {
                self.earliest_held.remove(&(time, number));
            }
            if let Some(time) = after {
                self.earliest_held.insert((time, number), ());
            }
        }
    }

    /// Returns the time at which the next held bytes may be reused.
    pub(crate) fn next_release(&self) -> Option<ClusterTime> {
        self.earliest_held.first().map(|(&(time, _), ())| time)
    }

    /// Lists the segments that hold bytes with the earliest time from which those may be reused, earliest first.
    pub(crate) fn holding(&self) -> impl Iterator<Item = (ClusterTime, u32)> {
        self.earliest_held.iter().map(|(&key, ())| key)
    }

    /// Frees held ranges whose reuse time has come, at most `limit` of them.
    pub(crate) fn release_due(&mut self, now: ClusterTime, limit: usize) {
        for _ in 0..limit {
            match self.earliest_held.first() {
                Some((&(time, number), ())) if time <= now => self.release_first(number),
                _ => return,
            }
        }
    }
}

fn first_of(space: &Space) -> Option<ClusterTime> {
    space.held.first().map(|(&(time, _), _)| time)
}
