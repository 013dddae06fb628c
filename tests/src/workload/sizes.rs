use std::ops::Range;

use super::Workload;
use crate::Seeded;

/// Sizes of values, in bytes.
#[derive(Clone, Debug)]
pub(super) enum Sizes {
    /// Any size of the range.
    Any(Range<u64>),
    /// A shortest size of the range for each key, and up to twice as much. Most keys have small values, and those that only
    /// bursts touch the smallest.
    OfEachKey(Range<u64>),
}

impl Workload {
    /// Returns the size of the shortest value of a key.
    pub(super) fn shortest(&self, key: u64) -> u64 {
        match &self.sizes {
            Sizes::Any(sizes) => sizes.start,
            Sizes::OfEachKey(sizes) if key >= self.keys => sizes.start,
            Sizes::OfEachKey(sizes) => Seeded::new(key).skewed(sizes.start..sizes.end / 2),
        }
    }

    /// Returns a size that no value of a key exceeds.
    pub(super) fn longest(&self, key: u64) -> u64 {
        match &self.sizes {
            Sizes::Any(sizes) => sizes.end,
            Sizes::OfEachKey(_) => 2 * self.shortest(key),
        }
    }

    /// Draws the size of a value of a key.
    pub(super) fn len(&self, key: u64, random: &mut Seeded) -> usize {
        let len = match &self.sizes {
            Sizes::Any(sizes) => random.within(sizes.clone()),
            Sizes::OfEachKey(_) => self.shortest(key) + random.below(self.shortest(key) + 1),
        };
        len as usize
    }
}
