//! The log's disk on sled 0.34.
//!
//! sled is used narrowly, each point for a reason that was measured (docs/adr/0003-log-on-sled.md): values stay below
//! the size at which sled writes blob files, which it never syncs; writes are single inserts in order, because its
//! batches can tear; `flush` is called by one thread, because `flush_async` can hang; and since `flush` does not reach
//! the drive's medium, [`LogDisk::sync`] is an `fdatasync` on a handle of our own to the same file.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::mark_file::{MarkError, MarkFile};
use super::panics::caught;
use super::{KeyValue, LogDisk, LogView, Mark, Visit, page_table};
use crate::error::{Damage, OpenError, says_damaged};

/// Longest wait for an earlier owner of the directory to release it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Bytes that sled writes for each byte of ours, at most: every tenth change of a leaf writes all of it again, and
/// cleaning a segment moves what is left in it. Measured by `master/log/tests/segments.rs`; 4 is too few.
const WRITTEN_PER_BYTE: usize = 8;

/// Layout of sled's file.
#[derive(Debug, Clone)]
pub struct SledOptions {
    /// Size of sled's segments, in bytes. Fixed when a log is created: sled does not open it with another value.
    pub segment_size: usize,
    /// The largest value, in bytes. A leaf of 16 values must stay below a quarter of a segment, or sled writes it to a
    /// file of its own that it never syncs. And some thousand leaves stay in memory, whatever `cache` says: sled's
    /// cache is 256 lists of leaves, each list checks its size only once in 64 accesses, and a leaf that is appended to
    /// once is never accessed again.
    pub value_cap: usize,
    /// Memory for sled's own cache, in bytes. Recent entries are cached above it, so this serves slow followers.
    pub cache: u64,
}

impl Default for SledOptions {
    fn default() -> Self {
        Self { segment_size: 2 << 20, value_cap: 7 << 10, cache: 64 << 20 }
    }
}

/// A [`LogDisk`] on sled, in a directory of its own.
pub struct SledDisk {
    tree: sled::Db,
    /// The same inode as sled's own handle: `fdatasync` here covers what sled wrote there.
    file: File,
    mark: MarkFile,
    value_cap: usize,
    sync_every: u64,
    dir: PathBuf,
    /// Keeps other processes out. Locked before anything is read, so that they get a clear error.
    _lock: File,
}

impl SledDisk {
    /// Opens the log in `dir`, or makes one. Blocks, and takes time in proportion to the log.
    ///
    /// # Errors
    /// See [`OpenError`]. A panic of sled, which is its answer to some damage, is a refusal too.
    pub fn open(dir: &Path, options: &SledOptions) -> Result<Self, OpenError> {
        let place = dir.display().to_string();
        let io = |attempt| {
            let place = place.clone();
            move |source| OpenError::Io { place, attempt, source }
        };
        std::fs::create_dir_all(dir).map_err(io("create its directory"))?;
        let lock = File::open(dir).map_err(io("open its directory"))?;
        let patience = Instant::now() + LOCK_PATIENCE;
        while let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            match errno {
                Errno::INTR => {}
                Errno::WOULDBLOCK if Instant::now() < patience => std::thread::sleep(LOCK_RETRY),
                Errno::WOULDBLOCK => return Err(OpenError::Locked { place }),
                other => return Err(io("lock its directory")(other.into())),
            }
        }
        let refuse = |found| OpenError::Refused { place: place.clone(), found };
        let mark = match MarkFile::open(dir) {
            Ok(mark) => mark,
            // The mark is made before the database: without both this is a new log, with one of them it is not.
            Err(MarkError::Missing) if !dir.join("db").exists() => {
                MarkFile::create(dir).map_err(io("create the file `durable`"))?
            }
            Err(MarkError::Missing) => {
                let what = "the file `durable` is gone".to_owned();
                return Err(refuse(Damage::Record { name: "what is durable", what }));
            }
            Err(MarkError::Damaged(what)) => {
                return Err(refuse(Damage::Record { name: "what is durable", what }));
            }
            Err(MarkError::Io(source)) => return Err(io("read the file `durable`")(source)),
        };
        if let Some(bytes) = File::open(dir.join("db")).and_then(|db| db.metadata()).ok().map(|db| db.len()) {
            tracing::info!(mib = bytes >> 20, dir = place, "opening the Raft log");
        }
        page_table::keep(dir, &lock).map_err(io("keep the last snapshot of the database"))?;
        let tree = loop {
            match open_sled(dir, options) {
                Ok(tree) => break tree,
                // sled has a lock of its own, which its threads may hold for a moment after a close.
                Err(SledOpenError::Locked) if Instant::now() < patience => std::thread::sleep(LOCK_RETRY),
                Err(SledOpenError::Locked) => return Err(OpenError::Locked { place }),
                Err(SledOpenError::Io(source)) => return Err(io("open the database")(source)),
                Err(SledOpenError::Damaged(what)) => return Err(refuse(Damage::Engine { what })),
            }
        };
        match sync_names(dir, &lock) {
            Ok(file) => Ok(Self {
                tree,
                file,
                mark,
                value_cap: options.value_cap,
                sync_every: (options.segment_size / WRITTEN_PER_BYTE) as u64,
                dir: dir.to_owned(),
                _lock: lock,
            }),
            Err(source) => {
                // sled syncs its file when it is dropped, and panics when it can't.
                drop(caught(|| drop(tree)));
                Err(io("sync the directory")(source))
            }
        }
    }
}

/// sled leaves the names of new files to the kernel. Returns the database's file.
fn sync_names(dir: &Path, lock: &File) -> io::Result<File> {
    let file = File::open(dir.join("db"))?;
    file.sync_all()?;
    File::open(dir.join("conf"))?.sync_all()?;
    lock.sync_all()?;
    if let Some(up) = dir.parent().filter(|up| !up.as_os_str().is_empty()) {
        File::open(up)?.sync_all()?;
    }
    page_table::let_go(dir)?;
    Ok(file)
}

enum SledOpenError {
    Locked,
    Io(io::Error),
    Damaged(String),
}

fn open_sled(dir: &Path, options: &SledOptions) -> Result<sled::Db, SledOpenError> {
    let config = sled::Config::new()
        .path(dir)
        .segment_size(options.segment_size)
        .cache_capacity(options.cache)
        .flush_every_ms(None);
    match caught(|| config.open()) {
        Ok(Ok(tree)) => Ok(tree),
        Ok(Err(sled::Error::Io(source))) if source.to_string().starts_with("could not acquire lock") => {
            Err(SledOpenError::Locked)
        }
        Ok(Err(sled::Error::Io(source))) if !says_damaged(&source) => Err(SledOpenError::Io(source)),
        Ok(Err(error)) => Err(SledOpenError::Damaged(error.to_string())),
        Err(why) => Err(SledOpenError::Damaged(format!("sled panicked: {why}"))),
    }
}

fn to_io(error: sled::Error) -> io::Error {
    match error {
        sled::Error::Io(error) => error,
        other => io::Error::other(other),
    }
}

impl LogDisk for SledDisk {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.tree.insert(key, value).map(drop).map_err(to_io)
    }

    fn delete(&mut self, key: &[u8]) -> io::Result<()> {
        self.tree.remove(key).map(drop).map_err(to_io)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tree.flush().map(drop).map_err(to_io)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write_mark(&mut self, mark: Mark) -> io::Result<()> {
        self.mark.write(mark)
    }

    fn mark(&self) -> Mark {
        self.mark.mark()
    }

    fn view(&self) -> Arc<dyn LogView> {
        Arc::new(SledView { tree: (*self.tree).clone() })
    }

    fn value_cap(&self) -> usize {
        self.value_cap
    }

    /// sled uses a segment again once all that was in it has been written elsewhere, and hands that to the drive
    /// without a sync.
    ///
    /// Say that the last of it was written to segment R. sled frees the old segment when R is full and a later buffer,
    /// whose header says so, has been written (`SegmentAccountant::stabilize`). That buffer lies in the segment after R
    /// at the earliest, so the old segment becomes the one after that at the earliest. Between the last byte of the
    /// replacement and the first byte over the old segment lies a whole segment of sled's log. Where less than that is
    /// written between two syncs, a sync lies between them, and covers the replacement.
    ///
    /// `no_segment_is_filled_between_two_syncs` (master/log/tests/segments.rs) measures that on real files.
    fn sync_every(&self) -> u64 {
        self.sync_every
    }

    fn place(&self) -> String {
        self.dir.display().to_string()
    }
}

struct SledView {
    tree: sled::Tree,
}

impl LogView for SledView {
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        Ok(self.tree.get(key).map_err(to_io)?.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn floor(&self, key: &[u8]) -> io::Result<Option<KeyValue>> {
        let found = self.tree.range(..=key).next_back().transpose().map_err(to_io)?;
        Ok(found.map(|(key, value)| (Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value))))
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> io::Result<()> {
        for item in self.tree.range(from..) {
            let (key, value) = item.map_err(to_io)?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
