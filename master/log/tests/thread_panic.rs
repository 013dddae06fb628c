//! A panic on one of the database's own threads. A process of its own: such a panic is noted for the whole process.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use mc_log::{LogOptions, LogStore, MemoryDisk, keep_caught_panics_quiet};
use openraft::storage::RaftLogStorage;

use common::{append, entry, vote};

fn panics_on(name: &str) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(|| panic!("index out of bounds")).unwrap().join().unwrap_err();
}

#[tokio::test]
async fn a_log_that_waits_for_a_thread_of_the_database_that_is_gone_fails() {
    // Given a log that is well although some other thread has panicked.
    keep_caught_panics_quiet();
    panics_on("another");
    let disk = MemoryDisk::new();
    let own = disk.clone();
    let (mut store, _) = LogStore::open(move || Ok(Box::new(own)), LogOptions::default()).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();

    // When a sync does not return, because the thread that was to do it has ended.
    disk.set_faults(|faults| faults.hold_sync = true);
    drop(append(&mut store, [entry(1, 0, 100)]).await);
    panics_on("sled-io-9");

    // Then the log fails long before a slow disk is given up, and names the reason.
    let failure = store.failed().await.to_string();
    assert!(failure.contains("sled-io-9: index out of bounds"), "{failure}");
    assert!(!failure.contains("has not answered for"), "{failure}");
    disk.set_faults(|faults| faults.hold_sync = false);
    store.close().await;
}
