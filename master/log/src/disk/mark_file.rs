//! The side file `durable`: the [`Mark`] on a real disk.
//!
//! The file has two slots, written in turn, each with a sequence number and a checksum. A write that is cut off leaves
//! the other slot, which holds the mark before it. That mark is still right: a mark is raised after the log is durable,
//! so the older one is merely lower, and it is lowered before the log is cut, so the log was not cut yet.
//!
//! ```text
//! slot := format u8 (= 2), sequence u64, next u64, term u64, crc32c u32      at 0 and at 4096
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::{BufMut, BytesMut};

use super::Mark;
use crate::record::format::{FORMAT, RecordError};
use crate::record::hard_state;

const NAME: &str = "durable";
pub(crate) const SLOT: u64 = 4096;
const LEN: usize = 29;

/// The open file of the mark.
pub(crate) struct MarkFile {
    file: File,
    sequence: u64,
    mark: Mark,
}

/// Error of opening the mark.
pub(crate) enum MarkError {
    Missing,
    Damaged(String),
    Io(io::Error),
}

impl From<io::Error> for MarkError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl MarkFile {
    /// Opens the mark of a log that exists.
    pub(crate) fn open(dir: &Path) -> Result<Self, MarkError> {
        let mut file = match OpenOptions::new().read(true).write(true).open(dir.join(NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MarkError::Missing),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (sequence, mark) = newest(&bytes).map_err(|why| MarkError::Damaged(why.to_string()))?;
        Ok(Self { file, sequence, mark })
    }

    /// Creates the zero mark of a new log. The file is complete under its name, or not there.
    pub(crate) fn create(dir: &Path) -> io::Result<Self> {
        let draft = dir.join("durable.new");
        let mut file = File::create(&draft)?;
        file.write_all(&encode(0, Mark::default()))?;
        file.set_len(SLOT + LEN as u64)?;
        file.sync_all()?;
        std::fs::rename(&draft, dir.join(NAME))?;
        File::open(dir)?.sync_all()?;
        let file = OpenOptions::new().read(true).write(true).open(dir.join(NAME))?;
        Ok(Self { file, sequence: 0, mark: Mark::default() })
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    /// Writes the mark durably. `fdatasync` is enough, because the file has its full size from its creation.
    pub(crate) fn write(&mut self, mark: Mark) -> io::Result<()> {
        let sequence = self.sequence + 1;
        self.file.write_all_at(&encode(sequence, mark), (sequence % 2) * SLOT)?;
        self.file.sync_data()?;
        (self.sequence, self.mark) = (sequence, mark);
        Ok(())
    }
}

/// Returns the slot that was written last, of those that are whole.
pub(crate) fn newest(bytes: &[u8]) -> Result<(u64, Mark), RecordError> {
    let slot = |at: usize| decode(bytes.get(at..at + LEN).unwrap_or_default());
    match (slot(0), slot(SLOT as usize)) {
        (Ok(a), Ok(b)) => Ok(if a.0 > b.0 { a } else { b }),
        (Ok(a), Err(_)) | (Err(_), Ok(a)) => Ok(a),
        (Err(why), Err(_)) => Err(why),
    }
}

fn encode(sequence: u64, mark: Mark) -> BytesMut {
    let mut out = BytesMut::with_capacity(LEN);
    out.put_u8(FORMAT);
    out.put_u64(sequence);
    out.put_u64(mark.next);
    out.put_u64(mark.term);
    hard_state::seal(out)
}

fn decode(bytes: &[u8]) -> Result<(u64, Mark), RecordError> {
    let mut reader = hard_state::open(bytes)?;
    let slot = (reader.u64()?, Mark { next: reader.u64()?, term: reader.u64()? });
    reader.end()?;
    Ok(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_cut_off_anywhere_leaves_the_mark_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MarkFile::create(dir.path()).unwrap();
        for next in 1..=4 {
            file.write(Mark { next, term: 7 }).unwrap();
        }
        let before = std::fs::read(dir.path().join(NAME)).unwrap();
        file.write(Mark { next: 5, term: 7 }).unwrap();
        let after = std::fs::read(dir.path().join(NAME)).unwrap();
        for cut in 0..=after.len() {
            let mut torn = before.clone();
            torn[..cut].copy_from_slice(&after[..cut]);
            std::fs::write(dir.path().join(NAME), &torn).unwrap();
            let Ok(file) = MarkFile::open(dir.path()) else { panic!("no mark when cut at {cut}") };
            assert!([4, 5].contains(&file.mark().next), "{:?} when cut at {cut}", file.mark());
        }
    }

    #[test]
    fn a_file_with_no_good_slot_is_damaged_not_new() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(MarkFile::open(dir.path()), Err(MarkError::Missing)));
        std::fs::write(dir.path().join(NAME), [0; 5000]).unwrap();
        assert!(matches!(MarkFile::open(dir.path()), Err(MarkError::Damaged(_))));
    }
}
