use std::ops::Range;

/// Step of the generator from one number to the next.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A small seeded generator (SplitMix64): the same seed gives the same run on every machine and in every version.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// Makes a generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Passes over the next `count` times 64 bits.
    pub fn skip(&mut self, count: u64) {
        self.0 = self.0.wrapping_add(GAMMA.wrapping_mul(count));
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0. The slight bias does not matter to a test.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits().checked_rem(bound).unwrap_or(0)
    }

    /// Returns a number of the range.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// Returns a number of the range, which does not begin at 0, of which small ones are more likely: each doubling is as
    /// likely as the next.
    pub fn skewed(&mut self, range: Range<u64>) -> u64 {
        let mut end = range.end;
        for _ in 0..self.below(u64::from((range.end / range.start).ilog2()) + 1) {
            end = (end / 2).max(range.start + 1);
        }
        self.within(range.start.max(end / 2)..end)
    }

    /// Returns an independent generator for part `n` of the run.
    pub fn part(&self, n: u64) -> Self {
        let mut part = Self(self.0 ^ n.wrapping_mul(0xd134_2543_de82_ef95));
        part.bits();
        part
    }
}
