//! File-system calls whose order makes a snapshot durable. They go through a trait, so that a test can cut the power
//! between any two of them.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use mc_durable::FreeSpace as _;
use tempfile::TempPath;

use super::{SnapshotError, sync_dir};

/// The steps of writing a snapshot.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Bytes that may still be written to the file system that `dir` is on.
    fn free(&self, dir: &Path) -> io::Result<u64>;

    /// Appends bytes to a file that does not count as a snapshot yet.
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize>;

    /// Makes the file's bytes durable.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Opens the file again, to read it back.
    fn open(&self, path: &Path) -> io::Result<File>;

    /// Gives the file the name under which it counts as a snapshot.
    fn rename(&self, partial: TempPath, to: &Path) -> io::Result<()>;

    /// Makes the names in the directory durable.
    fn sync_dir(&self, dir: &Path) -> Result<(), SnapshotError>;

    /// Deletes an older snapshot.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The real file system.
#[derive(Debug)]
pub(crate) struct FileSystem;

impl Disk for FileSystem {
    fn free(&self, dir: &Path) -> io::Result<u64> {
        mc_durable::FileSystem.free_bytes(dir)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, partial: TempPath, to: &Path) -> io::Result<()> {
        partial.persist(to).map_err(|err| err.error)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), SnapshotError> {
        sync_dir(dir)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// Bytes after which a file that is being written is synced. Otherwise the sync at its end would delay the log's
/// syncs on the same disk for as long as the disk takes for all of it.
const SYNC_EVERY: usize = 16 << 20;

/// A snapshot file that does not count yet.
#[derive(Debug)]
pub(crate) struct PartialFile {
    file: File,
    disk: Arc<dyn Disk>,
    unsynced: usize,
}

impl PartialFile {
    pub(super) fn new(file: File, disk: Arc<dyn Disk>) -> Self {
        Self { file, disk, unsynced: 0 }
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.disk.sync(&self.file)
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.disk.write(&mut self.file, bytes)?;
        self.unsynced += written;
        if self.unsynced >= SYNC_EVERY {
            self.sync_all()?;
            self.unsynced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
