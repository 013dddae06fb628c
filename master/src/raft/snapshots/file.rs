use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tempfile::TempPath;

use super::{SnapshotError, SnapshotStore, io_error};

/// A snapshot as openraft hands it around: an open file, so that it can still be sent after its name is gone, and its
/// length. A received one that nobody installs is deleted with its last handle.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    file: Arc<File>,
    len: u64,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Kept(PathBuf),
    Received(Arc<TempPath>),
}

impl SnapshotFile {
    pub(super) fn kept(path: &Path, len: u64) -> io::Result<Self> {
        Ok(Self { file: Arc::new(File::open(path)?), len, place: Place::Kept(path.to_owned()) })
    }

    /// What openraft is handed where there is none: it asks what that covers, which is nothing, and never reads it.
    pub(crate) fn none() -> io::Result<Self> {
        Self::kept(Path::new("/dev/null"), 0)
    }

    pub(super) fn received(file: File, path: TempPath, len: u64) -> Self {
        Self { file: Arc::new(file), len, place: Place::Received(Arc::new(path)) }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never so of a snapshot: even an empty index has a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn path(&self) -> &Path {
        match &self.place {
            Place::Kept(path) => path,
            Place::Received(path) => path,
        }
    }

    /// At most `max` bytes from `offset`; empty at the end. Blocks.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn read_piece(&self, offset: u64, max: usize) -> io::Result<Bytes> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut piece = BytesMut::zeroed(left.min(max));
        self.file.read_exact_at(&mut piece, offset)?;
        Ok(piece.freeze())
    }

    /// The file under a name that may be renamed: itself when it was received, else a copy of it.
    pub(super) fn into_partial(self, store: &SnapshotStore) -> Result<TempPath, SnapshotError> {
        if let Place::Received(path) = self.place {
            return Arc::try_unwrap(path).map_err(|path| {
                let source = io::Error::other("it is in use twice");
                SnapshotError::Io { what: "install", path: path.to_path_buf(), source }
            });
        }
        let (mut copy, path) = store.partial_file()?;
        io::copy(&mut &*self.file, &mut copy)
            .and_then(|_| copy.sync_all())
            .map_err(io_error("copy a snapshot to", &path))?;
        Ok(path)
    }
}
