//! Order of allocations, across terms and rescues.

/// Number of log entries a cluster may lose without a later allocation getting a lower order; see [`allocation_order`].
pub(crate) const LOST_ENTRIES_MAX: u64 = 1 << 32;

/// Returns the order of an allocation by the log entry `index` of `term`, for a store's fence: of two allocations of
/// the same bytes, the later one has the higher order.
///
/// The index alone would be enough if no entry were ever lost. With `--log-sync none`, a majority of the masters can lose
/// the end of their logs in a power failure while the stores live on. The next leader then issues those indexes again, in
/// a later term. No term has two leaders, because votes are synced whatever `--log-sync` says. A term therefore counts
/// more than as many entries as a log can plausibly lose. A log that lost more than its last seconds ends before its mark
/// of what was durable, and its master refuses to start.
#[must_use]
pub fn allocation_order(term: u64, index: u64) -> u64 {
    term.saturating_mul(LOST_ENTRIES_MAX).saturating_add(index)
}

/// Entries that the log of a rescued cluster skips after the survivor's last one. Stores may have seen later entries of the
/// lost masters, and a store refuses an allocation of a lower order than it has seen for the same bytes. A term counts
/// for 2^32 entries in that order. So this gap covers 65,535 elections that the survivor missed, and leaves room for as
/// many rescues.
pub const RESCUE_GAP: u64 = 1 << 48;

/// Returns the order from which on an index whose last entry has the order `latest` knows every allocation. The place of
/// an older one may have been given to another object by entries that were lost in a rescue.
///
/// A rescue adds [`RESCUE_GAP`] to the order, so a multiple of the gap lies between the allocations before it and those
/// after it. Without a rescue the order reaches a multiple after 65,536 terms. Then older objects are doubted without
/// need, which costs time and nothing else.
#[must_use]
pub fn known_from(latest: u64) -> u64 {
    latest - latest % RESCUE_GAP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_allocated_before_a_rescue_is_doubtful_and_nothing_else_is() {
        for (term, index) in [(1, 1), (6, 177), (900, 1 << 33), (65_000, 1 << 40)] {
            let before = allocation_order(term, index);
            assert_eq!(known_from(before), 0, "no rescue");
            let mut oldest = before;
            for rescue in 1..5 {
                let rescued = allocation_order(term, index + rescue * RESCUE_GAP);
                assert!(oldest < known_from(rescued), "known before rescue {rescue}");
                let next = allocation_order(term + 1, index + rescue * RESCUE_GAP + 1);
                assert!(known_from(next) <= rescued, "allocations of the new cluster");
                oldest = next;
            }
        }
    }
}
