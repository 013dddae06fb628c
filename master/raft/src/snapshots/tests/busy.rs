//! A disk that takes its time.

use std::sync::mpsc::channel;

use super::*;
use crate::testing::gate::{Before, Gate};

/// Raft asks between its heartbeats.
#[tokio::test]
async fn the_newest_snapshot_is_known_while_the_next_one_waits_for_the_disk() {
    let dir = with_snapshots(&[10]);
    let gate = Gate::closed(Before::SyncDir);
    let (snapshots, _) = SnapshotStore::open_on(gate.disk(), dir.path(), CLUSTER).unwrap();
    let writer = std::thread::spawn({
        let snapshots = snapshots.clone();
        move || snapshots.write(&meta(20), &state(20)).map(drop)
    });
    gate.came(1).await;
    // Another thread asks, so that an answer that never comes is a failure and not a test that hangs.
    let (answer, asked) = channel();
    std::thread::spawn({
        let snapshots = snapshots.clone();
        move || answer.send((snapshots.current().unwrap().0, snapshots.current_bytes()))
    });
    let answered = asked.recv_timeout(std::time::Duration::from_secs(20));
    gate.open();
    writer.join().unwrap().unwrap();
    let (newest, bytes) = answered.expect("an answer while the directory is synced");
    assert_eq!(newest, meta(10), "what is not durable does not count");
    assert!(bytes > 0);
    assert_eq!(snapshots.current().unwrap().0, meta(20));
}
