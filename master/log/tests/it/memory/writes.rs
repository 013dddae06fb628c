//! When writes are acknowledged, and in which order they become durable.

use std::time::Duration;

use mc_log::{LogOptions, LogStore, LogSync, MemoryDisk, TypeConfig};
use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;

use super::{assert_committed_is_held, filled, open, save_vote};
use crate::common::{append, entries, entry, id, indexes, vote};

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
            // Once the vote of the next term is there, entries that it removes are acknowledged no more.
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
