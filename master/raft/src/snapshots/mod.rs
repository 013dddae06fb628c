//! Snapshots on disk.
//!
//! A snapshot counts once it was written to a `.partial` file, synced, read back and found good, renamed, and its
//! directory synced. A crash at any step leaves the previous one in place, because nothing older is deleted earlier.
//! Two are kept, so that one that goes bad on disk costs nothing while the log still reaches back to the other.
//!
//! For a received snapshot, Raft waits for the last two steps, and votes for nobody meanwhile. So everything whose
//! time grows with the size happens before Raft hears of it, or afterwards. Before: it is received, synced, read back
//! and decoded ([`Incoming`]). Afterwards: the index that it replaced is freed and deleted ([`mc_durable::aside`]).
//!
//! A snapshot that does not fit on the disk is not begun. It would use up the space of the log, and a master that
//! cannot write its log ends.

mod disk;
mod file;
mod format;
mod incoming;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_types::ClusterId;
use parking_lot::Mutex;
use tempfile::TempPath;
use tokio::sync::Semaphore;

use disk::PartialFile;
pub(crate) use disk::{Disk, FileSystem};
pub(crate) use file::ReceivePermit;
pub use file::SnapshotFile;
pub use format::Defect;
#[cfg(feature = "testing")]
pub(crate) use format::fuzz_file;
pub(crate) use incoming::{GivenUp, Incoming};

use file::{Received, Unnamed};
use format::Header;
use mc_index::State;
use mc_log::{LogId, SnapshotMeta};

const SUFFIX: &str = "snapshot";
/// Bytes that a snapshot leaves to the log.
const LOG_ROOM: u64 = 16 << 20;
/// Bytes above the growth of an index between two snapshots.
const AMPLE: u64 = 1 << 30;
const PARTIAL: &str = "partial";
/// Bytes that are copied at once.
const COPY_PIECE: usize = 1 << 20;

const NEWER_BUILD: &str = "start a newer build with this data directory, which can read it";

/// Error of the snapshots of a data directory, or of adding one.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The disk refused.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// The attempted step.
        what: &'static str,
        /// Its file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The snapshot does not fit on the disk, and was not begun.
    #[error(
        "a snapshot of {needed} bytes does not fit on the disk of {dir}, where {free} bytes are free and the log needs \
         {LOG_ROOM} bytes: make room there"
    )]
    NoRoom {
        /// The snapshot directory.
        dir: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes of the snapshot.
        needed: u64,
    },
    /// A file that must not be ignored: another cluster's, or a newer build's.
    #[error("snapshot {path} is refused: {defect}; {fix}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// Reason why the file is refused.
        defect: Defect,
        /// Advice on how to go on.
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
        /// Defect of that file.
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
    /// A snapshot from another master differs from its announcement.
    #[error("the snapshot that was received is bad: {0}; its sender tries again")]
    NotAsSent(Defect),
    /// The snapshot that was just written does not read back.
    #[error("snapshot {path} does not read back: {defect}; the disk or its memory is failing")]
    NotReadBack {
        /// The file, which is deleted.
        path: PathBuf,
        /// Defect that was found.
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

/// Contents of a data directory at start.
#[derive(Debug)]
pub struct RecoveredSnapshot {
    /// The newest good snapshot and the state in it.
    pub snapshot: Option<(SnapshotMeta, State)>,
    /// Newer files that are bad, newest first.
    pub bad: Vec<(PathBuf, Defect)>,
    dir: PathBuf,
}

impl RecoveredSnapshot {
    /// Checks that the log, which has lost everything up to `purged`, reaches back to the snapshot.
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

/// The snapshots of one master. All methods block on the disk.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    disk: Arc<dyn Disk>,
    dir: Arc<PathBuf>,
    cluster: ClusterId,
    /// Held while a snapshot is published, so that one that was built and one that was received do not race. It waits
    /// for the disk.
    publishing: Arc<Mutex<Publishing>>,
    /// The newest snapshot that counts. The lock is never held during disk I/O, because Raft reads the value between
    /// its heartbeats.
    current: Arc<Mutex<Option<Current>>>,
    /// Permits one reception at a time.
    receive_permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Publishing {
    /// Files that were found bad at start. They stay for inspection until there is a newer good one.
    bad: Vec<PathBuf>,
}

#[derive(Clone, Debug)]
struct Current {
    meta: SnapshotMeta,
    file: SnapshotFile,
}

/// The index of an installed snapshot.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) state: State,
    /// Must be held until the index that this one replaces is freed.
    pub(crate) permit: ReceivePermit,
}

impl SnapshotStore {
    /// Opens `dir`, and creates it if it does not exist. Deletes what a crash left unfinished, and loads the newest
    /// good snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`] when the directory cannot be used, or a file in it is another cluster's or a newer
    /// build's.
    pub fn open(dir: &Path, cluster: ClusterId) -> Result<(Self, RecoveredSnapshot), SnapshotError> {
        Self::open_on(Arc::new(FileSystem), dir, cluster)
    }

    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        cluster: ClusterId,
    ) -> Result<(Self, RecoveredSnapshot), SnapshotError> {
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
            publishing: Arc::default(),
            current: Arc::default(),
            receive_permits: Arc::new(Semaphore::new(1)),
        };
        let mut recovered = RecoveredSnapshot { snapshot: None, bad: Vec::new(), dir: dir.to_owned() };
        for path in names {
            match store.load(&path) {
                Ok((current, state)) => {
                    recovered.snapshot = Some((current.meta.clone(), state));
                    *store.current.lock() = Some(current);
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
        store.publishing.lock().bad = recovered.bad.iter().map(|(path, _)| path.clone()).collect();
        Ok((store, recovered))
    }

    fn load(&self, path: &Path) -> Result<(Current, State), Defect> {
        let verified = format::verify(File::open(path)?, self.cluster)?;
        let meta = verified.header.meta.clone();
        let file = SnapshotFile::new(Arc::new(File::open(path)?), verified.len);
        Ok((Current { meta, file }, verified.read_state()?))
    }

    /// The newest snapshot that counts. Never waits for the disk.
    pub fn current(&self) -> Option<(SnapshotMeta, SnapshotFile)> {
        self.current.lock().as_ref().map(|current| (current.meta.clone(), current.file.clone()))
    }

    /// Bytes of the newest snapshot; zero when there is none. Never waits for the disk.
    pub fn current_bytes(&self) -> u64 {
        self.current.lock().as_ref().map_or(0, |current| current.file.len())
    }

    /// Writes a snapshot. Returns the newest one: this one, or an existing one that covers as much.
    ///
    /// # Errors
    /// [`SnapshotError`] when the disk refuses; the previous snapshot is untouched.
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
        let (unnamed, _) = Unnamed::read_back(path, &*self.disk, &header, &GivenUp::default())
            .map_err(|(path, defect)| SnapshotError::NotReadBack { path: path.to_path_buf(), defect })?;
        let newest = self.publish(unnamed)?;
        self.delete_old();
        Ok(newest)
    }

    /// Makes `file` the newest snapshot and returns the index in it. This is fast for a received one: it renames a
    /// file and syncs the directory. The caller should call [`Self::delete_old`] when nothing waits for it.
    ///
    /// # Errors
    /// [`SnapshotError`] when the file is not a good snapshot of `meta`, or the disk refuses.
    pub(crate) fn install(
        &self,
        meta: &SnapshotMeta,
        file: &SnapshotFile,
    ) -> Result<Installed, SnapshotError> {
        let received = match file.take_received() {
            Some(received) => received,
            None => self.copy(meta, file)?,
        };
        let Received { state, unnamed, permit } = received;
        if unnamed.meta != *meta {
            let defect = Defect::Content("it is not the one that was received".into());
            return Err(SnapshotError::NotAsSent(defect));
        }
        self.publish(unnamed)?;
        // The file stays the newest on disk all the same: this build would not start from an older one either.
        let state = state.map_err(|defect| {
            let path = self.path_of(meta);
            SnapshotError::Refused { path, defect, fix: NEWER_BUILD }
        })?;
        Ok(Installed { state, permit })
    }

    /// Receives a snapshot that is another store's own.
    fn copy(&self, meta: &SnapshotMeta, file: &SnapshotFile) -> Result<Received, SnapshotError> {
        let mut incoming = self.receive(meta.clone(), file.len(), ReceivePermit::default())?;
        let mut copied = 0;
        while copied < file.len() {
            let piece =
                file.read_piece(copied, COPY_PIECE).map_err(io_error("read a snapshot for", &self.dir))?;
            incoming.push(&piece)?;
            copied += piece.len() as u64;
        }
        let whole = incoming.finish(&GivenUp::default())?;
        let lost =
            || SnapshotError::NotAsSent(Defect::Content("it was taken before it was installed".into()));
        whole.take_received().ok_or_else(lost)
    }

    /// Waits until an earlier reception has ended.
    pub(crate) async fn receive_permit(&self) -> ReceivePermit {
        // The semaphore is never closed.
        ReceivePermit { _permit: self.receive_permits.clone().acquire_owned().await.ok() }
    }

    /// Starts to receive a snapshot of `len` bytes from another master.
    ///
    /// # Errors
    /// When it does not fit, or the disk refuses.
    pub(crate) fn receive(
        &self,
        meta: SnapshotMeta,
        len: u64,
        permit: ReceivePermit,
    ) -> Result<Incoming, SnapshotError> {
        self.check_room(len)?;
        let announced = Header { cluster: self.cluster, meta };
        Ok(Incoming::new(self.partial_file()?, self.disk.clone(), announced, len, permit))
    }

    fn check_room(&self, needed: u64) -> Result<(), SnapshotError> {
        // A file system that does not report its free space refuses a write soon enough.
        match self.disk.free(&self.dir) {
            Ok(free) if free < needed.saturating_add(LOG_ROOM) => {
                Err(SnapshotError::NoRoom { dir: self.dir.to_path_buf(), free, needed })
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// [`Self::check_room`] for a snapshot of `state`. Measuring its size takes nearly as long as writing it, so that
    /// is left out when it can hardly be too large.
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

    /// Takes the last steps, which the module describes. Returns the newest snapshot: this one, unless there is a
    /// newer one.
    fn publish(&self, unnamed: Unnamed) -> Result<(SnapshotMeta, SnapshotFile), SnapshotError> {
        let mut publishing = self.publishing.lock();
        let file = unnamed.file();
        let Unnamed { meta, path: partial, .. } = unnamed;
        if let Some(newer) = self.current().filter(|(newer, _)| newer.last_log_id > meta.last_log_id) {
            return Ok(newer);
        }
        let path = self.path_of(&meta);
        self.disk.rename(partial, &path).map_err(io_error("rename a snapshot to", &path))?;
        self.disk.sync_dir(&self.dir)?;
        publishing.bad.retain(|bad| *bad != path);
        *self.current.lock() = Some(Current { meta: meta.clone(), file: file.clone() });
        Ok((meta, file))
    }

    fn path_of(&self, meta: &SnapshotMeta) -> PathBuf {
        self.dir.join(file_name(meta.last_log_id.as_ref()))
    }

    /// Deletes all but the two newest. A snapshot that cannot be deleted costs space and nothing else.
    ///
    /// This may run long after the snapshot was published that made others old, and while another one is being
    /// published. It deletes none that counts. Names below the second newest are never used again, because no
    /// snapshot is published that is older than the newest. Names of bad files may be used again, and leave the list
    /// then.
    pub(crate) fn delete_old(&self) {
        let delete = |path: &PathBuf| match self.disk.remove(path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot delete the old snapshot {}: {err}", path.display());
            }
            _ => {}
        };
        {
            let mut publishing = self.publishing.lock();
            std::mem::take(&mut publishing.bad).iter().for_each(delete);
        }
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
