//! Reads from memory and from the disk.

use mc_log::{LogOptions, LogStore, MemoryDisk};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;

use super::save_vote;
use crate::common::{append, entry, id, indexes};

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
        // Of 50,000 B in memory, one read takes the older entries from the disk and the newer ones from there.
        assert_eq!(store.reader().try_get_log_entries(0..200).await.unwrap(), written);
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
