/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers from the same seed on every replica.
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`; `None` when `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> Option<usize> {
        usize::try_from(self.below_u64(n as u64)?).ok()
    }

    pub(crate) fn below_u64(&mut self, n: u64) -> Option<u64> {
        let scaled = (u128::from(self.next()) * u128::from(n)) >> 64;
        u64::try_from(scaled).ok().filter(|&at| at < n)
    }
}
