//! Snapshots on disk.
//!
//! A snapshot counts once it was written to a `.partial` file, synced, renamed, its directory synced, read back and
//! found good; a crash at any step leaves the one before it in place, because nothing older is deleted earlier. Two
//! are kept, so that one that turns bad on disk costs nothing while the log still reaches back to the other.
//!
//! One that does not fit on the disk is not begun. It would take the last of the room from the log, and a master whose
//! log cannot be written ends.

mod disk;
mod file;
mod format;
mod incoming;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_base::ClusterId;
use parking_lot::Mutex;
use tempfile::TempPath;

use disk::{Disk, FileSystem, PartialFile};
pub use file::SnapshotFile;
pub use format::Defect;
pub(crate) use format::fuzz_file;
pub(crate) use incoming::Incoming;

use super::{LogId, SnapshotMeta};
use crate::state::State;
use format::Header;

const SUFFIX: &str = "snapshot";
/// Bytes that a snapshot leaves to the log.
const LOG_ROOM: u64 = 16 << 20;
/// What an index may have grown by since its last snapshot, and then some.
const AMPLE: u64 = 1 << 30;
const PARTIAL: &str = "partial";

const NEWER_BUILD: &str = "start a newer build with this data directory, which can read it";

/// Why the snapshots of a data directory cannot be used, or one cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The disk said no.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It does not fit, and was not begun.
    #[error(
        "a snapshot of {needed} bytes does not fit on the disk of {dir}, where {free} are free and the log needs \
         {LOG_ROOM}: make room there"
    )]
    NoRoom {
        /// The snapshot directory.
        dir: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes of the snapshot.
        needed: u64,
    },
    /// A file that must not be passed over: another cluster's, or a newer build's.
    #[error("snapshot {path} is refused: {defect}; {fix}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        defect: Defect,
        /// What to do.
        fix: &'static str,
    },
    /// The newest snapshot is bad and the log begins after the one before it.
    #[error(
        "snapshot {path} is bad ({defect}) and the log begins after index {purged}, past what the snapshot before it \
         covers ({covered}): the index cannot be rebuilt from this disk. Move the data directory away and start \
         again: this master then joins its cluster as a new node"
    )]
    Bad {
        /// The newest bad file.
        path: PathBuf,
        /// What is wrong with it.
        defect: Defect,
        /// Last index that the log no longer has.
        purged: u64,
        /// Last index of the good snapshot, in words.
        covered: String,
    },
    /// The log was purged, and there is no snapshot of what it held.
    #[error(
        "the log begins after index {purged}, but {dir} has no snapshot that covers it ({covered}): the index cannot \
         be rebuilt from this disk. Put the missing file back, or move the data directory away and start again: this \
         master then joins its cluster as a new node"
    )]
    Missing {
        /// The snapshot directory.
        dir: PathBuf,
        /// Last index that the log no longer has.
        purged: u64,
        /// Last index of the newest snapshot, in words.
        covered: String,
    },
    /// What another master sent is not what it announced.
    #[error("the snapshot that was received is bad: {0}; its sender tries again")]
    NotAsSent(Defect),
    /// The snapshot that was just written or received does not read back.
    #[error("snapshot {path} does not read back: {defect}; the disk or its memory is failing")]
    NotReadBack {
        /// The file, which is deleted.
        path: PathBuf,
        /// What is wrong with it.
        defect: Defect,
    },
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    move |source| SnapshotError::Io { what, path, source }
}

impl From<SnapshotError> for io::Error {
    fn from(err: SnapshotError) -> Self {
        Self::other(err)
    }
}

/// What a data directory holds at start.
#[derive(Debug)]
pub struct Recovered {
    /// The newest good snapshot and the state in it.
    pub snapshot: Option<(SnapshotMeta, State)>,
    /// Newer files that are bad, newest first.
    pub bad: Vec<(PathBuf, Defect)>,
    dir: PathBuf,
}

impl Recovered {
    /// Whether the log, which has lost everything up to `purged`, reaches back to the snapshot.
    ///
    /// # Errors
    /// [`SnapshotError::Bad`] or [`SnapshotError::Missing`] when it does not.
    pub fn check_log(&mut self, purged: Option<&LogId>) -> Result<(), SnapshotError> {
        let last = self.snapshot.as_ref().and_then(|(meta, _)| meta.last_log_id);
        let Some(purged) = purged.filter(|purged| last.is_none_or(|last| last.index < purged.index)) else {
            return Ok(());
        };
        let (purged, dir) = (purged.index, self.dir.clone());
        let covered = last.map_or_else(|| "there is none".into(), |last| format!("up to {}", last.index));
        Err(match self.bad.drain(..).next() {
            Some((path, defect)) => SnapshotError::Bad { path, defect, purged, covered },
            None => SnapshotError::Missing { dir, purged, covered },
        })
    }
}

/// The snapshots of one master. Everything here blocks on the disk.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    disk: Arc<dyn Disk>,
    dir: Arc<PathBuf>,
    cluster: ClusterId,
    /// Held while a snapshot is published, so that one that was built and one that was received do not race.
    kept: Arc<Mutex<Kept>>,
    /// Bytes of the newest snapshot. Beside the lock: publishing takes as long as reading the file back does.
    current_bytes: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Kept {
    current: Option<Current>,
    /// Files that were found bad at start: they stay for whoever looks into it until there is a newer good one.
    bad: Vec<PathBuf>,
}

#[derive(Clone, Debug)]
struct Current {
    meta: SnapshotMeta,
    file: SnapshotFile,
}

impl SnapshotStore {
    /// Opens `dir`, which is made if need be: deletes what a crash left unfinished, and loads the newest good snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`] when the directory cannot be used, or a file in it is another cluster's or a newer build's.
    pub fn open(dir: &Path, cluster: ClusterId) -> Result<(Self, Recovered), SnapshotError> {
        Self::open_on(Arc::new(FileSystem), dir, cluster)
    }

    fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        cluster: ClusterId,
    ) -> Result<(Self, Recovered), SnapshotError> {
        fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
            let path = entry.map_err(io_error("list", dir))?.path();
            if path.extension().is_some_and(|ext| ext == PARTIAL) {
                fs::remove_file(&path).map_err(io_error("delete", &path))?;
            } else if path.extension().is_some_and(|ext| ext == SUFFIX) {
                names.push(path);
            }
        }
        // The name begins with the index at a fixed width.
        names.sort_unstable_by(|a, b| b.cmp(a));

        let store = Self {
            disk,
            dir: Arc::new(dir.to_owned()),
            cluster,
            kept: Arc::default(),
            current_bytes: Arc::default(),
        };
        let mut recovered = Recovered { snapshot: None, bad: Vec::new(), dir: dir.to_owned() };
        for path in names {
            match store.load(&path) {
                Ok((current, state)) => {
                    recovered.snapshot = Some((current.meta.clone(), state));
                    store.keep(&mut store.kept.lock(), current);
                    break;
                }
                Err(defect @ Defect::Foreign { .. }) => {
                    let fix = "give this master its own data directory";
                    return Err(SnapshotError::Refused { path, defect, fix });
                }
                Err(defect) if defect.is_newer() => {
                    return Err(SnapshotError::Refused { path, defect, fix: NEWER_BUILD });
                }
                Err(defect) => recovered.bad.push((path, defect)),
            }
        }
        store.kept.lock().bad = recovered.bad.iter().map(|(path, _)| path.clone()).collect();
        Ok((store, recovered))
    }

    fn load(&self, path: &Path) -> Result<(Current, State), Defect> {
        let verified = format::verify(File::open(path)?, self.cluster)?;
        let meta = verified.header.meta.clone();
        let file = SnapshotFile::kept(path, verified.len)?;
        Ok((Current { meta, file }, verified.read_state()?))
    }

    /// The newest snapshot that counts.
    #[must_use]
    pub fn current(&self) -> Option<(SnapshotMeta, SnapshotFile)> {
        self.kept.lock().current.as_ref().map(|current| (current.meta.clone(), current.file.clone()))
    }

    /// Bytes of the newest snapshot; zero when there is none. Never blocks.
    #[must_use]
    pub fn current_bytes(&self) -> u64 {
        self.current_bytes.load(Ordering::Relaxed)
    }

    fn keep(&self, kept: &mut Kept, current: Current) {
        self.current_bytes.store(current.file.len(), Ordering::Relaxed);
        kept.current = Some(current);
    }

    /// Writes a snapshot. Returns the newest one: this one, or one that covers as much and was there before.
    ///
    /// # Errors
    /// [`SnapshotError`] when the disk refuses; the snapshot before it is untouched.
    pub fn write(
        &self,
        meta: &SnapshotMeta,
        state: &State,
    ) -> Result<(SnapshotMeta, SnapshotFile), SnapshotError> {
        if let Some(current) = self.current()
            && current.0.last_log_id >= meta.last_log_id
        {
            return Ok(current);
        }
        self.check_room_for(state)?;
        let (file, path) = self.partial_file()?;
        let header = Header { cluster: self.cluster, meta: meta.clone() };
        format::write(&header, state, file).map_err(io_error("write snapshot", &path))?;
        self.publish(path, meta)
    }

    /// Loads the state of `file` and makes it the newest snapshot, unless it is that already.
    ///
    /// # Errors
    /// [`SnapshotError`] when the file is not a good snapshot of `meta`, or the disk refuses.
    pub fn install(&self, meta: &SnapshotMeta, file: SnapshotFile) -> Result<State, SnapshotError> {
        let is_current =
            self.kept.lock().current.as_ref().is_some_and(|current| current.file.path() == file.path());
        let file = if is_current { file } else { self.publish(file.into_partial(self)?, meta)?.1 };
        let not_good = |defect: Defect| {
            let path = file.path().to_owned();
            match defect.is_newer() {
                // It stays the newest on disk: this build does not start from an older one either.
                true => SnapshotError::Refused { path, defect, fix: NEWER_BUILD },
                false => SnapshotError::NotReadBack { path, defect },
            }
        };
        let opened = File::open(file.path()).map_err(io_error("open snapshot", file.path()))?;
        format::verify(opened, self.cluster).and_then(format::Verified::read_state).map_err(not_good)
    }

    /// Starts to receive a snapshot of `len` bytes from another master.
    ///
    /// # Errors
    /// When it does not fit, or the disk refuses.
    pub(crate) fn receive(&self, meta: SnapshotMeta, len: u64) -> Result<Incoming, SnapshotError> {
        self.check_room(len)?;
        let (file, path) = self.partial_file()?;
        Ok(Incoming::new(file, path, Header { cluster: self.cluster, meta }, len))
    }

    fn check_room(&self, needed: u64) -> Result<(), SnapshotError> {
        // A file system that does not say what is free refuses soon enough when it is written to.
        match self.disk.free(&self.dir) {
            Ok(free) if free < needed.saturating_add(LOG_ROOM) => {
                Err(SnapshotError::NoRoom { dir: self.dir.to_path_buf(), free, needed })
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// [`Self::check_room`] for a snapshot of `state`. Measuring it takes nearly as long as writing it: that is left out
    /// where it can hardly be too large.
    fn check_room_for(&self, state: &State) -> Result<(), SnapshotError> {
        let before = self.current_bytes();
        if before > 0 && self.check_room(before.saturating_mul(2).saturating_add(AMPLE)).is_ok() {
            return Ok(());
        }
        self.check_room(format::measure(state).map_err(io_error("measure a snapshot for", &self.dir))?)
    }

    fn partial_file(&self) -> Result<(PartialFile, TempPath), SnapshotError> {
        let (file, path) = tempfile::Builder::new()
            .suffix(&format!(".{PARTIAL}"))
            .tempfile_in(&*self.dir)
            .map(tempfile::NamedTempFile::into_parts)
            .map_err(io_error("create a file in", &self.dir))?;
        Ok((PartialFile::new(file, self.disk.clone()), path))
    }

    /// The steps after the file was written and synced; see the module.
    fn publish(
        &self,
        partial: TempPath,
        meta: &SnapshotMeta,
    ) -> Result<(SnapshotMeta, SnapshotFile), SnapshotError> {
        let mut kept = self.kept.lock();
        if let Some(newer) = kept.current.as_ref().filter(|newer| newer.meta.last_log_id > meta.last_log_id) {
            return Ok((newer.meta.clone(), newer.file.clone()));
        }
        let path = self.dir.join(file_name(meta.last_log_id.as_ref()));
        self.disk.rename(partial, &path).map_err(io_error("rename a snapshot to", &path))?;
        self.disk.sync_dir(&self.dir)?;

        let read_back = self.disk.open(&path).map_err(Defect::from).and_then(|file| {
            let verified = format::verify(file, self.cluster)?;
            if verified.header.meta != *meta {
                return Err(Defect::Content(
                    "it is of another log id or membership than was announced".into(),
                ));
            }
            Ok(SnapshotFile::kept(&path, verified.len)?)
        });
        let file = match read_back {
            Ok(file) => file,
            Err(defect) => {
                self.disk.remove(&path).map_err(io_error("delete", &path))?;
                return Err(SnapshotError::NotReadBack { path, defect });
            }
        };
        self.keep(&mut kept, Current { meta: meta.clone(), file: file.clone() });
        let bad = std::mem::take(&mut kept.bad);
        self.delete_old(bad.iter().filter(|bad| **bad != path));
        Ok((meta.clone(), file))
    }

    /// Leaves the two newest. A snapshot that cannot be deleted costs space, nothing else.
    fn delete_old<'a>(&self, bad: impl Iterator<Item = &'a PathBuf>) {
        let delete = |path: &PathBuf| {
            if let Err(err) = self.disk.remove(path) {
                tracing::warn!("cannot delete the old snapshot {}: {err}", path.display());
            }
        };
        bad.for_each(delete);
        let Ok(entries) = fs::read_dir(&*self.dir) else { return };
        let is_snapshot = |path: &PathBuf| path.extension().is_some_and(|ext| ext == SUFFIX);
        let mut paths: Vec<_> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_snapshot).collect();
        paths.sort_unstable_by(|a, b| b.cmp(a));
        paths.iter().skip(2).for_each(delete);
    }
}

fn file_name(last: Option<&LogId>) -> String {
    let (index, term) = last.map_or((0, 0), |last| (last.index, last.leader_id.term));
    format!("{index:020}-{term:020}.{SUFFIX}")
}

fn sync_dir(dir: &Path) -> Result<(), SnapshotError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", dir))
}

#[cfg(test)]
mod tests;
