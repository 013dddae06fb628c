//! A disk that fails, is slow or full, or never answers.

use std::sync::Arc;
use std::time::Duration;

use mc_log::{BatchTimes, LogObserver, LogOptions, LogStore, MemoryDisk, TypeConfig};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;

use super::{open, save_vote};
use crate::common::{append, entry, id, vote};

#[tokio::test]
async fn a_failed_sync_fails_all_that_waits_and_all_that_follows() {
    let disk = MemoryDisk::new();
    let (mut store, mut writer, _) = open(&disk).unwrap();
    save_vote(&mut store, &mut writer, 1).await;
    disk.set_faults(|faults| faults.fail_sync = true);
    let (one, two) =
        (append(&mut store, [entry(1, 0, 10)]).await, append(&mut store, [entry(1, 1, 10)]).await);
    writer.step();
    assert!(one.await.unwrap().is_err());
    assert!(two.await.unwrap().is_err());

    disk.set_faults(|faults| faults.fail_sync = false);
    let failure = store.failed().await.to_string();
    // An operator reads which disk it was, and what it did not do.
    assert!(failure.contains("the Raft log at memory failed: fdatasync: "), "{failure}");
    let (sender, _receiver) = TypeConfig::oneshot();
    let refused = store.append([entry(1, 2, 10)], IOFlushed::signal(sender)).await.unwrap_err();
    assert!(refused.to_string().contains("must exit"), "{refused}");
    assert!(store.save_vote(&vote(2)).await.is_err());
}

/// An observer that panics at the first report.
struct Panics;

impl LogObserver for Panics {
    fn batch(&self, _: &BatchTimes) {
        panic!("a fault that is not the database's");
    }
}

#[tokio::test]
async fn a_panic_of_the_writer_outside_the_database_fails_the_log() {
    let disk = MemoryDisk::new();
    let options = LogOptions { observer: Arc::new(Panics), ..LogOptions::default() };
    let (mut store, _) = LogStore::open(move || Ok(Box::new(disk)), options).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();
    let failure = store.failed().await.to_string();
    assert!(failure.contains("its writer panicked: a fault that is not the database's"), "{failure}");
    assert!(store.save_vote(&vote(2)).await.is_err(), "nothing waits for ever");
}

#[tokio::test]
async fn a_full_disk_is_a_failure_and_what_was_acknowledged_is_there_after_it() {
    let disk = MemoryDisk::new();
    let own = disk.clone();
    let (mut store, _) = LogStore::open(move || Ok(Box::new(own)), LogOptions::default()).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();
    disk.set_faults(|faults| faults.writes_left = Some(20));
    let mut acknowledged = None;
    for index in 0.. {
        let (sender, done) = TypeConfig::oneshot();
        let appended = store.append([entry(1, index, 100)], IOFlushed::signal(sender)).await;
        match done.await {
            Ok(Ok(())) if appended.is_ok() => acknowledged = Some(index),
            _ => break,
        }
    }
    let failure = store.failed().await;
    assert_eq!(failure.source.kind(), std::io::ErrorKind::StorageFull, "{failure}");
    store.close().await;
    let (_, _, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.last.map(|last| last.index), acknowledged);
}

#[tokio::test]
async fn a_slow_sync_delays_and_does_not_lose() {
    let disk = MemoryDisk::new();
    disk.set_faults(|faults| faults.slow_sync = Duration::from_millis(20));
    let own = disk.clone();
    let (mut store, _) = LogStore::open(move || Ok(Box::new(own)), LogOptions::default()).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();
    let mut waiting = Vec::new();
    for index in 0..1000 {
        waiting.push(append(&mut store, [entry(1, index, 100)]).await);
    }
    for done in waiting {
        done.await.unwrap().unwrap();
    }
    assert!(disk.syncs() < 100, "{} syncs for 1000 appends: they did not share them", disk.syncs());
    assert_eq!(open(&disk.crash()).unwrap().2.last, Some(id(1, 999)));
    store.close().await;
}

#[tokio::test]
async fn a_sync_that_never_returns_is_a_failure_that_says_so() {
    // Given a log whose disk stops to answer.
    let disk = MemoryDisk::new();
    let own = disk.clone();
    let options = LogOptions { stuck_after: Duration::from_millis(50), ..LogOptions::default() };
    let (mut store, _) = LogStore::open(move || Ok(Box::new(own)), options).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();
    disk.set_faults(|faults| faults.hold_sync = true);
    let mut done = append(&mut store, [entry(1, 0, 100)]).await;
    // Then the log has failed, and takes nothing more.
    let failure = store.failed().await;
    assert!(failure.to_string().contains("the disk has not answered for"), "{failure}");
    assert!(done.try_recv().is_err(), "and nothing was acknowledged");
    assert!(store.save_vote(&vote(2)).await.unwrap_err().to_string().contains("must exit"));
    disk.set_faults(|faults| faults.hold_sync = false);
    store.close().await;
}
