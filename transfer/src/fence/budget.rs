use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes that a record of the fence takes.
const RECORD_BYTES: u64 = 64;
/// A store may always take this much to remember writes: 8 million, which is 70,000 a second for two minutes.
const AT_LEAST: u64 = 512 << 20;

/// Most memory that a store should take to remember who wrote what, where it lends `lent` bytes: 1 % of them, at least
/// 512 MiB, and no more than there can be to remember: objects begin at multiples of 64 bytes, and one that ends before
/// the next multiple may leave the rest of an older one there.
#[must_use]
pub fn fence_limit(lent: u64) -> u64 {
    (lent / 100).max(AT_LEAST).min(lent.saturating_mul(2))
}

/// How many records the fences of one server may hold together, and how many they do.
#[derive(Debug)]
pub(crate) struct Budget {
    records: usize,
    held: AtomicUsize,
    bytes: AtomicUsize,
}

/// Memory of a fence's records.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

impl Budget {
    /// As many records as fit into `bytes`.
    pub(crate) fn of(bytes: u64) -> Self {
        let records = usize::try_from(bytes / RECORD_BYTES).unwrap_or(usize::MAX);
        Self { records, held: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    /// Memory that the records take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) as u64
    }

    /// How many more records there may be. Two fences that ask at the same time may exceed it by what one write adds.
    pub(super) fn room(&self) -> usize {
        self.records.saturating_sub(self.held.load(Ordering::Relaxed))
    }

    /// A fence that held `before` holds `after` now.
    pub(super) fn changed(&self, before: Held, after: Held) {
        let change = |total: &AtomicUsize, before: usize, after: usize| {
            // Wraps where it becomes less, and so does the sum.
            if before != after {
                total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        change(&self.held, before.records, after.records);
        change(&self.bytes, before.bytes, after.bytes);
    }
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
    }
}
