use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use mc_durable::Aside;
use parking_lot::Mutex;

use super::incoming::Received;

/// A snapshot as openraft hands it around: an open file, so that it can still be sent after its name is gone, and its
/// length. One that was received carries the index in it, and is deleted with its last handle unless it is installed.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    file: Arc<File>,
    len: u64,
    /// Until it is installed. Raft may drop it instead, and must not be held up by that.
    received: Option<Arc<Mutex<Option<Aside<Received>>>>>,
}

impl SnapshotFile {
    pub(super) fn new(file: Arc<File>, len: u64) -> Self {
        Self { file, len, received: None }
    }

    /// Where openraft is handed none: it asks what that covers, which is nothing, and never reads it.
    pub(crate) fn none() -> io::Result<Self> {
        Ok(Self::new(Arc::new(File::open(Path::new("/dev/null"))?), 0))
    }

    pub(super) fn received(received: Received) -> Self {
        let file = received.file();
        Self { received: Some(Arc::new(Mutex::new(Some(Aside::new(received))))), ..file }
    }

    /// Takes what was received, the first time that it is asked for.
    pub(super) fn take_received(&self) -> Option<Received> {
        self.received.as_ref()?.lock().take().map(Aside::into_inner)
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
}
