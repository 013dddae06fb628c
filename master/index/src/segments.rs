use mc_types::ClusterTime;

use super::cow::CowMap;
use super::segment::{Segment, Space};

/// All segments by their number, with what must be found without looking at each of them.
#[derive(Clone)]
pub(super) struct Segments {
    by_number: CowMap<u32, Segment>,
    /// The next number; numbers are never reused.
    next: u32,
    /// Dropped segments that still have residents to sweep.
    dropped: CowMap<u32, ()>,
    /// The earliest held bytes of each live segment that holds some.
    earliest_held: CowMap<(ClusterTime, u32), ()>,
}

impl Segments {
    pub(super) fn new() -> Self {
        Self { by_number: CowMap::new(), next: 0, dropped: CowMap::new(), earliest_held: CowMap::new() }
    }

    /// Segments with these numbers, as a snapshot lists them; dropped ones are marked by having no space.
    pub(super) fn restored(next: u32, segments: impl IntoIterator<Item = (u32, Segment)>) -> Self {
        let mut restored = Self { next, ..Self::new() };
        for (number, segment) in segments {
            if !segment.is_live() {
                restored.dropped.insert(number, ());
            }
            restored.by_number.insert(number, segment);
        }
        restored
    }

    pub(super) fn next(&self) -> u32 {
        self.next
    }

    pub(super) fn get(&self, number: u32) -> Option<&Segment> {
        self.by_number.get(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.by_number.iter().map(|(&number, segment)| (number, segment))
    }

    pub(super) fn live(&self, number: u32) -> Option<&Segment> {
        self.get(number).filter(|segment| segment.is_live())
    }

    pub(super) fn space(&self, number: u32) -> Option<&Space> {
        self.get(number)?.space.as_ref()
    }

    pub(super) fn space_mut(&mut self, number: u32) -> Option<&mut Space> {
        self.by_number.get_mut(&number)?.space.as_mut()
    }

    /// Adds segments under consecutive numbers and returns the first; `None` when numbers have run out.
    pub(super) fn add(&mut self, segments: Vec<Segment>) -> Option<u32> {
        let first = self.next;
        self.next = first.checked_add(u32::try_from(segments.len()).ok()?)?;
        for (number, segment) in (first..).zip(segments) {
            self.by_number.insert(number, segment);
        }
        Some(first)
    }

    /// Ends a segment: its replicas are invisible from now on, its residents are left to sweep. What was held or in
    /// flight in it ends with it.
    pub(super) fn drop_segment(&mut self, number: u32) {
        let Some(segment) = self.by_number.get_mut(&number) else { return };
        let Some(space) = segment.space.take() else { return };
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

    /// The lowest dropped segment that is not swept, and its lowest resident: offset and shard.
    pub(super) fn next_to_sweep(&self) -> Option<(u32, u64, u32)> {
        let (&number, ()) = self.dropped.first()?;
        let (offset, shard) = self.get(number)?.residents.first()?;
        Some((number, offset, shard))
    }

    /// Notes that an object of that shard lies there.
    pub(super) fn settle(&mut self, number: u32, offset: u64, shard: u32) {
        if let Some(segment) = self.by_number.get_mut(&number) {
            segment.residents.insert(offset, shard);
        }
    }

    /// Notes that it no longer does.
    pub(super) fn leave(&mut self, number: u32, offset: u64, shard: u32) {
        if self.get(number).is_some()
            && let Some(segment) = self.by_number.get_mut(&number)
        {
            segment.residents.remove(offset, shard);
        }
        self.forget_if_empty(number);
    }

    pub(super) fn alloc(&mut self, number: u32, len: u64) -> Option<u64> {
        self.space_mut(number)?.alloc.alloc(len)
    }

    /// Frees bytes; nothing to do when the segment is gone.
    pub(super) fn free(&mut self, number: u32, offset: u64, len: u64) {
        if let Some(space) = self.space_mut(number) {
            space.alloc.free(offset, len);
        }
    }

    /// Keeps bytes from being reused until `until`.
    pub(super) fn hold(&mut self, number: u32, offset: u64, len: u64, until: ClusterTime) {
        let Some(space) = self.space_mut(number) else { return };
        let before = first_of(space);
        space.held.insert((until, offset), len);
        let after = first_of(space);
        self.note_earliest(number, before, after);
    }

    /// Frees the bytes of a segment that have been held longest.
    pub(super) fn release_first(&mut self, number: u32) {
        let Some(space) = self.space_mut(number) else { return };
        let Some((&key, &len)) = space.held.first() else { return };
        space.held.remove(&key);
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

    /// When the next held bytes may be reused.
    pub(super) fn next_release(&self) -> Option<ClusterTime> {
        self.earliest_held.first().map(|(&(time, _), ())| time)
    }

    /// Segments that hold bytes, the longest held first, with the time from which those may be reused.
    pub(super) fn holding(&self) -> impl Iterator<Item = (ClusterTime, u32)> {
        self.earliest_held.iter().map(|(&key, ())| key)
    }

    /// Frees held bytes whose time has come, at most `limit` of them.
    pub(super) fn release_due(&mut self, now: ClusterTime, limit: usize) {
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
