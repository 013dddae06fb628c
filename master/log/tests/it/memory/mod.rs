//! The log over a disk that loses what was not synced: what is acknowledged, in which order things last, and what is
//! refused.

mod failures;
mod marks;
mod opening;
mod reads;
mod removal;
mod writes;

use mc_log::{Damage, Entry, LogOptions, LogStore, LogWriter, MemoryDisk, OpenError, Recovered};
use openraft::storage::RaftLogStorage;

use crate::common::{append, entry, vote};

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

/// Whether the committed position names an entry of the log, or a purged one.
fn assert_committed_is_held(recovered: &Recovered, held: &[Entry], at: &str) {
    let Some(committed) = recovered.committed else { return };
    let purged = recovered.purged.is_some_and(|purged| purged.index >= committed.index);
    let there = held.iter().any(|entry| entry.log_id == committed);
    assert!(purged || there, "{committed} is committed and not in the log, {at}");
}

fn index_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(b"L")?.get(..8)?.try_into().unwrap()))
}
