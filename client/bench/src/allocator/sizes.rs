//! The sizes that the workloads of `mc-bench allocator` ask for.

use clap::ValueEnum;
use rand::RngExt;
use rand::rngs::SmallRng;

/// Sizes of the objects in the allocator's bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AllocatorWorkload {
    /// 3,274,752 bytes: one page of KV cache
    Kv,
    /// Calls of 1 to 128 pages of 3,274,752 and 658,432 bytes each
    Paired,
    /// One size in each pool: powers of two from 4 KiB to 16 MiB, and 17 bytes or a tenth beside them
    Uniform,
    /// Any size from 1 KiB to 16 MiB
    Random,
}

impl AllocatorWorkload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Paired => "paired",
            Self::Uniform => "uniform",
            Self::Random => "random",
        }
    }
}

/// Bytes of the KV cache of one page in a model with sparse attention, and of the state of its indexer. They are put
/// side by side (Mooncake, `mooncake-store/benchmarks/allocator_bench.cpp`).
const KV: u64 = 3_274_752;
const STATE: u64 = 658_432;
/// Maximum number of pages that one call of the paired workload puts.
const PAGES: usize = 128;
/// Number of objects of a call in the other workloads.
const CALL: usize = 128;

/// Bytes of a segment, unless the pool would be larger than [`POOL`]: those of a machine that lends some memory.
const SEGMENT: u64 = 64 << 30;
/// Maximum bytes of all segments, so that the bench ends in seconds.
const POOL: u64 = 1 << 40;
/// Objects of one size that fit a pool of the uniform workload, which fills a pool for each size.
const UNIFORM_OBJECTS: u64 = 1 << 16;

/// Sizes of one run: one pool that is filled again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// Objects of this size only.
    One(u64),
    /// Pages of a large and a small object: all large ones of a call, then all small ones.
    Paired,
    /// Any size from 1 KiB to 16 MiB, each as likely.
    Random,
}

impl Sizes {
    /// The runs of a workload.
    pub(super) fn of(workload: AllocatorWorkload) -> Vec<Self> {
        match workload {
            AllocatorWorkload::Kv => vec![Self::One(KV)],
            AllocatorWorkload::Paired => vec![Self::Paired],
            AllocatorWorkload::Random => vec![Self::Random],
            AllocatorWorkload::Uniform => uniform().map(Self::One).collect(),
        }
    }

    /// Bytes of each segment of a run's pool.
    pub(super) fn segment(self, workload: AllocatorWorkload, segments: u64) -> u64 {
        match self {
            Self::One(size) if workload == AllocatorWorkload::Uniform => {
                (size * UNIFORM_OBJECTS / segments).min(SEGMENT)
            }
            _ => SEGMENT.min(POOL / segments),
        }
    }

    /// Returns the sizes of one call.
    pub(super) fn call(self, rng: &mut SmallRng) -> Vec<u64> {
        match self {
            Self::One(size) => vec![size; CALL],
            Self::Paired => {
                let pages = rng.random_range(1..=PAGES);
                [vec![KV; pages], vec![STATE; pages]].concat()
            }
            Self::Random => (0..CALL).map(|_| rng.random_range(1 << 10..=16 << 20)).collect(),
        }
    }
}

/// Powers of two from 4 KiB to 16 MiB, and sizes just beside them.
fn uniform() -> impl Iterator<Item = u64> {
    let beside = |size: u64| [size, size - 17, size + 17, size * 9 / 10, size * 11 / 10];
    (12..=24).step_by(2).map(|power| 1 << power).flat_map(beside)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn uniform_has_each_power_of_two_and_its_neighbours() {
        let sizes: Vec<_> = uniform().collect();
        assert_eq!(sizes.len(), 35);
        assert_eq!(sizes[..5], [4_096, 4_079, 4_113, 3_686, 4_505]);
        assert_eq!(sizes.last(), Some(&18_454_937));
    }

    #[test]
    fn a_call_of_pages_has_as_many_large_objects_as_small_ones() {
        let mut rng = SmallRng::seed_from_u64(1);
        let sizes = Sizes::Paired.call(&mut rng);
        let large = sizes.iter().take_while(|size| **size == KV).count();
        assert!((1..=PAGES).contains(&large));
        assert_eq!(sizes[large..], vec![STATE; large]);
    }

    #[test]
    fn many_segments_share_a_pool_of_bounded_size() {
        let segment = |sizes: Sizes, workload, segments| sizes.segment(workload, segments);
        assert_eq!(segment(Sizes::Random, AllocatorWorkload::Random, 16), 64 << 30);
        assert_eq!(segment(Sizes::Random, AllocatorWorkload::Random, 1_024), 1 << 30);
        assert_eq!(segment(Sizes::One(4_096), AllocatorWorkload::Uniform, 16), 16 << 20);
    }
}
