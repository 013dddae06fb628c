use std::ops::Range;

use mc_types::ClusterTime;

use super::segment::{Segment, Space, SpaceUsage};
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
    /// Sum of the live segments.
    total: SpaceUsage,
}

impl Segments {
    pub(crate) fn new() -> Self {
        Self {
            by_number: CowMap::new(),
            next: 0,
            dropped: CowMap::new(),
            earliest_held: CowMap::new(),
            total: SpaceUsage::default(),
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
        self.total.add(segment.space.as_ref().map_or_else(SpaceUsage::default, Space::usage));
        self.by_number.insert(number, segment);
    }

    /// Bytes of all live segments together.
    pub(crate) fn total(&self) -> SpaceUsage {
        self.total
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

    /// Changes the space of a live segment.
    pub(crate) fn change<R>(&mut self, number: u32, change: impl FnOnce(&mut Space) -> R) -> Option<R> {
        let space = self.by_number.get_mut(&number)?.space.as_mut()?;
        self.total.subtract(space.usage());
        let result = change(space);
        self.total.add(space.usage());
        Some(result)
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
        self.total.subtract(space.usage());
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
        self.change(number, |space| space.alloc.alloc(len))?
    }

    /// Frees bytes; does nothing when the segment is gone.
    pub(crate) fn free(&mut self, number: u32, offset: u64, len: u64) {
        self.change(number, |space| space.alloc.free(offset, len));
    }

    /// Counts the bytes of a put that has begun there; does nothing for a segment that is gone.
    pub(crate) fn begin_put(&mut self, number: u32, len: u64) {
        self.change(number, |space| space.in_flight_bytes += allocated(len));
    }

    /// Stops counting the bytes of a put in flight.
    pub(crate) fn end_put(&mut self, number: u32, len: u64) {
        self.change(number, |space| space.in_flight_bytes -= allocated(len));
    }

    /// Counts the bytes of a replica that is placed as hard-pinned; does nothing for another pin or a segment that is
    /// gone.
    pub(crate) fn pin(&mut self, number: u32, len: u64, pin: Pin) {
        if pin.is_hard() {
            self.change(number, |space| space.pinned_bytes += allocated(len));
        }
    }

    /// Stops counting the bytes of a replica as hard-pinned; the counterpart of [`Self::pin`].
    pub(crate) fn unpin(&mut self, number: u32, len: u64, pin: Pin) {
        if pin.is_hard() {
            self.change(number, |space| space.pinned_bytes -= allocated(len));
        }
    }

    /// Keeps bytes from being reused until `until`.
    pub(crate) fn hold(&mut self, number: u32, offset: u64, len: u64, until: ClusterTime) {
        let earliest = self.change(number, |space| {
            let before = first_of(space);
            if space.held.insert((until, offset), len).is_none() {
                space.held_bytes += allocated(len);
            }
            (before, first_of(space))
        });
        self.note_earliest(number, earliest);
    }

    /// Frees the held bytes of a segment that have the earliest reuse time.
    pub(crate) fn release_first(&mut self, number: u32) {
        let earliest = self.change(number, |space| {
            let (&key, &len) = space.held.first()?;
            space.held.remove(&key);
            space.held_bytes -= allocated(len);
            space.alloc.free(key.1, len);
            Some((Some(key.0), first_of(space)))
        });
        self.note_earliest(number, earliest.flatten());
    }

    /// Notes the earliest reuse time of a segment's held bytes before a change and after it.
    fn note_earliest(&mut self, number: u32, change: Option<(Option<ClusterTime>, Option<ClusterTime>)>) {
        if let Some((before, after)) = change
            && before != after
        {
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
