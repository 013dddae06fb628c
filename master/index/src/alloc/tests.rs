use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// An allocator, checked against the set of its live allocations.
struct Checked {
    alloc: Allocator,
    /// Offset to bytes asked for.
    live: BTreeMap<u64, u64>,
}

impl Checked {
    fn new(bytes: u64) -> Self {
        Self { alloc: Allocator::new(bytes), live: BTreeMap::new() }
    }

    fn alloc(&mut self, len: u64) -> Option<u64> {
        let offset = self.alloc.alloc(len)?;
        let end = offset + rounded(len).unwrap();
        assert_eq!(offset % ALLOCATION_ALIGN, 0, "aligned");
        assert!(end <= self.alloc.capacity(), "inside the segment");
        if let Some((&before, &len)) = self.live.range(..end).next_back() {
            assert!(before + rounded(len).unwrap() <= offset, "{before}+{len} overlaps {offset}..{end}");
        }
        self.live.insert(offset, len);
        Some(offset)
    }

    fn free_nth(&mut self, nth: usize) {
        if self.live.is_empty() {
            return;
        }
        let (&offset, &len) = self.live.iter().nth(nth % self.live.len()).unwrap();
        assert!(!self.alloc.free(offset + 1, len), "a wrong offset is refused");
        assert!(self.alloc.free(offset, len));
        assert!(!self.alloc.free(offset, len), "twice is refused");
        self.live.remove(&offset);
    }

    fn check(&self) {
        let used: u64 = self.live.values().map(|&len| rounded(len).unwrap()).sum();
        assert_eq!(self.alloc.used(), used, "accounting");
        let mut again = Allocator::from_runs(self.alloc.capacity(), self.alloc.runs()).unwrap();
        for (&offset, &len) in &self.live {
            again.claim(offset, len).unwrap();
        }
        again.check_claimed().unwrap();
        let contents = |alloc: &Allocator| {
            let free: Vec<_> = alloc.free.ranges().collect();
            let partial: Vec<_> = alloc.partial.iter().map(|(&key, ())| key).collect();
            let live: Vec<_> = alloc.live.iter().map(|(&size, &live)| (size, live)).collect();
            (free, partial, live, alloc.used())
        };
        assert_eq!(
            contents(&again),
            contents(&self.alloc),
            "rebuilt from its runs and owners it is the same"
        );
    }
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        5 => prop::sample::select(vec![64u64, 100, 4096, 5000, 51_168, 10_288]),
        1 => 1..200_000u64,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]
    #[test]
    fn never_overlaps_and_accounts_for_every_byte(
        bytes in 1_000..4_000_000u64,
        steps in prop::collection::vec((size(), any::<u32>(), 0..10u8), 1..600),
    ) {
        let mut checked = Checked::new(bytes);
        for (step, (len, nth, kind)) in steps.into_iter().enumerate() {
            if kind < 6 {
                if checked.alloc(len).is_none() {
                    // A refusal is only right when no free range is that long.
                    prop_assert!(checked.alloc.free.longest() < rounded(len).unwrap());
                }
            } else {
                checked.free_nth(nth as usize);
            }
            if step % 50 == 0 {
                checked.check();
            }
        }
        checked.check();
        while !checked.live.is_empty() {
            checked.free_nth(0);
        }
        let whole = checked.alloc.capacity();
        let free: Vec<_> = checked.alloc.free.ranges().collect();
        prop_assert_eq!(free, if whole > 0 { vec![(0, whole)] } else { vec![] }, "all freed is whole again");
        prop_assert_eq!(checked.alloc.runs().count(), 0);
    }
}

/// Fills with `sizes` in turn until one does not fit, then frees 5 % at random, `rounds` times. Returns the lowest use
/// of a full segment, in parts of 10,000.
fn worst_use(bytes: u64, sizes: &[u64], rounds: usize) -> u64 {
    let mut alloc = Allocator::new(bytes);
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut random = 42u64;
    let mut worst = 10_000;
    for _ in 0..rounds {
        'fill: loop {
            for &size in sizes {
                match alloc.alloc(size) {
                    Some(offset) => live.push((offset, size)),
                    None => break 'fill,
                }
            }
        }
        worst = worst.min(alloc.used() * 10_000 / alloc.capacity());
        for _ in 0..live.len() / 20 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (offset, size) = live.swap_remove((random >> 33) as usize % live.len());
            assert!(alloc.free(offset, size));
        }
    }
    worst
}

#[test]
fn kv_sizes_use_99_percent_of_a_segment() {
    assert!(worst_use(16 << 30, &[3_274_752], 60) >= 9_900);
    assert!(worst_use(16 << 30, &[3_274_752, 658_432], 60) >= 9_900);
}

#[test]
fn a_small_segment_is_used_to_the_last_slot() {
    let mut alloc = Allocator::new(64 << 20);
    let fits = (64 << 20) / 131_072;
    for _ in 0..fits {
        assert!(alloc.alloc(131_072).is_some());
    }
    assert_eq!(alloc.alloc(1), None);
    // 20 whole values, and a rest that smaller ones can use.
    let mut alloc = Allocator::new(64 << 20);
    assert_eq!((0..30).filter_map(|_| alloc.alloc(3_274_752)).count(), 20);
    assert!(alloc.alloc(1_600_000).is_some());
}

#[test]
fn slots_of_a_size_that_shrank_serve_smaller_ones() {
    let mut alloc = Allocator::new(64 << 20);
    let large: Vec<_> = std::iter::from_fn(|| alloc.alloc(1 << 17)).collect();
    assert_eq!(large.len(), 512);
    // Free one slot in each run, so that no run becomes empty.
    for &offset in large.iter().step_by(8) {
        assert!(alloc.free(offset, 1 << 17));
    }
    let small: Vec<_> = std::iter::from_fn(|| alloc.alloc(1 << 16)).collect();
    assert_eq!(small.len(), 128, "all that was free");
    for offset in small {
        assert!(alloc.free(offset, 1 << 16));
    }
    assert!(alloc.alloc(1 << 17).is_some(), "and they go back");
}

#[test]
fn absurd_lengths_are_refused() {
    let mut alloc = Allocator::new(1 << 20);
    assert_eq!(alloc.alloc(u64::MAX), None);
    assert_eq!(alloc.alloc((1 << 20) + 1), None);
    assert!(!alloc.free(0, u64::MAX) && !alloc.free(u64::MAX, 64) && !alloc.free(0, 64));
    assert_eq!(alloc.alloc(1 << 20), Some(0));
    assert_eq!(Allocator::new(63).alloc(1), None);
}

#[test]
fn layouts_that_no_allocator_makes_are_refused() {
    let run = |slot, offset, slots, parent| RunLayout { slot, offset, slots, parent };
    let fails = |runs: &[RunLayout]| Allocator::from_runs(1 << 20, runs.iter().copied()).err();
    for bad in [
        run(0, 0, 1, 0),
        run(64, 0, 0, 0),
        run(64, 0, 65, 0),
        run(63, 0, 1, 0),
        run(64, 1, 1, 0),
        run(64, 1 << 20, 1, 0),
        run(u64::MAX - 63, 0, 2, 0),
        run(64, 0, 2, 64),
    ] {
        assert_eq!(fails(&[bad]), Some(LayoutError::Run), "{bad:?}");
    }
    assert_eq!(fails(&[run(64, 0, 4, 0), run(128, 128, 1, 0)]), Some(LayoutError::Overlap));
    assert_eq!(fails(&[run(64, 0, 1, 128)]), Some(LayoutError::NoSlot));
    let parent = run(256, 0, 2, 0);
    assert_eq!(fails(&[run(64, 256, 2, 256), run(128, 256, 1, 256), parent]), Some(LayoutError::Claimed));
    assert_eq!(fails(&[run(64, 0, 1, 128), run(128, 0, 2, 256), parent]), Some(LayoutError::Run));
}
