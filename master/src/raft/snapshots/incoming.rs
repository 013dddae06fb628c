use std::fs::File;
use std::io::Write;

use tempfile::TempPath;

use super::format::{self, Header};
use super::{Defect, PartialFile, SnapshotError, SnapshotFile, io_error};

/// A snapshot that another master is sending. Dropped before its end, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Incoming {
    file: PartialFile,
    path: TempPath,
    announced: Header,
    len: u64,
    received: u64,
}

impl Incoming {
    pub(super) fn new(file: PartialFile, path: TempPath, announced: Header, len: u64) -> Self {
        Self { file, path, announced, len, received: 0 }
    }

    /// Adds the next piece. Blocks.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<(), SnapshotError> {
        self.received += piece.len() as u64;
        if self.received > self.len {
            let source = std::io::Error::other(format!("more than the announced {} bytes arrived", self.len));
            return Err(io_error("receive a snapshot into", &self.path)(source));
        }
        self.file.write_all(piece).map_err(io_error("receive a snapshot into", &self.path))
    }

    /// Syncs and verifies what arrived. Blocks.
    pub(crate) fn finish(self) -> Result<SnapshotFile, SnapshotError> {
        let Self { file, path, announced, len, received } = self;
        file.sync_all().map_err(io_error("sync", &path))?;
        let opened = File::open(&path).map_err(io_error("open", &path))?;
        let verified = if received == len {
            format::verify(opened, announced.cluster)
        } else {
            Err(Defect::Cut { found: received })
        };
        match verified {
            Ok(verified) if verified.header == announced => {
                Ok(SnapshotFile::received(file.into_file(), path, len))
            }
            Ok(_) => {
                let defect =
                    Defect::Content("it is of another log id or membership than was announced".into());
                Err(SnapshotError::NotAsSent(defect))
            }
            Err(defect) => Err(SnapshotError::NotAsSent(defect)),
        }
    }
}
