//! How much sled writes between two syncs, on real files.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_log::{LogDisk, LogOptions, LogStore, LogSync, LogView, Mark, SledDisk, SledOptions};
use openraft::storage::RaftLogStorage;

use common::{append, entries, id, vote};

/// A disk on sled that notes how much this process wrote from each sync to the next.
struct Watched {
    disk: SledDisk,
    at_last: u64,
    most: Arc<AtomicU64>,
}

/// Bytes that all threads of this process have written to files.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    line.parse().unwrap()
}

impl LogDisk for Watched {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.disk.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> io::Result<()> {
        self.disk.delete(key)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.disk.flush()
    }

    fn sync(&mut self) -> io::Result<()> {
        // The sync covers what was written before it began.
        let now = written();
        self.most.fetch_max(now - self.at_last, Ordering::Relaxed);
        self.at_last = now;
        self.disk.sync()
    }

    fn write_mark(&mut self, mark: Mark) -> io::Result<()> {
        self.disk.write_mark(mark)
    }

    fn mark(&self) -> Mark {
        self.disk.mark()
    }

    fn view(&self) -> Arc<dyn LogView> {
        self.disk.view()
    }

    fn value_cap(&self) -> usize {
        self.disk.value_cap()
    }

    fn sync_every(&self) -> u64 {
        self.disk.sync_every()
    }

    fn place(&self) -> String {
        self.disk.place()
    }
}

/// The claim that [`SledDisk::sync_every`] rests on, for large batches, small ones, and a log that is purged all the
/// while so that its segments are cleaned and used again.
#[tokio::test]
async fn no_segment_is_filled_between_two_syncs() {
    for sync in [LogSync::Fdatasync, LogSync::None] {
        let dir = tempfile::tempdir().unwrap();
        let sled = SledOptions::default();
        let most = Arc::new(AtomicU64::new(0));
        let disk = SledDisk::open(dir.path(), &sled).unwrap();
        let disk = Watched { disk, at_last: written(), most: most.clone() };
        let options = LogOptions { sync, ..LogOptions::default() };
        let (mut store, mut writer, _) = LogStore::open_inline(Box::new(disk), &options).unwrap();
        let (mut voter, vote) = (store.clone(), vote(1));
        tokio::join!(voter.save_vote(&vote), async { writer.step() }).0.unwrap();

        let mut next = 0;
        let mut used = 0;
        for round in 0..60 {
            let (count, bytes) = [(250, 20_000), (8_000, 256), (1, 100), (40, 128 << 10)][round % 4];
            let done = append(&mut store, entries(1, next, count, bytes)).await;
            writer.step();
            done.await.unwrap().unwrap();
            next += count;
            used += count * bytes as u64;
            if round % 8 == 7 {
                store.purge(id(1, next - 100)).await.unwrap();
                for _ in 0..40 {
                    writer.step();
                }
            }
        }
        writer.finish();
        let file = std::fs::metadata(dir.path().join("db")).unwrap().len();
        assert!(file < used / 2, "segments were used again: {file} bytes for {used}");
        let most = most.load(Ordering::Relaxed);
        println!("{sync}: {} KiB at most between two syncs", most >> 10);
        assert!(most <= sled.segment_size as u64, "{most} bytes were written between two syncs ({sync})");
    }
}
