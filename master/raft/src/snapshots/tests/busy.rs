//! A disk that takes its time.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// A disk whose directory is not synced before the test says so.
#[derive(Debug)]
struct Busy {
    syncing: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Disk for Busy {
    fn free(&self, dir: &Path) -> io::Result<u64> {
        FileSystem.free(dir)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        FileSystem.write(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        FileSystem.sync(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        FileSystem.open(path)
    }

    fn rename(&self, partial: TempPath, to: &Path) -> io::Result<()> {
        FileSystem.rename(partial, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), SnapshotError> {
        self.syncing.send(()).unwrap();
        self.go_on.lock().recv().unwrap();
        FileSystem.sync_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove(path)
    }
}

/// Raft asks between its heartbeats.
#[test]
fn the_newest_snapshot_is_known_while_the_next_one_waits_for_the_disk() {
    let dir = with_snapshots(&[10]);
    let ((syncing, is_syncing), (go_on, waits)) = (channel(), channel());
    let disk = Arc::new(Busy { syncing, go_on: Mutex::new(waits) });
    let (snapshots, _) = SnapshotStore::open_on(disk, dir.path(), CLUSTER).unwrap();
    let writer = std::thread::spawn({
        let snapshots = snapshots.clone();
        move || snapshots.write(&meta(20), &state(20)).map(drop)
    });
    is_syncing.recv().unwrap();
    // Another thread asks, so that an answer that never comes is a failure and not a test that hangs.
    let (answer, asked) = channel();
    std::thread::spawn({
        let snapshots = snapshots.clone();
        move || answer.send((snapshots.current().unwrap().0, snapshots.current_bytes()))
    });
    let answered = asked.recv_timeout(std::time::Duration::from_secs(20));
    go_on.send(()).unwrap();
    writer.join().unwrap().unwrap();
    let (newest, bytes) = answered.expect("an answer while the directory is synced");
    assert_eq!(newest, meta(10), "what is not durable does not count");
    assert!(bytes > 0);
    assert_eq!(snapshots.current().unwrap().0, meta(20));
}
