//! Bytes of the log's entries by index, in steps of 64 KiB, for the snapshot policy and the check of free space.
//!
//! Sizes are those of records, without the overhead of the disk.

use std::collections::VecDeque;

const STEP: u64 = 64 << 10;

/// Bytes by index. `total` includes the entries that were there when the log was opened. Only appends change it.
#[derive(Debug, Default)]
pub(crate) struct LogSizes {
    /// First index and bytes before it, about one pair for every [`STEP`] bytes.
    steps: VecDeque<(u64, u64)>,
    total: u64,
}

impl LogSizes {
    pub(crate) fn push(&mut self, index: u64, bytes: u64) {
        if self.steps.back().is_none_or(|(_, before)| self.total - before >= STEP) {
            self.steps.push_back((index, self.total));
        }
        self.total += bytes;
    }

    /// Forgets entries from `from` on, to within a step.
    pub(crate) fn truncate(&mut self, from: u64) {
        while let Some((_, before)) = self.steps.back().filter(|(first, _)| *first >= from) {
            self.total = *before;
            self.steps.pop_back();
        }
    }

    /// Forgets entries up to `upto`, to within a step.
    pub(crate) fn purge(&mut self, upto: u64) {
        while self.steps.get(1).is_some_and(|(first, _)| *first <= upto + 1) {
            self.steps.pop_front();
        }
    }

    /// Returns the bytes of the entries from `from` on, to within a step.
    pub(crate) fn since(&self, from: u64) -> u64 {
        let at = self.steps.partition_point(|(first, _)| *first <= from);
        let before = at.checked_sub(1).and_then(|at| self.steps.get(at)).or(self.steps.front());
        before.map_or(0, |(_, before)| self.total - before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_right_to_within_a_step() {
        let mut sizes = LogSizes::default();
        for index in 0..10_000 {
            sizes.push(index, 1_000);
        }
        let near =
            |found: u64, want: u64| assert!(found.abs_diff(want) <= STEP + 1_000, "{found} for {want}");
        near(sizes.since(0), 10_000_000);
        near(sizes.since(9_000), 1_000_000);
        sizes.purge(4_999);
        near(sizes.since(0), 5_000_000);
        sizes.truncate(6_000);
        near(sizes.since(0), 1_000_000);
        sizes.purge(9_999);
        near(sizes.since(10_000), 0);
    }
}
