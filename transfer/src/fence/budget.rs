use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum bytes of one record of the fence.
const RECORD_BYTES: u64 = 64;
/// Memory in bytes that every store may take to remember writes: 8 million of them, or 70,000 a second for two minutes.
const AT_LEAST: u64 = 512 << 20;

/// Maximum memory that a store which lends `lent` bytes should take to remember writes, in bytes.
///
/// It is 1 % of `lent`, at least 512 MiB, and at most twice `lent`, which is as much as there can be to remember:
/// objects begin at multiples of 64 bytes, and one that ends before the next multiple may leave the rest of an older
/// one there.
#[must_use]
pub fn fence_limit(lent: u64) -> u64 {
    (lent / 100).max(AT_LEAST).min(lent.saturating_mul(2))
}

/// Number of records that the fences of one server may hold together, and that they do hold.
#[derive(Debug)]
pub(crate) struct Budget {
    records: AtomicUsize,
    held: AtomicUsize,
    bytes: AtomicUsize,
}

/// Memory of a fence's records.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

impl Budget {
    /// Creates a budget of as many records as fit into `bytes`.
    pub(crate) fn of(bytes: u64) -> Self {
        Self {
            records: AtomicUsize::new(records_in(bytes)),
            held: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Raises the limit to as many records as fit into `bytes`. It never falls: records of writes to an unmounted segment
    /// may be kept for two minutes, and writes to the others would wait for that.
    pub(crate) fn raise(&self, bytes: u64) {
        self.records.fetch_max(records_in(bytes), Ordering::Relaxed);
    }

    /// Memory that the records may take, in bytes.
    pub(crate) fn limit(&self) -> u64 {
        (self.records.load(Ordering::Relaxed) as u64).saturating_mul(RECORD_BYTES)
    }

    /// Memory that the records take, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) as u64
    }

    /// Returns how many more records fit. Two fences that ask at once may exceed the budget by one write's records.
    pub(super) fn room(&self) -> usize {
        self.records.load(Ordering::Relaxed).saturating_sub(self.held.load(Ordering::Relaxed))
    }

    /// Updates the totals after a fence has changed from `before` to `after`.
    pub(super) fn changed(&self, before: Held, after: Held) {
        let change = |total: &AtomicUsize, before: usize, after: usize| {
            // A decrease wraps around, and so does the sum.
            if before != after {
                total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        change(&self.held, before.records, after.records);
        change(&self.bytes, before.bytes, after.bytes);
    }
}

fn records_in(bytes: u64) -> usize {
    usize::try_from(bytes / RECORD_BYTES).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_at_least_512_mib_and_never_more_than_there_can_be() {
        assert_eq!(fence_limit(500 << 30), 5 << 30);
        assert_eq!(fence_limit(4 << 30), 512 << 20);
        assert_eq!(fence_limit(64 << 20), 128 << 20);
    }

    #[test]
    fn fences_share_the_room() {
        let budget = Budget::of(10 * RECORD_BYTES + 63);
        let held = |records| Held { records, bytes: records * 30 };
        budget.changed(held(0), held(4));
        budget.changed(held(0), held(8));
        assert_eq!((budget.room(), budget.bytes()), (0, 360));
        budget.changed(held(8), held(1));
        assert_eq!((budget.room(), budget.bytes()), (5, 150));
        budget.raise(20 * RECORD_BYTES);
        assert_eq!((budget.room(), budget.limit()), (15, 20 * RECORD_BYTES));
        budget.raise(RECORD_BYTES);
        assert_eq!(budget.room(), 15, "a segment was unmounted");
    }
}
