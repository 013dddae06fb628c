/// Limits at which snapshots are taken, and the part of the log that they leave.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotLimits {
    /// Bytes of log since the last snapshot at which one is taken, if they are also half as many as that snapshot
    /// has. A smaller value makes restarts shorter and writes more to disk: a snapshot is the whole index.
    pub log_bytes: u64,
    /// Number of entries applied since the last snapshot at which one is taken in any case.
    pub entries: Option<u64>,
    /// Number of entries that stay in the log although a snapshot covers them. A follower that was away for a moment
    /// gets these entries instead of the snapshot.
    pub keep_entries: u64,
    /// Fewer entries stay if they have more bytes than this, or than a snapshot, whichever is more. For a follower
    /// that lacks so much the snapshot is faster, and a restart reads the whole log.
    pub keep_bytes: u64,
}

/// Bytes of the log that are kept although a snapshot covers them. A few hundred thousand entries, each a batch of
/// 128 puts, would be gigabytes, and a restart reads them all. With 256 MiB a restart took a second longer than with
/// this value on two cores (`mcctl bench restart`).
const KEEP_BYTES: u64 = 64 << 20;

impl Default for SnapshotLimits {
    fn default() -> Self {
        Self { log_bytes: 32 << 20, entries: None, keep_entries: 200_000, keep_bytes: KEEP_BYTES }
    }
}

impl SnapshotLimits {
    /// Whether a snapshot is due, after `log_bytes` and `entries` since the last one, which has `snapshot_bytes`.
    ///
    /// If only the log's bytes counted, an index of gigabytes would be written again for every 64 MiB of log, without
    /// a pause. With half the snapshot's size as a second condition, two bytes of snapshots are written for each byte
    /// of log, besides the growth of the index. A restart reads the snapshot anyway, and then at most half as much
    /// log.
    pub(crate) fn are_reached(&self, log_bytes: u64, entries: u64, snapshot_bytes: u64) -> bool {
        log_bytes >= self.log_bytes.max(snapshot_bytes / 2)
            || self.entries.is_some_and(|most| entries >= most)
    }

    /// Returns the index up to which the log is to be purged. It is purged up to `purged`, a snapshot of
    /// `snapshot_bytes` covers it up to `covered`, and `bytes_since` returns the bytes of the log after an index.
    pub(crate) fn purge_upto(
        &self,
        purged: Option<u64>,
        covered: u64,
        snapshot_bytes: u64,
        bytes_since: impl Fn(Option<u64>) -> u64,
    ) -> Option<u64> {
        let first = purged.map_or(0, |purged| purged + 1);
        let for_entries = covered.checked_sub(self.keep_entries).filter(|upto| *upto >= first);
        let little = |index| bytes_since(index) <= self.keep_bytes.max(snapshot_bytes);
        if first > covered || little(purged) {
            return for_entries;
        }
        // The first index after which few enough bytes remain, or all that may be purged.
        let (mut low, mut high) = (first, covered);
        while low < high {
            let middle = low + (high - low) / 2;
            if little(Some(middle)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        for_entries.max(Some(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_snapshot_is_not_taken_again_for_little_log() {
        let limits = SnapshotLimits { log_bytes: 64, entries: None, keep_entries: 0, keep_bytes: 0 };
        for (log, snapshot, reached) in [
            (63, 0, false),
            (64, 0, true),
            (64, 128, true),
            (64, 130, false),
            (65, 130, true),
            (499, 1000, false),
        ] {
            assert_eq!(limits.are_reached(log, 9, snapshot), reached, "{log} after {snapshot}");
        }
        let by_entries = SnapshotLimits { entries: Some(9), ..limits };
        assert!(by_entries.are_reached(0, 9, 1000));
        assert!(!by_entries.are_reached(0, 8, 1000));
    }

    #[test]
    fn of_the_log_behind_a_snapshot_so_many_bytes_stay() {
        let limits = SnapshotLimits { keep_bytes: 1_000, ..SnapshotLimits::default() };
        // Entries of ten bytes; the last one is 999.
        let since = |index: Option<u64>| 10 * (999 - index.map_or(-1, |index| index as i64)) as u64;
        for (purged, covered, snapshot, upto) in [
            (None, 950, 0, Some(899)),
            (Some(898), 950, 0, Some(899)),
            (Some(899), 950, 0, None),
            (None, 950, 2_000, Some(799)),
            (None, 950, 20_000, None),
            (None, 500, 0, Some(500)),
            (Some(500), 500, 0, None),
        ] {
            let found = limits.purge_upto(purged, covered, snapshot, since);
            assert_eq!(found, upto, "{purged:?} {covered} {snapshot}");
        }
        for (entries, purged, upto) in
            [(30, None, Some(920)), (30, Some(920), None), (90, None, Some(899)), (951, Some(899), None)]
        {
            let found = SnapshotLimits { keep_entries: entries, ..limits }.purge_upto(purged, 950, 0, since);
            assert_eq!(found, upto, "{entries} {purged:?}");
        }
    }
}
