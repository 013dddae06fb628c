//! Small files that survive a crash: a reader finds the old content or the new, and detects damage.
//!
//! Content: 4 B magic, format version (u32, big-endian), body, CRC-32C (big-endian) of everything before it.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two tries to lock a directory.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Modes of data directories and of files in them: some hold keys.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Mode of a directory above a data directory, which other users' may be in, too.
const PARENT_MODE: u32 = 0o755;
/// The rights of all but the owner.
const OTHERS: u32 = 0o077;

const HEADER: usize = 8;
const CHECKSUM: usize = 4;

/// Why a durable file or directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// The system refused an operation.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// The attempted step, such as `write`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The content differs from what was written.
    #[error("{path} is damaged ({why}): restore it from a copy, or start with an empty data directory", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        why: &'static str,
    },
    /// The file is intact and of another kind.
    #[error(
        "{path} was written by another program (its mark is {found}, not {wanted}): each master and each store needs a data \
         directory of its own, choose another one",
        path = path.display()
    )]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// The mark in the file.
        found: String,
        /// The mark of the kind that was asked for.
        wanted: String,
    },
    /// The file has a format version of another build.
    #[error("{path} has format version {found}, this build reads version {supported}: use the newer build", path = path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version that this build reads.
        supported: u32,
    },
    /// Another process uses the directory.
    #[error("the data directory {path} is in use by another process: stop it, or choose another data directory", path = path.display())]
    Locked {
        /// The directory that is in use.
        path: PathBuf,
    },
}

impl DurableError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// A kind of small file: its magic bytes and the version of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallFile {
    /// First four bytes of the file, which tell it from other kinds.
    pub magic: [u8; 4],
    /// Version of the body.
    pub version: u32,
}

impl SmallFile {
    /// Replaces the content of `path` by `body`, durably. Once this returns, a crash can't bring the old content back.
    /// If it fails, or the process dies in it, the file has the old content or the new.
    ///
    /// # Errors
    /// [`DurableError::Io`]; it is then unknown whether a later read sees the new content.
    pub fn write(self, path: &Path, body: &[u8]) -> Result<(), DurableError> {
        let mut bytes = Vec::with_capacity(HEADER + body.len() + CHECKSUM);
        bytes.extend_from_slice(&self.magic);
        bytes.extend_from_slice(&self.version.to_be_bytes());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
        write_atomically(path, &bytes)
    }

    /// Returns the body that [`Self::write`] wrote; `None` if there is no such file.
    ///
    /// # Errors
    /// [`DurableError`] when it can't be read, is damaged, or is of another version.
    pub fn read(self, path: &Path) -> Result<Option<Vec<u8>>, DurableError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(DurableError::io("read", path)(err)),
        };
        let damaged = |why| DurableError::Damaged { path: path.to_owned(), why };
        if bytes.len() < HEADER + CHECKSUM {
            return Err(damaged("it is too short"));
        }
        let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        // Check this before the rest: a flipped bit must read neither as another kind nor as "use the newer build".
        if crc32c::crc32c(content).to_be_bytes() != *checksum {
            return Err(damaged("its checksum does not match"));
        }
        if content[..4] != self.magic {
            let mark = |magic: &[u8]| magic.escape_ascii().to_string();
            let (found, wanted) = (mark(&content[..4]), mark(&self.magic));
            return Err(DurableError::OtherKind { path: path.to_owned(), found, wanted });
        }
        let found = u32::from_be_bytes([content[4], content[5], content[6], content[7]]);
        if found != self.version {
            return Err(DurableError::Version { path: path.to_owned(), found, supported: self.version });
        }
        Ok(Some(content[HEADER..].to_vec()))
    }
}

/// Replaces the content of `path` atomically and durably: writes a file beside it, syncs it, renames it over `path`,
/// and syncs the directory.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), DurableError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(FILE_MODE);
    let mut file = options.open(&partial).map_err(DurableError::io("create", &partial))?;
    file.write_all(bytes).map_err(DurableError::io("write", &partial))?;
    file.sync_all().map_err(DurableError::io("sync", &partial))?;
    durable_rename(&partial, path)
}

/// Renames a synced file and syncs the directory, without which a crash may undo the rename. Both paths must be in the
/// same directory.
pub fn durable_rename(from: &Path, to: &Path) -> Result<(), DurableError> {
    fs::rename(from, to).map_err(DurableError::io("rename to", to))?;
    sync_dir(parent(to))
}

/// Syncs `dir`, which makes the names in it durable.
pub fn sync_dir(dir: &Path) -> Result<(), DurableError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(DurableError::io("sync the directory", dir))
}

/// Creates `dir`, for this user alone, and its missing parents, durably.
pub fn create_dir(dir: &Path) -> Result<(), DurableError> {
    create_dir_of(dir, DIR_MODE)
}

fn create_dir_of(dir: &Path, mode: u32) -> Result<(), DurableError> {
    if dir.is_dir() {
        return Ok(());
    }
    let above = parent(dir);
    create_dir_of(above, PARENT_MODE)?;
    match fs::DirBuilder::new().mode(mode).create(dir) {
        // The umask may have taken away more than that.
        Ok(()) => drop(fs::set_permissions(dir, Permissions::from_mode(mode))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(DurableError::io("create the directory", dir)(error)),
    }
    sync_dir(above)
}

/// Takes away the rights of other users on a data directory and on what is in it. An error is not one of the data: the root of a
/// volume may belong to another user, who lets this one in by its group.
fn close_to_others(dir: &Path) {
    let close = |path: &Path| {
        let mut rights = fs::symlink_metadata(path)?.permissions();
        if rights.mode() & OTHERS != 0 {
            rights.set_mode(rights.mode() & !OTHERS);
            fs::set_permissions(path, rights)?;
        }
        io::Result::Ok(())
    };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        // A link's own rights mean nothing, and what it leads to may be anybody's.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            let _ = close(&entry.path());
        }
    }
    let _ = close(dir);
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

/// An exclusive lock on a directory, held while this value lives. The system releases it when the process ends.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    _file: File,
}

impl DirectoryLock {
    /// Creates `dir` if it is missing, checks that it is writable, and locks it (`flock` on the file `lock`). Closes it to
    /// other users, unless it was somebody else's directory: one with files, and without that one.
    ///
    /// # Errors
    /// [`DurableError::Locked`] when another process, or another lock of this one, holds the directory;
    /// [`DurableError::Io`].
    pub fn acquire(dir: &Path) -> Result<Self, DurableError> {
        create_dir(dir)?;
        let path = dir.join("lock");
        let is_own = path.exists() || fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(DurableError::io("write to the data directory, at", &path))?;
        match file.try_lock() {
            Ok(()) => {
                if is_own {
                    close_to_others(dir);
                }
                Ok(Self { path: dir.to_owned(), _file: file })
            }
            Err(TryLockError::WouldBlock) => Err(DurableError::Locked { path: dir.to_owned() }),
            Err(TryLockError::Error(err)) => Err(DurableError::io("lock", &path)(err)),
        }
    }

    /// Locks `dir` like [`Self::acquire`], but waits up to `patience` while another process holds it. A process that is
    /// ending releases the lock once the kernel has freed its memory. Blocks.
    pub fn acquire_within(dir: &Path, patience: Duration) -> Result<Self, DurableError> {
        let begun = Instant::now();
        loop {
            match Self::acquire(dir) {
                Err(DurableError::Locked { .. }) if begun.elapsed() < patience => {
                    std::thread::sleep(LOCK_RETRY);
                }
                outcome => return outcome,
            }
        }
    }

    /// Returns the locked directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: SmallFile = SmallFile { magic: *b"mcTS", version: 1 };

    #[test]
    fn a_small_file_is_read_back_whole_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(KIND.read(&path).unwrap(), None);
        KIND.write(&path, b"first").unwrap();
        KIND.write(&path, b"body").unwrap();
        assert_eq!(KIND.read(&path).unwrap().as_deref(), Some(&b"body"[..]));

        let good = fs::read(&path).unwrap();
        assert_eq!(good[..12], *b"mcTS\0\0\0\x01body", "the container's form is on disks: it must not drift");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(matches!(KIND.read(&path), Err(DurableError::Damaged { .. })), "flip at {at}");
            fs::write(&path, &good[..at]).unwrap();
            assert!(matches!(KIND.read(&path), Err(DurableError::Damaged { .. })), "cut at {at}");
        }
    }

    #[test]
    fn a_file_of_another_kind_is_not_called_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        SmallFile { magic: *b"mcX\n", version: 1 }.write(&path, b"body").unwrap();
        let err = KIND.read(&path).unwrap_err();
        assert!(matches!(&err, DurableError::OtherKind { found, .. } if found == "mcX\\n"), "{err}");
    }

    #[test]
    fn a_newer_version_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        SmallFile { version: 2, ..KIND }.write(&path, b"body").unwrap();
        let err = KIND.read(&path).unwrap_err();
        assert!(matches!(err, DurableError::Version { found: 2, supported: 1, .. }), "{err}");
    }

    #[test]
    fn a_process_that_died_while_writing_leaves_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        KIND.write(&path, b"old").unwrap();
        fs::write(dir.path().join("file.partial"), b"torn").unwrap();
        assert_eq!(KIND.read(&path).unwrap().as_deref(), Some(&b"old"[..]));
        KIND.write(&path, b"new").unwrap();
        assert_eq!(KIND.read(&path).unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn a_directory_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let lock = DirectoryLock::acquire(&path).unwrap();
        let err = DirectoryLock::acquire(&path).unwrap_err();
        assert!(err.to_string().contains("is in use by another process"), "{err}");
        drop(lock);
        DirectoryLock::acquire(&path).unwrap();
    }

    #[test]
    fn other_users_are_kept_out_of_a_data_directory_and_of_nothing_else() {
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        drop(DirectoryLock::acquire(&path).unwrap());
        KIND.write(&path.join("file"), b"body").unwrap();
        assert_eq!((mode(&dir.path().join("a")), mode(&path)), (PARENT_MODE, DIR_MODE));
        assert_eq!([path.join("lock"), path.join("file")].map(|path| mode(&path)), [FILE_MODE; 2]);

        // As a build before made it.
        let outside = dir.path().join("outside");
        fs::write(&outside, b"").unwrap();
        std::os::unix::fs::symlink(&outside, path.join("link")).unwrap();
        for (path, mode) in [(&path.join("file"), 0o644), (&outside, 0o644), (&path, 0o2755)] {
            set(path, mode);
        }
        drop(DirectoryLock::acquire(&path).unwrap());
        assert_eq!([mode(&path), mode(&path.join("file")), mode(&outside)], [0o2700, FILE_MODE, 0o644]);

        let (empty, other) = (dir.path().join("empty"), dir.path().join("other"));
        for path in [&empty, &other] {
            fs::create_dir(path).unwrap();
            set(path, 0o755);
        }
        fs::write(other.join("of somebody else"), b"").unwrap();
        let _locks = [&empty, &other].map(|path| DirectoryLock::acquire(path).unwrap());
        assert_eq!([&empty, &other].map(|path| mode(path)), [0o700, 0o755]);
    }

    #[test]
    fn the_lock_of_a_process_that_ends_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::acquire(dir.path()).unwrap();
        let refused = DirectoryLock::acquire_within(dir.path(), Duration::from_millis(1)).unwrap_err();
        assert!(matches!(refused, DurableError::Locked { .. }), "{refused}");
        std::thread::scope(|scope| {
            let (asked, asking) = std::sync::mpsc::channel();
            let waits = scope.spawn(move || {
                asked.send(()).unwrap();
                DirectoryLock::acquire_within(dir.path(), Duration::from_secs(60)).map(drop)
            });
            asking.recv().unwrap();
            drop(lock);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_path_that_is_a_file_is_one_clear_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        let err = DirectoryLock::acquire(&file.join("sub")).unwrap_err();
        assert!(err.to_string().starts_with("cannot create the directory"), "{err}");
    }
}
