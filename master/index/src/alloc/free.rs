use std::ops::Range;

use crate::cow::CowMap;

/// The free ranges of a segment, handed out by best fit. Adjacent ranges are always joined.
#[derive(Clone)]
pub(super) struct FreeSpace {
    by_offset: CowMap<u64, u64>,
    by_len: CowMap<(u64, u64), ()>,
}

impl FreeSpace {
    pub(super) fn new(capacity: u64) -> Self {
        let mut free = Self { by_offset: CowMap::new(), by_len: CowMap::new() };
        if capacity > 0 {
            free.add(0, capacity);
        }
        free
    }

    /// Length of the longest range.
    pub(super) fn longest(&self) -> u64 {
        self.by_len.last().map_or(0, |(&(len, _), ())| len)
    }

    /// Takes `len` bytes from the start of the shortest range that is long enough, and of equal ones the lowest.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let (&(range, offset), ()) = self.by_len.at_or_after(&(len, 0))?;
        self.cut(offset, range);
        if range > len {
            self.add(offset + len, range - len);
        }
        Some(offset)
    }

    /// Takes exactly this range; returns false when it is not free.
    pub(super) fn take_at(&mut self, offset: u64, len: u64) -> bool {
        let Some((&start, &range)) = self.by_offset.at_or_before(&offset) else { return false };
        if offset + len > start + range {
            return false;
        }
        self.cut(start, range);
        if offset > start {
            self.add(start, offset - start);
        }
        if start + range > offset + len {
            self.add(offset + len, start + range - offset - len);
        }
        true
    }

    /// Returns a range and joins it with its free neighbours.
    pub(super) fn give(&mut self, offset: u64, len: u64) {
        let (mut offset, mut len) = (offset, len);
        if let Some((&start, &range)) = self.by_offset.at_or_before(&offset)
            && start + range == offset
        {
            self.cut(start, range);
            (offset, len) = (start, range + len);
        }
        let end = offset + len;
        if let Some(&range) = self.by_offset.get(&end) {
            self.cut(end, range);
            len += range;
        }
        self.add(offset, len);
    }

    /// Extends a range by the free ranges beside it.
    pub(super) fn around(&self, range: Range<u64>) -> Range<u64> {
        let before = self.by_offset.at_or_before(&range.start);
        let start = before
            .filter(|(start, len)| **start + **len == range.start)
            .map_or(range.start, |(start, _)| *start);
        let end = range.end + self.by_offset.get(&range.end).unwrap_or(&0);
        start..end
    }

    /// The ranges, by offset.
    #[cfg(test)]
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_offset.iter().map(|(&offset, &len)| (offset, len))
    }

    fn add(&mut self, offset: u64, len: u64) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset), ());
    }

    fn cut(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
    }
}
