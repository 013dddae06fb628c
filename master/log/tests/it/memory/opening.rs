//! Logs that open without their torn end, and logs that are refused.

use mc_log::{Damage, LogDisk, LogOptions, LogStore, LogSync, Mark, MemoryDisk};
use openraft::storage::RaftLogStorage;

use super::{damage, filled, index_of, open, save_vote};
use crate::common::{append, entries, entry, id, indexes};

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
    assert_eq!(damage(&disk), Damage::Conflict { index: 2, term: 1, committed: 2 });
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
        // Later writes there are not mixed with the rest of it.
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

fn part_of(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.strip_prefix(b"L")?.get(8..12)?.try_into().unwrap()))
}

fn tear(map: &mut std::collections::BTreeMap<Vec<u8>, bytes::Bytes>, index: u64) {
    for (_, value) in map.iter_mut().filter(|(key, _)| index_of(key) == Some(index)) {
        *value = value.slice(..value.len() / 2);
    }
}
