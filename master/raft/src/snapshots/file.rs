use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use mc_durable::Aside;
use mc_index::State;
use mc_log::SnapshotMeta;
use parking_lot::Mutex;
use tempfile::TempPath;
use tokio::sync::OwnedSemaphorePermit;

use super::format::Defect;

/// A snapshot as openraft passes it around: its length, and an open file, so that it can still be sent after its name
/// is gone. A received snapshot also has the decoded index. It is deleted with its last handle unless it is
/// installed.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    file: Arc<File>,
    len: u64,
    /// Present until it is installed. Raft may drop it instead, and must not be delayed by that.
    received: Option<Arc<Mutex<Option<Aside<Received>>>>>,
}

impl SnapshotFile {
    pub(super) fn new(file: Arc<File>, len: u64) -> Self {
        Self { file, len, received: None }
    }

    /// A snapshot for calls in which openraft gets none: openraft asks for what it covers, which is nothing, and
    /// never reads it.
    pub(crate) fn none() -> io::Result<Self> {
        Ok(Self::new(Arc::new(File::open(Path::new("/dev/null"))?), 0))
    }

    pub(super) fn received(received: Received) -> Self {
        let file = received.file();
        Self { received: Some(Arc::new(Mutex::new(Some(Aside::new(received))))), ..file }
    }

    /// Takes the decoded index, on the first call only.
    pub(super) fn take_received(&self) -> Option<Received> {
        self.received.as_ref()?.lock().take().map(Aside::into_inner)
    }

    /// Length of the snapshot in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never true: even the snapshot of an empty index has a header.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads at most `max` bytes from `offset`; the result is empty at the end. Blocks.
    pub fn read_piece(&self, offset: u64, max: usize) -> io::Result<Bytes> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut piece = BytesMut::zeroed(left.min(max));
        self.file.read_exact_at(&mut piece, offset)?;
        Ok(piece.freeze())
    }
}

/// A snapshot on stable storage that was read back. It only lacks the name under which it counts.
#[derive(Debug)]
pub(super) struct Unnamed {
    pub(super) meta: SnapshotMeta,
    pub(super) path: TempPath,
    pub(super) file: Arc<File>,
    pub(super) len: u64,
}

impl Unnamed {
    pub(super) fn file(&self) -> SnapshotFile {
        SnapshotFile::new(self.file.clone(), self.len)
    }
}

/// A received snapshot, with the index that was decoded from its file.
#[derive(Debug)]
pub(super) struct Received {
    /// The index, or the reason why only a newer build can read it.
    pub(super) state: Result<State, Defect>,
    pub(super) unnamed: Unnamed,
    /// The last field, because fields are dropped in their order.
    pub(super) permit: ReceivePermit,
}

impl Received {
    pub(super) fn file(&self) -> SnapshotFile {
        self.unnamed.file()
    }
}

/// Permission to receive. A reception keeps it for as long as it has anything on disk or in memory. So there is at most
/// one decoded index beside the live one, whichever master sends and however often.
#[derive(Debug, Default)]
pub(crate) struct ReceivePermit {
    pub(super) _permit: Option<OwnedSemaphorePermit>,
}
