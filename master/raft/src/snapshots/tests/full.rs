//! The disk is full at a step of writing a snapshot, and has room again later.

use std::sync::atomic::{AtomicU64, Ordering};

use openraft::storage::RaftSnapshotBuilder;
use rustix::io::Errno;

use super::power::Step;
use super::*;

const STEPS: [Step; 4] = [Step::Write, Step::Sync, Step::Rename, Step::SyncDir];

/// A real directory on a disk with a configured amount of free space.
#[derive(Debug)]
struct Filling {
    /// The step at which the disk is full.
    full_at: Mutex<Option<Step>>,
    /// Bytes that it reports as free.
    free: AtomicU64,
    writes: AtomicU64,
}

impl Filling {
    fn new(full_at: Option<Step>, free: u64) -> Arc<Self> {
        Arc::new(Self { full_at: Mutex::new(full_at), free: free.into(), writes: AtomicU64::new(0) })
    }

    /// Returns a disk that reports room for anything, and is full at `step`.
    fn full_at(step: Step) -> Arc<Self> {
        Self::new(Some(step), u64::MAX)
    }

    fn has_room(&self) {
        *self.full_at.lock() = None;
    }

    fn says_free(&self, bytes: u64) {
        self.free.store(bytes, Ordering::Relaxed);
    }

    fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    fn take(&self, step: Step) -> io::Result<()> {
        if *self.full_at.lock() == Some(step) { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }
}

impl Disk for Filling {
    fn free(&self, _: &Path) -> io::Result<u64> {
        Ok(self.free.load(Ordering::Relaxed))
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let full = self.take(Step::Write);
        // Part of the first bytes fits.
        if full.is_err() && file.metadata()?.len() == 0 {
            return FileSystem.write(file, &bytes[..bytes.len() / 2]);
        }
        full.and_then(|()| FileSystem.write(file, bytes))
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.take(Step::Sync).and_then(|()| FileSystem.sync(file))
    }

    fn rename(&self, partial: TempPath, to: &Path) -> io::Result<()> {
        self.take(Step::Rename).and_then(|()| FileSystem.rename(partial, to))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), SnapshotError> {
        self.take(Step::SyncDir).map_err(io_error("sync", dir))?;
        FileSystem.sync_dir(dir)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        FileSystem.open(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove(path)
    }
}

/// Checks a directory in which a snapshot up to 30 could not be added to those up to 10 and 20. The one up to 20
/// counts. Of the new one there is nothing, or all of it if only its name may still be lost.
fn assert_that_the_last_was_not_added(dir: &TempDir, snapshots: &SnapshotStore, step: Step) {
    assert_eq!(snapshots.current().unwrap().0, meta(20), "full at {step:?}");
    let left: &[u64] = if step == Step::SyncDir { &[10, 20, 30] } else { &[10, 20] };
    let left: Vec<_> = left.iter().map(|index| file_name(Some(&log_id(*index)))).collect();
    assert_eq!(names(dir), left, "full at {step:?}");
    let (_, recovered) = open(dir).unwrap();
    assert!(recovered.bad.is_empty(), "full at {step:?}: {:?}", recovered.bad);
    assert!(recovered_index(&recovered) >= Some(20), "full at {step:?}");
}

fn assert_that_it_was_added(dir: &TempDir, snapshots: &SnapshotStore) {
    assert_eq!(snapshots.current().unwrap().0, meta(30));
    assert_eq!(names(dir), [20, 30].map(|index| file_name(Some(&log_id(index)))));
    assert_eq!(recovered_index(&open(dir).unwrap().1), Some(30));
}

#[tokio::test]
async fn a_snapshot_that_the_disk_has_no_room_for_is_written_once_it_has() {
    for step in STEPS {
        let dir = with_snapshots(&[10, 20]);
        let disk = Filling::full_at(step);
        let (mut machine, snapshots) = machine(&dir, disk.clone(), 30);
        let built = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
        // openraft purges no further than it is told that a snapshot covers.
        assert_eq!(built.meta, meta(20), "full at {step:?}");
        assert_that_the_last_was_not_added(&dir, &snapshots, step);

        disk.has_room();
        let built = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
        assert_eq!(built.meta, meta(30));
        assert_that_it_was_added(&dir, &snapshots);
    }
}

#[tokio::test]
async fn a_first_snapshot_that_the_disk_has_no_room_for_does_not_stop_the_machine() {
    let dir = with_snapshots(&[]);
    let disk = Filling::full_at(Step::Write);
    let (mut machine, snapshots) = machine(&dir, disk.clone(), 30);
    let built = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
    assert_eq!(built.meta, SnapshotMeta::default(), "it covers nothing, so nothing is purged");
    assert!(disk.writes() > 0 && snapshots.current().is_none());
    assert!(names(&dir).is_empty(), "{:?}", names(&dir));

    disk.has_room();
    let built = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
    assert_eq!(built.meta, meta(30));
    assert_eq!(recovered_index(&open(&dir).unwrap().1), Some(30));
}

#[tokio::test]
async fn a_sent_snapshot_that_the_disk_has_no_room_for_is_taken_over_once_it_has() {
    let sender = with_snapshots(&[30]);
    let bytes = fs::read(path(&sender, 30)).unwrap();
    for step in STEPS {
        let dir = with_snapshots(&[10, 20]);
        let disk = Filling::full_at(step);
        let (mut machine, snapshots) = machine(&dir, disk.clone(), 20);
        let err = take_over(&mut machine, &snapshots, &bytes).await.unwrap_err().to_string();
        assert!(err.contains("No space left on device"), "{err}");
        assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(20)), "full at {step:?}");
        assert_that_the_last_was_not_added(&dir, &snapshots, step);

        disk.has_room();
        take_over(&mut machine, &snapshots, &bytes).await.unwrap();
        assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(30)));
        assert_that_it_was_added(&dir, &snapshots);
    }
}

/// Otherwise the log would be left without room.
#[test]
fn a_snapshot_that_does_not_fit_is_not_begun() {
    let needed = |index| bytes_of(&state(index)).len() as u64 + LOG_ROOM;
    let dir = with_snapshots(&[]);
    let disk = Filling::new(None, needed(10) - 1);
    let (store, _) = SnapshotStore::open_on(disk.clone(), dir.path(), CLUSTER).unwrap();

    let refused = store.write(&meta(10), &state(10)).unwrap_err();
    assert!(matches!(refused, SnapshotError::NoRoom { .. }), "{refused}");
    assert!(refused.to_string().contains("make room there"), "{refused}");
    disk.says_free(LOG_ROOM + 999);
    let refused = store.receive(meta(10), 1000, ReceivePermit::default()).unwrap_err();
    assert!(matches!(refused, SnapshotError::NoRoom { needed: 1000, .. }), "{refused}");
    assert_eq!((disk.writes(), names(&dir).len()), (0, 0));
    disk.says_free(LOG_ROOM + 1000);
    assert!(store.receive(meta(10), 1000, ReceivePermit::default()).is_ok());

    disk.says_free(needed(10));
    store.write(&meta(10), &state(10)).unwrap();
    // Also after another one.
    disk.says_free(needed(20) - 1);
    assert!(store.write(&meta(20), &state(20)).is_err());
    disk.says_free(needed(20));
    assert_eq!(store.write(&meta(20), &state(20)).unwrap().0, meta(20));
}
