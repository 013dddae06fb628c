use std::sync::Arc;
use std::time::Duration;

use mc_log::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Instant, MissedTickBehavior};

use super::snapshot_limits::SnapshotLimits;
use super::state_machine::StateMachine;
use crate::snapshots::SnapshotStore;

/// Function that returns the bytes of the log after an index, or of all of it.
pub type BytesSince = Arc<dyn Fn(Option<u64>) -> u64 + Send + Sync>;

/// Takes a snapshot when the log has grown enough since the last one. openraft ignores a trigger while one is being
/// taken. Once it is on disk, what it covers is purged, except what the limits keep.
pub(crate) async fn take_snapshots(
    raft: Raft<StateMachine>,
    bytes_since: BytesSince,
    limits: SnapshotLimits,
    snapshots: SnapshotStore,
) {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    const RETRY_AFTER: Duration = Duration::from_secs(10);
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let metrics = raft.metrics();
    let (mut tried, mut shortened) = (None, None);
    loop {
        ticks.tick().await;
        let (applied, covered, purged) = {
            let metrics = metrics.borrow_watched();
            (metrics.last_applied, metrics.snapshot, metrics.purged)
        };
        if let Some(covered) = covered.filter(|covered| shortened < Some(*covered)) {
            shortened = Some(covered);
            let purged = purged.map(|purged| purged.index);
            let bytes = snapshots.current_bytes();
            // openraft purges nothing that no snapshot covers, and waits for followers that are being sent some
            // of it.
            if let Some(upto) = limits.purge_upto(purged, covered.index, bytes, &*bytes_since)
                && raft.trigger().purge_log(upto).await.is_err()
            {
                return;
            }
        }
        let Some(applied) = applied.filter(|applied| Some(*applied) > covered) else { continue };
        let fresh = covered.map_or(applied.index + 1, |covered| applied.index - covered.index);
        let log_bytes = bytes_since(covered.map(|covered| covered.index));
        let due = limits.are_reached(log_bytes, fresh, snapshots.current_bytes());
        // A failed snapshot, on a full disk for instance, is not tried again at once: it writes the whole index.
        if !due || tried.is_some_and(|(base, at): (_, Instant)| base == covered && at.elapsed() < RETRY_AFTER)
        {
            continue;
        }
        tried = Some((covered, Instant::now()));
        if raft.trigger().snapshot().await.is_err() {
            return;
        }
    }
}
