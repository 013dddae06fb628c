//! The pool of a schedule: how large the values are, and whether there is room for all.

use mc_tests::Seeded;

use crate::keys;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Most bytes of a value where all are small.
const SMALL: u64 = 8 * KIB;
/// Most bytes of a value of which there are few, or that may be pinned for good.
const MIDDLE: u64 = MIB;
/// Most bytes of any value: three fit into a segment, and then nothing else does.
const LARGE: u64 = 5 * MIB;

/// Kind of the pool of one schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// Small values, with room for all.
    Roomy,
    /// Small values, of which eviction keeps some 40.
    Few,
    /// Values of a byte to some MiB, more than there is room for.
    Full,
}

impl Pool {
    /// Bytes that each store lends.
    pub(crate) const SEGMENT: u64 = 16 * MIB;

    pub(crate) fn draw(mut rng: Seeded) -> Self {
        match rng.below(4) {
            0 | 1 => Self::Roomy,
            2 => Self::Few,
            _ => Self::Full,
        }
    }

    /// Whether objects are evicted besides those of a tenant at its quota.
    pub(crate) fn evicts(self) -> bool {
        self != Self::Roomy
    }

    /// Settings by which it evicts, other than usual.
    pub(crate) fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Few => &[("eviction-low-watermark", "0.003"), ("eviction-high-watermark", "0.004")],
            Self::Roomy | Self::Full => &[],
        }
    }

    /// Draws the size of a value in bytes.
    pub(crate) fn size(self, key: &str, rng: &mut Seeded) -> u64 {
        let most = match (self, rng.below(4)) {
            (Self::Roomy | Self::Few, _) | (Self::Full, 0) => SMALL,
            (Self::Full, 1) => 64 * KIB,
            (Self::Full, 2) => MIDDLE,
            (Self::Full, _) => LARGE,
        };
        1 + rng.below(most.min(if keys::stays_small(key) { MIDDLE / 16 } else { LARGE }))
    }
}
