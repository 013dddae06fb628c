use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempPath;

use super::disk::{Disk, PartialFile};
use super::file::{ReceivePermit, Received, SnapshotFile, Unnamed};
use super::format::{self, Defect, Header, Verified};
use super::{SnapshotError, io_error};

/// Tells a thread that reads a snapshot back to stop, because the result is not needed any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A snapshot that another master is sending. If it is dropped before its end, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Incoming {
    file: PartialFile,
    path: TempPath,
    disk: Arc<dyn Disk>,
    announced: Header,
    len: u64,
    received: u64,
    /// The last field, because fields are dropped in their order.
    permit: ReceivePermit,
}

impl Incoming {
    pub(super) fn new(
        (file, path): (PartialFile, TempPath),
        disk: Arc<dyn Disk>,
        announced: Header,
        len: u64,
        permit: ReceivePermit,
    ) -> Self {
        Self { file, path, disk, announced, len, received: 0, permit }
    }

    /// Adds the next piece. Blocks.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<(), SnapshotError> {
        self.received += piece.len() as u64;
        if self.received > self.len {
            let source = io::Error::other(format!("more than the announced {} bytes arrived", self.len));
            return Err(io_error("receive a snapshot into", &self.path)(source));
        }
        self.file.write_all(piece).map_err(io_error("receive a snapshot into", &self.path))
    }

    /// Syncs the received bytes, reads them back and decodes them. Blocks, and fails soon after `given_up` is set.
    pub(crate) fn finish(self, given_up: &GivenUp) -> Result<SnapshotFile, SnapshotError> {
        let Self { file, path, disk, announced, len, received, permit } = self;
        if received != len {
            return Err(SnapshotError::NotAsSent(Defect::Cut { found: received }));
        }
        file.sync_all().map_err(io_error("sync", &path))?;
        let (unnamed, verified) = Unnamed::read_back(path, &*disk, &announced, given_up)
            .map_err(|(path, defect)| not_as_sent(&path, defect))?;
        let state = match verified.read_state() {
            Err(defect) if !defect.is_newer() => return Err(not_as_sent(&unnamed.path, defect)),
            state => state,
        };
        Ok(SnapshotFile::received(Received { state, unnamed, permit }))
    }
}

fn not_as_sent(path: &Path, defect: Defect) -> SnapshotError {
    match defect {
        Defect::Io(source) => io_error("read back", path)(source),
        defect => SnapshotError::NotAsSent(defect),
    }
}

impl Unnamed {
    /// Opens the synced file at `path` and verifies it.
    pub(super) fn read_back(
        path: TempPath,
        disk: &dyn Disk,
        announced: &Header,
        given_up: &GivenUp,
    ) -> Result<(Self, Verified<impl Read>), (TempPath, Defect)> {
        let verified = disk.open(&path).map_err(Defect::from).and_then(|file| {
            let file = Arc::new(file);
            let reader = Reader { file: file.clone(), given_up: given_up.clone() };
            let verified = format::verify(reader, announced.cluster)?;
            if verified.header != *announced {
                return Err(Defect::Content(
                    "it is of another log id or membership than was announced".into(),
                ));
            }
            Ok((file, verified))
        });
        match verified {
            Ok((file, verified)) => {
                let (meta, len) = (announced.meta.clone(), verified.len);
                Ok((Self { meta, path, file, len }, verified))
            }
            Err(defect) => Err((path, defect)),
        }
    }
}

/// Reads a file, and fails once reading was cancelled.
struct Reader {
    file: Arc<File>,
    given_up: GivenUp,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given_up.0.load(Ordering::Relaxed) {
            return Err(io::Error::other("it was given up: a newer leader was elected"));
        }
        (&*self.file).read(buffer)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self.file).seek(to)
    }
}
