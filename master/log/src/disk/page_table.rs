//! Snapshots of sled's page table: each opening of the database writes a file `snap.POSITION` and removes the one before.
//!
//! sled does not sync the directory in between, so a loss of power may take both names. Without a snapshot, sled reads all
//! pages, and where the first of them are used again it may find none: a log with acknowledged entries is empty then. So
//! the last snapshot has a copy `kept.POSITION` while the database is opened.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const SNAPSHOT: &str = "snap.";
const KEPT: &str = "kept.";
const UNFINISHED: &str = ".generating";

/// Prepares `dir` for an opening of the database: keeps a copy of the last snapshot, or puts the copy of an earlier opening
/// in its place. `directory` is the open `dir`.
pub(super) fn keep(dir: &Path, directory: &File) -> io::Result<()> {
    remove_unfinished(dir)?;
    let (from, to) = match (files(dir, SNAPSHOT)?.pop(), files(dir, KEPT)?.pop()) {
        (Some(position), _) => (name(dir, SNAPSHOT, &position), name(dir, KEPT, &position)),
        (None, Some(position)) => (name(dir, KEPT, &position), name(dir, SNAPSHOT, &position)),
        (None, None) => return Ok(()),
    };
    // A crash leaves the whole copy or none: a torn one would pass for the last snapshot at the next opening.
    let mut unfinished = to.clone().into_os_string();
    unfinished.push(UNFINISHED);
    fs::write(&unfinished, fs::read(from)?)?;
    File::open(&unfinished)?.sync_all()?;
    fs::rename(&unfinished, &to)?;
    directory.sync_all()
}

/// Deletes the copies, once the name of the snapshot that the opening wrote is durable.
pub(super) fn let_go(dir: &Path) -> io::Result<()> {
    files(dir, KEPT)?.iter().try_for_each(|position| fs::remove_file(name(dir, KEPT, position)))
}

/// Deletes the unfinished snapshots and copies that a crash may have left.
///
/// sled would use such a snapshot as the newest one, and fail to open. Without it, sled reads the snapshot before it and
/// the pages since, or all pages.
fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for prefix in [SNAPSHOT, KEPT] {
        for position in files(dir, prefix)?.iter().filter(|position| position.ends_with(UNFINISHED)) {
            fs::remove_file(name(dir, prefix, position))?;
        }
    }
    Ok(())
}

/// Returns the positions of the files whose names begin with `prefix`, the last one last.
fn files(dir: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut positions = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        positions.extend(name.to_string_lossy().strip_prefix(prefix).map(str::to_owned));
    }
    positions.sort_unstable();
    Ok(positions)
}

fn name(dir: &Path, prefix: &str, position: &str) -> PathBuf {
    dir.join(format!("{prefix}{position}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_snapshot_whose_name_a_loss_of_power_took_with_that_of_the_next_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, directory) = (dir.path(), File::open(dir.path()).unwrap());
        for (file, bytes) in [("snap.0A", "old"), ("snap.0B", "new"), ("snap.0C.generating", "torn")] {
            fs::write(dir.join(file), bytes).unwrap();
        }
        keep(dir, &directory).unwrap();
        assert_eq!(names(dir), ["kept.0B", "snap.0A", "snap.0B"]);

        // The opening has removed these and renamed a third one, and none of these names is left.
        fs::remove_file(dir.join("snap.0A")).unwrap();
        fs::remove_file(dir.join("snap.0B")).unwrap();
        // A crash while they were put back.
        for torn in ["snap.0B.generating", "kept.0B.generating"] {
            fs::write(dir.join(torn), "torn").unwrap();
        }
        keep(dir, &directory).unwrap();
        assert_eq!(fs::read(dir.join("snap.0B")).unwrap(), b"new");
        assert_eq!(names(dir), ["kept.0B", "snap.0B"], "the next opening may end in the same way");
        let_go(dir).unwrap();
        assert_eq!(names(dir), ["snap.0B"]);
    }
}
