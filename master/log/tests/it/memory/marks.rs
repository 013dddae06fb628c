//! The mark of what is durable, and the committed position beside it.

use std::sync::Arc;
use std::time::Duration;

use mc_log::{BatchTimes, LogDisk, LogObserver, LogOptions, LogStore, Mark, MemoryDisk};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;

use super::{assert_committed_is_held, open, save_vote};
use crate::common::{append, entries, entry, id, vote};

/// Overrules the log's last entry, between the drain of one batch and the mark that follows it.
struct Overrule(parking_lot::Mutex<Option<LogStore>>);

impl LogObserver for Overrule {
    fn batch(&self, _: &BatchTimes) {
        let Some(mut store) = self.0.lock().take() else { return };
        futures::executor::block_on(async {
            store.truncate_after(Some(id(1, 15))).await.unwrap();
            drop(append(&mut store, [entry(2, 16, 10)]).await);
            store.save_committed(Some(id(2, 16))).await.unwrap();
        });
    }
}

#[tokio::test]
async fn the_committed_position_names_an_entry_of_the_disk_after_a_crash_at_every_step() {
    for round in 0.. {
        // Given a log up to (term 1, 16), of which all but the last entry is committed.
        let disk = MemoryDisk::new();
        let overrule = Arc::new(Overrule(parking_lot::Mutex::default()));
        let options =
            LogOptions { mark_every: Duration::ZERO, observer: overrule.clone(), ..LogOptions::default() };
        let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
        save_vote(&mut store, &mut writer, 1).await;
        drop(append(&mut store, entries(1, 0, 17, 10)).await);
        store.save_committed(Some(id(1, 15))).await.unwrap();
        writer.step();
        assert_eq!(open(&disk.crash()).unwrap().2.committed, Some(id(1, 15)));

        // When a leader of term 2 overrules that entry, and commits its own, while the writer is busy with the vote.
        disk.set_faults(|faults| faults.writes_left = Some(round));
        *overrule.0.lock() = Some(store.clone());
        let (mut voter, vote) = (store.clone(), vote(2));
        let (saved, ()) = tokio::join!(voter.save_vote(&vote), async { writer.step() });

        // Then at every step the position names what the disk holds.
        for steps in 0..3 {
            for kept in 0..=disk.unsynced() {
                let image = disk.crash_keeping(kept);
                let at = format!("after {round} writes and {steps} steps, {kept} kept");
                let (store, _, recovered) = open(&image).unwrap_or_else(|error| panic!("{at}: {error}"));
                let held = store.reader().try_get_log_entries(..).await.unwrap();
                assert_committed_is_held(&recovered, &held, &at);
            }
            writer.step();
        }
        if saved.is_ok() && open(&disk.crash()).unwrap().2.committed == Some(id(2, 16)) {
            assert!(round > 3, "only {round} writes were needed");
            return;
        }
    }
}

#[tokio::test]
async fn an_idle_log_notes_what_is_durable_within_its_interval() {
    let disk = MemoryDisk::new();
    let options = LogOptions { mark_every: Duration::from_millis(20), ..LogOptions::default() };
    let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
    let drive = tokio::spawn(async move {
        while writer.ready().await {
            writer.step();
        }
        writer.finish();
    });
    store.save_vote(&vote(1)).await.unwrap();
    append(&mut store, [entry(1, 0, 10)]).await.await.unwrap().unwrap();
    store.save_committed(Some(id(1, 0))).await.unwrap();
    append(&mut store, [entry(1, 1, 10)]).await.await.unwrap().unwrap();
    while disk.mark() != (Mark { next: 2, term: 1 }) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(open(&disk.crash()).unwrap().2.committed, Some(id(1, 0)), "and what is committed with it");
    drop(store);
    drive.await.unwrap();
}

#[tokio::test]
async fn a_slow_disk_is_noted_less_often() {
    let disk = MemoryDisk::new();
    disk.set_faults(|faults| faults.slow_sync = Duration::from_millis(100));
    let options = LogOptions { mark_every: Duration::from_millis(500), ..LogOptions::default() };
    let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
    let begun = std::time::Instant::now();
    // When an entry is noted, which takes a sync because it is committed.
    let mut noted_after = async |next: u64| {
        drop(append(&mut store, [entry(1, next - 1, 10)]).await);
        store.save_committed(Some(id(1, next - 1))).await.unwrap();
        while disk.mark().next < next {
            assert!(writer.ready().await);
            writer.step();
        }
        begun.elapsed()
    };
    let first = noted_after(1).await;
    let second = noted_after(2).await;
    assert!(second - first >= 2 * options.mark_every, "{first:?}, {second:?}");
}

#[tokio::test]
async fn what_others_committed_is_noted_after_it_is_written_here() {
    let disk = MemoryDisk::new();
    let options = LogOptions { mark_every: Duration::ZERO, ..LogOptions::default() };
    let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
    save_vote(&mut store, &mut writer, 1).await;
    // Index 5 is on its way to this log and acknowledged by the others.
    store.save_committed(Some(id(1, 5))).await.unwrap();
    drop(append(&mut store, entries(1, 0, 3, 10)).await);
    writer.step();
    assert_eq!(
        open(&disk.crash()).unwrap().2.committed,
        None,
        "a log that ends before what it names is refused"
    );
    drop(append(&mut store, entries(1, 3, 3, 10)).await);
    writer.step();
    assert_eq!(open(&disk.crash()).unwrap().2.committed, Some(id(1, 5)));
}
