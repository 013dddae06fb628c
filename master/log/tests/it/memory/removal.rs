//! Entries that a leader overrules or a snapshot covers, through a crash at every step.

use mc_log::{LogDisk, LogOptions, LogStore, Mark, MemoryDisk};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;

use super::{filled, index_of, open, save_vote};
use crate::common::{append, entries, entry, id, indexes};

#[tokio::test]
async fn a_truncation_lowers_the_mark_before_it_removes_anything() {
    let disk = filled(10).await;
    assert_eq!(disk.mark(), Mark { next: 10, term: 1 });
    for writes in 0..20 {
        let image = disk.crash();
        let (mut store, mut writer, _) = open(&image).unwrap();
        image.set_faults(|faults| faults.writes_left = Some(writes));
        store.truncate_after(Some(id(1, 3))).await.unwrap();
        writer.step();
        for kept in 0..=image.unsynced() {
            let recovered = open(&image.crash_keeping(kept)).expect("a healthy log, wherever it crashed").2;
            assert!(recovered.last >= Some(id(1, 3)));
        }
    }
    let (mut store, mut writer, _) = open(&disk).unwrap();
    disk.set_faults(|faults| faults.fail_mark = true);
    store.truncate_after(Some(id(1, 3))).await.unwrap();
    writer.step();
    assert_eq!(disk.unsynced(), 0, "without the mark nothing is removed");
}

#[tokio::test]
async fn a_truncation_rewrites_the_pack_it_cuts() {
    let disk = MemoryDisk::new();
    let (mut store, mut writer, _) = open(&disk).unwrap();
    save_vote(&mut store, &mut writer, 1).await;
    // 60 entries of 256 B fill two packs and begin a third.
    drop(append(&mut store, entries(1, 0, 60, 256)).await);
    writer.step();
    store.truncate_after(Some(id(1, 9))).await.unwrap();
    save_vote(&mut store, &mut writer, 2).await;
    drop(append(&mut store, entries(2, 10, 3, 256)).await);
    writer.step();
    let (store, _, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.last, Some(id(2, 12)));
    let held = store.reader().try_get_log_entries(..).await.unwrap();
    assert_eq!(held.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), Vec::from_iter(0..13));
    assert!(held[..10].iter().all(|entry| entry.log_id.leader_id.term == 1));
    assert_eq!(held[4], entry(1, 4, 256));
}

/// A build that made larger packs left one whose end the next leader overrules: entries each too large for a pack now, or
/// more of them than go into one. Whatever a crash leaves of the truncation's writes, it is a log with all that stays.
#[tokio::test]
async fn a_truncation_cuts_a_pack_that_is_larger_than_they_are_made_now() {
    for (count, bytes, last) in [(2, 10_000, 0), (80, 256, 69)] {
        let disk = MemoryDisk::new();
        let (mut store, mut writer, _) = open(&disk.with_value_cap(28 << 10)).unwrap();
        save_vote(&mut store, &mut writer, 1).await;
        let before = entries(1, 0, count, bytes);
        let done = append(&mut store, before.clone()).await;
        writer.step();
        done.await.unwrap().unwrap();
        writer.finish();

        let (mut store, mut writer, _) = open(&disk).unwrap();
        disk.set_faults(|faults| faults.fail_sync = true);
        store.truncate_after(Some(id(1, last))).await.unwrap();
        drop(append(&mut store, [entry(1, last + 1, 9)]).await);
        writer.step();
        let writes = disk.unsynced();
        assert!(writes > 0, "the truncation was written");
        for kept in 0..=writes {
            let image = disk.crash_keeping(kept);
            let (store, _, recovered) =
                open(&image).unwrap_or_else(|error| panic!("{kept} of {writes} writes kept: {error}"));
            let held = store.reader().try_get_log_entries(..).await.unwrap();
            assert!(recovered.last >= Some(id(1, last)), "{kept} of {writes} writes kept: {recovered:?}");
            assert_eq!(held[..=last as usize], before[..=last as usize], "{kept} of {writes} writes kept");
        }
    }
}

#[tokio::test]
async fn a_log_is_purged_in_slices_between_appends() {
    let disk = MemoryDisk::new();
    let options = LogOptions { tail_bytes: 0, ..LogOptions::default() };
    let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
    save_vote(&mut store, &mut writer, 1).await;
    // One pack an entry: more packs than two slices.
    for index in 0..10_000 {
        drop(append(&mut store, [entry(1, index, 8)]).await);
        writer.step();
    }
    store.purge(id(1, 8_999)).await.unwrap();
    let left = || {
        let mut left = 0;
        disk.crash().damage(|map| left = map.keys().filter(|key| index_of(key).is_some()).count());
        left as u64
    };
    let mut next = 10_000;
    while left() > next - 9_000 || next < 10_010 {
        assert!(next < 10_100, "{} packs of {} entries are left", left(), next - 9_000);
        let done = append(&mut store, [entry(1, next, 8)]).await;
        let deleted = disk.unsynced();
        writer.step();
        assert!(disk.unsynced() <= deleted + 256, "one slice a step");
        done.await.unwrap().unwrap();
        assert_eq!(indexes(&mut store, 0..9_003).await, [9_000, 9_001, 9_002]);
        for kept in [0, disk.unsynced() / 2, disk.unsynced()] {
            let (mut image, _, recovered) = open(&disk.crash_keeping(kept)).unwrap();
            assert_eq!((recovered.purged, recovered.last), (Some(id(1, 8_999)), Some(id(1, next))));
            assert_eq!(indexes(&mut image, 0..9_001).await, [9_000]);
        }
        next += 1;
    }
    assert_eq!(left(), next - 9_000, "everything purged is gone from the disk");
}

#[tokio::test]
async fn a_purge_that_a_crash_cuts_within_an_entry_of_parts_leaves_a_log_that_opens() {
    // Given entries of several parts each, of which the last or the last but one is purged.
    for upto in [3, 4] {
        let disk = MemoryDisk::new();
        let (mut store, mut writer, _) = open(&disk).unwrap();
        save_vote(&mut store, &mut writer, 1).await;
        drop(append(&mut store, entries(1, 0, 5, 30_000)).await);
        writer.finish();
        store.purge(id(1, upto)).await.unwrap();
        writer.step();
        let writes = disk.unsynced();
        assert!(writes > 20, "{writes} writes");
        // When it stops after any of its writes, then all entries behind the purged ones are there.
        for kept in 0..=writes {
            let image = disk.crash_keeping(kept);
            let (mut store, mut writer, recovered) =
                open(&image).unwrap_or_else(|error| panic!("{kept} of {writes} writes kept: {error}"));
            assert_eq!((recovered.last, recovered.truncated), (Some(id(1, 4)), None), "{kept} kept");
            let first = recovered.purged.map_or(0, |purged| purged.index + 1);
            assert_eq!(indexes(&mut store, 0..9).await, Vec::from_iter(first..5), "{kept} kept");
            let done = append(&mut store, [entry(1, 5, 30_000)]).await;
            writer.step();
            done.await.unwrap().unwrap();
            assert_eq!(open(&image.crash()).unwrap().2.last, Some(id(1, 5)), "{kept} kept");
        }
    }
}

#[tokio::test]
async fn a_snapshot_that_overtakes_the_log_moves_its_start() {
    let disk = filled(10).await;
    let (mut store, mut writer, _) = open(&disk).unwrap();
    store.purge(id(1, 99)).await.unwrap();
    let done = append(&mut store, [entry(1, 100, 10)]).await;
    writer.step();
    done.await.unwrap().unwrap();
    assert_eq!(indexes(&mut store, 0..999).await, [100]);
    for kept in 0..=disk.unsynced() {
        let (_, _, recovered) = open(&disk.crash_keeping(kept)).unwrap();
        assert_eq!((recovered.purged, recovered.last), (Some(id(1, 99)), Some(id(1, 100))));
    }
    // An older purge that comes late takes nothing back.
    store.purge(id(1, 50)).await.unwrap();
    writer.finish();
    assert_eq!(open(&disk.crash()).unwrap().2.purged, Some(id(1, 99)));
}
