//! A disk for snapshots, one step of which waits until the test lets it go on.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use mc_testkit::until;
use parking_lot::{Condvar, Mutex};
use tempfile::TempPath;

use crate::snapshots::{Disk, FileSystem, SnapshotError};

/// The step in front of which the gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    ReadBack,
    SyncDir,
}

/// The gate of a disk. It opens when the test ends in any way, so that no thread waits for ever.
pub(crate) struct Gate(Arc<Gated>);

#[derive(Debug)]
struct Gated {
    before: Before,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    closed: bool,
    came: usize,
}

impl Gate {
    /// Returns a closed gate.
    pub(crate) fn closed(before: Before) -> Self {
        let state = State { closed: true, came: 0 };
        Self(Arc::new(Gated { before, state: Mutex::new(state), changed: Condvar::new() }))
    }

    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        self.0.clone()
    }

    /// Number of snapshots that have reached the gate.
    pub(crate) fn count(&self) -> usize {
        self.0.state.lock().came
    }

    /// Waits until that many snapshots have reached the gate.
    pub(crate) async fn came(&self, count: usize) {
        until("a snapshot to come to the gate", async || self.count() >= count).await;
    }

    pub(crate) fn open(&self) {
        self.0.state.lock().closed = false;
        self.0.changed.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

impl Gated {
    fn pass(&self, step: Before) {
        if step == self.before {
            let mut state = self.state.lock();
            state.came += 1;
            self.changed.wait_while(&mut state, |state| state.closed);
        }
    }
}

impl Disk for Gated {
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
        self.pass(Before::ReadBack);
        FileSystem.open(path)
    }

    fn rename(&self, partial: TempPath, to: &Path) -> io::Result<()> {
        FileSystem.rename(partial, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), SnapshotError> {
        self.pass(Before::SyncDir);
        FileSystem.sync_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove(path)
    }
}
