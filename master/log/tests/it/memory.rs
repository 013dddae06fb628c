//! The log over a disk that loses what was not synced: what is acknowledged, in which order things last, and what is
//! refused.

use std::sync::Arc;
use std::time::Duration;

use mc_log::{
    BatchTimes, Damage, Entry, LogDisk, LogObserver, LogOptions, LogStore, LogSync, LogWriter, Mark,
    MemoryDisk, OpenError, Recovered, TypeConfig,
};
use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;

use crate::common::{append, entries, entry, id, indexes, vote};

fn open(disk: &MemoryDisk) -> Result<(LogStore, LogWriter, Recovered), OpenError> {
    LogStore::open_inline(Box::new(disk.clone()), &LogOptions::default())
}

fn damage(disk: &MemoryDisk) -> Damage {
    match open(disk) {
        Err(OpenError::Refused { found, .. }) => found,
        Err(other) => panic!("refused otherwise: {other}"),
        Ok((_, _, recovered)) => panic!("opened: {recovered:?}"),
    }
}

/// A log of `count` entries of term 1 from index 0, closed in good order.
async fn filled(count: u64) -> MemoryDisk {
    let disk = MemoryDisk::new();
    let (mut store, mut writer, _) = open(&disk).unwrap();
    save_vote(&mut store, &mut writer, 1).await;
    for index in 0..count {
        let done = append(&mut store, [entry(1, index, 100)]).await;
        writer.step();
        done.await.unwrap().unwrap();
    }
    writer.finish();
    disk
}

async fn save_vote(store: &mut LogStore, writer: &mut LogWriter, term: u64) {
    let vote = vote(term);
    let (saved, ()) = tokio::join!(store.save_vote(&vote), async {
        assert!(writer.ready().await);
        writer.step();
    });
    saved.unwrap();
}

#[tokio::test]
async fn an_append_is_not_acknowledged_before_its_sync() {
    let disk = MemoryDisk::new();
    let own = disk.clone();
    let (mut store, _) = LogStore::open(move || Ok(Box::new(own)), LogOptions::default()).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();

    while disk.unsynced() > 0 {
        tokio::task::yield_now().await;
    }
    disk.set_faults(|faults| faults.hold_sync = true);
    let syncs = disk.syncs();
    let mut done = append(&mut store, [entry(1, 0, 100)]).await;
    assert_eq!(indexes(&mut store, 0..9).await, [0], "readable before it is durable");
    disk.wait_for_syncs(syncs + 1);
    assert!(done.try_recv().is_err(), "acknowledged while its sync was still under way");
    assert!(store.unwritten_bytes() >= 100, "and counted as such");
    assert_eq!(open(&disk.crash()).unwrap().2.last, None, "and a crash now loses it");

    disk.set_faults(|faults| faults.hold_sync = false);
    done.await.unwrap().unwrap();
    assert_eq!(open(&disk.crash()).unwrap().2.last, Some(id(1, 0)), "a crash after it does not");
    assert_eq!(store.unwritten_bytes(), 0);
    store.close().await;
}

#[tokio::test]
async fn a_vote_is_durable_when_save_vote_returns() {
    let disk = MemoryDisk::new();
    let own = disk.clone();
    let (mut store, _) = LogStore::open(move || Ok(Box::new(own)), LogOptions::default()).await.unwrap();
    // Slow, so that one acknowledged too early is caught.
    disk.set_faults(|faults| faults.slow_sync = Duration::from_millis(2));
    for term in 1..20 {
        store.save_vote(&vote(term)).await.unwrap();
        assert_eq!(open(&disk.crash()).unwrap().2.vote, Some(vote(term)));
    }
    store.close().await;
}

#[tokio::test]
async fn the_election_timeout_is_durable_with_the_vote() {
    let disk = MemoryDisk::new();
    let (mut store, mut writer, _) = open(&disk).unwrap();
    assert_eq!(store.vote_timing().election_max(), Duration::ZERO, "there is no vote yet");
    store.vote_timing().set(Duration::from_millis(300));
    save_vote(&mut store, &mut writer, 1).await;
    store.vote_timing().set(Duration::from_secs(1));
    let recorded = |disk: &MemoryDisk| open(&disk.crash()).unwrap().0.vote_timing().election_max();
    assert_eq!(recorded(&disk), Duration::from_millis(300), "it is recorded with the next vote");
    save_vote(&mut store, &mut writer, 1).await;
    assert_eq!(recorded(&disk), Duration::from_secs(1));
}

#[tokio::test]
async fn all_that_is_queued_shares_one_sync() {
    let disk = MemoryDisk::new();
    let (mut store, mut writer, _) = open(&disk).unwrap();
    save_vote(&mut store, &mut writer, 1).await;
    let syncs = disk.syncs();
    let mut waiting = Vec::new();
    for index in 0..100 {
        waiting.push(append(&mut store, [entry(1, index, 256)]).await);
    }
    writer.step();
    for done in waiting {
        done.await.unwrap().unwrap();
    }
    assert_eq!(disk.syncs(), syncs + 1);
}

/// One run of everything that changes a log, on a disk that fails after so many writes. Each term overrules the last two
/// entries of the term before it and logs five of its own, all in one batch, so that nothing but the order in which it
/// was asked for keeps it in order. Returns what was acknowledged: the last index, and the term of the vote.
async fn scenario(disk: &MemoryDisk, writes: u64) -> (Option<u64>, u64) {
    let options = LogOptions { mark_every: Duration::ZERO, ..LogOptions::default() };
    let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
    disk.set_faults(|faults| faults.writes_left = Some(writes));
    let (mut last, mut term) = (None, 0);
    for round in 1..=4u64 {
        let from = (round - 1) * 3;
        let before = from.checked_sub(1).map(|last| id(round - 1, last));
        let (mut voter, vote) = (store.clone(), vote(round));
        let (saved, (first, second)) = futures::join!(voter.save_vote(&vote), async {
            drop(store.truncate_after(before).await);
            let first = append(&mut store, entries(round, from, 2, 3_000)).await;
            drop(store.save_committed(before).await);
            // This one needs parts.
            let second = append(&mut store, entries(round, from + 2, 3, 20_000)).await;
            writer.step();
            (first.await, second.await)
        });
        if saved.is_ok() {
            term = round;
        }
        if matches!(first, Ok(Ok(()))) {
            last = Some(from + 1);
        }
        if matches!(second, Ok(Ok(()))) {
            last = Some(from + 4);
        }
    }
    (last, term)
}

#[tokio::test]
async fn votes_and_entries_keep_their_order_through_a_crash_at_every_step() {
    let mut images = 0;
    for writes in 0.. {
        let disk = MemoryDisk::new();
        let (acknowledged, term) = scenario(&disk, writes).await;
        for kept in 0..=disk.unsynced() {
            images += 1;
            let image = disk.crash_keeping(kept);
            let (store, _, recovered) = open(&image).unwrap_or_else(|error| {
                panic!("a crash after {writes} writes, {kept} of the unsynced ones kept: {error}")
            });
            let at = format!("after {writes} writes, {kept} kept: {recovered:?}");
            let found = recovered.vote.map_or(0, |vote| vote.leader_id.term);
            assert!(found >= term, "the vote of term {term} was acknowledged, {at}");
            let held = store.reader().try_get_log_entries(..).await.unwrap();
            assert!(
                held.iter().all(|entry| entry.log_id.leader_id.term <= found),
                "an entry before its vote, {at}"
            );
            assert_committed_is_held(&recovered, &held, &at);
            // What the next term removes is acknowledged no more, once that term's vote is there.
            let floor = acknowledged.map(|last| if found > term { last - 2 } else { last });
            assert!(
                recovered.last.map(|last| last.index) >= floor,
                "{acknowledged:?} was acknowledged, {at}"
            );
        }
        if acknowledged == Some(13) {
            assert!(images > 100, "only {images} crashes were tried");
            return;
        }
    }
}

/// Whether the committed position names an entry of the log, or a purged one.
fn assert_committed_is_held(recovered: &Recovered, held: &[Entry], at: &str) {
    let Some(committed) = recovered.committed else { return };
    let purged = recovered.purged.is_some_and(|purged| purged.index >= committed.index);
    let there = held.iter().any(|entry| entry.log_id == committed);
    assert!(purged || there, "{committed} is committed and not in the log, {at}");
}

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
async fn a_committed_position_of_another_term_than_its_entry_is_refused() {
    let log_of_term_2 = {
        let disk = MemoryDisk::new();
        let (mut store, mut writer, _) = open(&disk).unwrap();
        save_vote(&mut store, &mut writer, 2).await;
        drop(append(&mut store, entries(2, 0, 3, 10)).await);
        store.save_committed(Some(id(2, 2))).await.unwrap();
        writer.finish();
        disk
    };
    let mut position = None;
    log_of_term_2.damage(|map| position = map.get(&b"C"[..]).cloned());

    let disk = filled(3).await;
    disk.damage(|map| drop(map.insert(b"C".to_vec(), position.expect("it was noted"))));
    assert_eq!(damage(&disk), Damage::Overruled { index: 2, term: 1, committed: 2 });
}

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
    let failure = store.failed().await;
    assert!(failure.to_string().contains("fdatasync"), "{failure}");
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
async fn a_torn_end_is_cut_and_said_so() {
    let disk = filled(10).await;
    disk.clone().write_mark(Mark { next: 9, term: 1 }).unwrap();
    disk.damage(|map| tear(map, 9));
    let (mut store, _, recovered) = open(&disk).unwrap();
    let truncated = recovered.truncated.expect("the cut is reported");
    assert_eq!((truncated.from, truncated.records), (9, 1));
    assert!(truncated.to_string().contains("index 9"), "{truncated}");
    assert_eq!(recovered.last, Some(id(1, 8)));
    assert_eq!(indexes(&mut store, 0..99).await, Vec::from_iter(0..9));
    assert_eq!(open(&disk).unwrap().2.truncated, None, "it was cut on the disk too");
}

#[tokio::test]
async fn an_entry_whose_last_parts_are_missing_is_a_torn_end() {
    let disk = filled(3).await;
    {
        let (mut store, mut writer, _) = open(&disk).unwrap();
        let done = append(&mut store, [entry(1, 3, 30_000)]).await;
        writer.step();
        done.await.unwrap().unwrap();
    }
    for parts in 1..5 {
        let image = disk.crash();
        image.damage(|map| map.retain(|key, _| part_of(key).is_none_or(|part| part < parts)));
        let (mut store, mut writer, recovered) = open(&image).unwrap();
        assert_eq!(recovered.last, Some(id(1, 2)));
        assert_eq!(recovered.truncated.map(|cut| (cut.from, cut.records)), Some((3, parts as usize)));
        // What is written there next is not mixed with what is left of it.
        let done = append(&mut store, [entry(1, 3, 10), entry(1, 4, 10)]).await;
        writer.step();
        done.await.unwrap().unwrap();
        assert_eq!(open(&image.crash()).unwrap().2.last, Some(id(1, 4)));
    }
    disk.damage(|map| map.retain(|key, _| part_of(key) != Some(2)));
    assert!(matches!(damage(&disk), Damage::Middle { .. }), "a part missing between others is no torn end");
}

#[tokio::test]
async fn a_log_that_ends_before_its_mark_is_refused_with_the_reason_and_the_fix() {
    let disk = filled(10).await;
    disk.damage(|map| tear(map, 9));
    assert_eq!(damage(&disk), Damage::EndsEarly { next: 9, durable: 10 });
    assert_eq!(damage(&disk), Damage::EndsEarly { next: 9, durable: 10 }, "and nothing was changed");
    let text = open(&disk).err().unwrap().to_string();
    for part in [
        "below index 9",
        "below index 10",
        "could help to elect a leader",
        "move this master's data directory",
    ] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    disk.damage(std::collections::BTreeMap::clear);
    assert!(
        matches!(damage(&disk), Damage::EndsEarly { next: 0, durable: 10 }),
        "an emptied directory as well"
    );
}

#[tokio::test]
async fn a_hole_and_a_damaged_record_in_the_middle_are_refused() {
    let disk = filled(10).await;
    let image = disk.crash();
    image.damage(|map| map.retain(|key, _| index_of(key) != Some(4)));
    assert_eq!(damage(&image), Damage::Hole { expected: 4, found: 5 });

    for bit in 0..150 * 8 {
        let image = disk.crash();
        let mut hit = false;
        image.damage(|map| {
            for (_, value) in map.iter_mut().filter(|(key, _)| index_of(key) == Some(4)) {
                let mut bytes = value.to_vec();
                if let Some(byte) = bytes.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                    hit = true;
                }
                *value = bytes.into();
            }
        });
        if hit {
            assert!(matches!(damage(&image), Damage::Middle { index: 4, intact: 5, .. }), "bit {bit}");
        }
    }
}

#[tokio::test]
async fn a_vote_that_is_gone_or_older_than_the_log_is_refused() {
    let disk = filled(3).await;
    let image = disk.crash();
    image.damage(|map| drop(map.remove(&b"V"[..])));
    assert_eq!(damage(&image), Damage::Vote { term: 0, needed: 1 });

    let image = disk.crash();
    image.clone().write_mark(Mark { next: 3, term: 8 }).unwrap();
    assert_eq!(damage(&image), Damage::Vote { term: 1, needed: 8 });

    let image = disk.crash();
    image.damage(|map| {
        let vote = map.get_mut(&b"V"[..]).unwrap();
        let mut bytes = vote.to_vec();
        bytes[5] ^= 1;
        *vote = bytes.into();
    });
    assert!(matches!(damage(&image), Damage::Record { name: "the vote", .. }));
}

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
    let mut next = 10_000;
    while disk.unsynced() > 0 || next < 10_010 {
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
    let mut left = 0;
    disk.crash().damage(|map| left = map.keys().filter(|key| index_of(key).is_some()).count());
    assert_eq!(left as u64, next - 9_000, "everything purged is gone from the disk");
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

#[tokio::test]
async fn reads_come_from_memory_and_disk_alike_and_limits_hold() {
    for tail_bytes in [0, 50_000, usize::MAX] {
        let disk = MemoryDisk::new();
        let options = LogOptions { tail_bytes, read_bytes: 30_000, ..LogOptions::default() };
        let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
        save_vote(&mut store, &mut writer, 1).await;
        let written: Vec<_> = (0..200).map(|index| entry(1, index, (index * 37 % 1000) as usize)).collect();
        drop(append(&mut store, written.clone()).await);
        writer.step();
        drop(append(&mut store, [entry(1, 200, 100_000)]).await);
        writer.step();
        assert_eq!(store.reader().try_get_log_entries(0..200).await.unwrap(), written);
        assert_eq!(store.reader().try_get_log_entries(17..=20).await.unwrap(), written[17..21]);
        assert_eq!(indexes(&mut store, 201..300).await, [] as [u64; 0]);
        let mut next = 0;
        while next < 201 {
            let some = store.reader().limited_get_log_entries(next, 201).await.unwrap();
            assert_eq!(some[0].log_id.index, next);
            let bytes: usize = some.iter().map(|entry| mc_log::encode_payload(entry).len()).sum();
            assert!(some.len() == 1 || bytes <= 30_000, "{bytes} B in {} entries", some.len());
            next += some.len() as u64;
        }
        store.purge(id(1, 99)).await.unwrap();
        assert_eq!(
            store.reader().limited_get_log_entries(50, 150).await.unwrap(),
            [],
            "never from further on"
        );
        let streamed: Vec<_> =
            futures::StreamExt::collect::<Vec<_>>(store.reader().entries_stream(0..201).await).await;
        let streamed: Vec<u64> = streamed.into_iter().map(|entry| entry.unwrap().log_id.index).collect();
        assert_eq!(streamed, Vec::from_iter(100..201));
    }
}

#[tokio::test]
async fn an_entry_that_would_leave_a_hole_is_not_taken() {
    let disk = filled(3).await;
    let (mut store, _, _) = open(&disk).unwrap();
    for index in [2, 4] {
        let (sender, _receiver) = TypeConfig::oneshot();
        let refused = store.append([entry(1, index, 1)], IOFlushed::signal(sender)).await;
        assert!(refused.is_err(), "entry {index} was taken after entry 2");
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

#[tokio::test]
async fn without_sync_a_power_failure_is_refused_not_forgotten() {
    let disk = MemoryDisk::new();
    let options = LogOptions { sync: LogSync::None, ..LogOptions::default() };
    let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
    save_vote(&mut store, &mut writer, 1).await;
    drop(append(&mut store, [entry(1, 0, 10)]).await);
    writer.finish();
    assert_eq!(disk.syncs(), 1, "for the vote");
    assert_eq!(damage(&disk.crash()), Damage::EndsEarly { next: 0, durable: 1 });
}

#[tokio::test]
async fn votes_survive_a_power_failure_without_sync() {
    let disk = MemoryDisk::new();
    let options = LogOptions { sync: LogSync::None, ..LogOptions::default() };
    let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
    for term in 1..5 {
        save_vote(&mut store, &mut writer, term).await;
        assert_eq!(open(&disk.crash()).unwrap().2.vote, Some(vote(term)), "acknowledged, so it is there");
        drop(append(&mut store, [entry(term, term - 1, 10)]).await);
        let syncs = disk.syncs();
        writer.step();
        assert_eq!(disk.syncs(), syncs, "an entry is not synced");
    }
}

/// Without that a disk that uses its space again could overwrite synced bytes before their replacement is safe.
#[tokio::test]
async fn a_large_batch_and_a_long_purge_are_synced_in_pieces() {
    for sync in [LogSync::Fdatasync, LogSync::None] {
        let disk = MemoryDisk::new().with_sync_every(50_000);
        let options = LogOptions { sync, ..LogOptions::default() };
        let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk.clone()), &options).unwrap();
        save_vote(&mut store, &mut writer, 1).await;

        let syncs = disk.syncs();
        drop(append(&mut store, entries(1, 0, 100, 5_000)).await);
        writer.step();
        assert!(disk.syncs() - syncs >= 10, "{} syncs for 500 KB ({sync})", disk.syncs() - syncs);

        let syncs = disk.syncs();
        store.purge(id(1, 99)).await.unwrap();
        writer.step();
        assert!(disk.syncs() - syncs >= 10, "{} syncs for 100 deletes ({sync})", disk.syncs() - syncs);
    }
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

fn index_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(b"L")?.get(..8)?.try_into().unwrap()))
}

fn part_of(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.strip_prefix(b"L")?.get(8..12)?.try_into().unwrap()))
}

fn tear(map: &mut std::collections::BTreeMap<Vec<u8>, bytes::Bytes>, index: u64) {
    for (_, value) in map.iter_mut().filter(|(key, _)| index_of(key) == Some(index)) {
        *value = value.slice(..value.len() / 2);
    }
}
