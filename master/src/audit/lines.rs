use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Size from which on a file is rotated, in bytes. One older file is kept.
const FILE_MAX: u64 = 8 << 20;

/// A file of lines, of bounded size.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Lines {
    /// Opens a file to append to it. A last line that was not written to its end, as by a machine that failed, is cut off.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let len = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
        file.set_len(len)?;
        Ok(Self { path: path.to_owned(), file, len })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a line, without its end.
    pub(super) fn append(&mut self, line: &str) -> io::Result<()> {
        if self.len >= FILE_MAX {
            self.rotate()?;
        }
        let line = format!("{line}\n");
        let written = self.file.write_all(line.as_bytes());
        match written {
            Ok(()) => self.len += line.len() as u64,
            // A part of a line would spoil the next one.
            Err(_) => self.file.set_len(self.len)?,
        }
        written
    }

    /// Begins an empty file, and keeps the present one in the place of an older one.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        match fs::rename(&self.path, older(&self.path)) {
            // An attempt before came to this point.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        *self = Self::open(&self.path)?;
        Ok(())
    }
}

/// Returns the newest lines, at most `limit`, the oldest first.
pub(super) fn newest(path: &Path, limit: usize) -> io::Result<Vec<Vec<u8>>> {
    // The present file first: if it is rotated in between, the older one is that one.
    let (present, older) = (open(path)?, open(&older(path))?);
    let is_same = match (&present, &older) {
        (Some(present), Some(older)) => present.metadata()?.ino() == older.metadata()?.ino(),
        _ => false,
    };
    let mut lines = VecDeque::new();
    for file in [older.filter(|_| !is_same), present].into_iter().flatten() {
        for line in BufReader::new(file).split(b'\n') {
            lines.push_back(line?);
            if lines.len() > limit {
                lines.pop_front();
            }
        }
    }
    Ok(lines.into())
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

/// Path of the older file.
fn older(path: &Path) -> PathBuf {
    path.with_extension("jsonl.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: Vec<Vec<u8>>) -> Vec<String> {
        lines.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn a_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        // The cut may be in the middle of a character.
        fs::write(&path, b"one\ntw\xc3").unwrap();
        Lines::open(&path).unwrap().append("two").unwrap();
        assert_eq!(text(newest(&path, 10).unwrap()), ["one", "two"]);
        assert_eq!(text(newest(&path, 1).unwrap()), ["two"]);
        assert!(newest(&dir.path().join("none.jsonl"), 1).unwrap().is_empty());
    }

    #[test]
    fn a_full_file_is_rotated_and_one_older_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let mut lines = Lines::open(&path).unwrap();
        let line = "x".repeat(1 << 20);
        for at in 0..30 {
            lines.append(&format!("{at}{line}")).unwrap();
        }
        let sizes = [path.clone(), older(&path)].map(|path| fs::metadata(path).unwrap().len());
        assert!(sizes.iter().all(|size| (1..=FILE_MAX + (2 << 20)).contains(size)), "{sizes:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        let newest: Vec<_> =
            text(newest(&path, 10).unwrap()).iter().map(|line| line[..2].to_owned()).collect();
        assert_eq!(newest, (20..30).map(|at| at.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn a_rotation_that_failed_after_the_first_step_is_finished_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let mut lines = Lines::open(&path).unwrap();
        lines.append("one").unwrap();
        fs::rename(&path, older(&path)).unwrap();
        lines.rotate().unwrap();
        lines.append("two").unwrap();
        assert_eq!(text(newest(&path, 10).unwrap()), ["one", "two"]);
    }
}
