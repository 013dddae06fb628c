//! The mark of a master that has left: its next start begins empty.
//!
//! A master with `--ephemeral` gives up its vote before it stops ([`mc_raft::Departure`]). Only then it marks its
//! directory. Marking it before the departure would be a risk: two masters that stop at the same moment would both be
//! marked while both vote, and their deaths would cost two disks of three.
//!
//! # If the process dies at any of these steps
//!
//! 1. Before the leader has taken the vote: the directory is that of a voter, as after any death.
//! 2. After that, before the mark: the directory is that of a member without a vote. The next start goes on with it, shows
//!    the leader its address, and gets the vote back once it has caught up.
//! 3. After the mark: the next start deletes the log, the snapshots and the identity, in that order, and then the mark. If it
//!    dies meanwhile, the start after that one goes on. A new node then takes the reserved place.
//!
//! The mark names the node and the cluster. A directory that was rescued since is of another cluster, and keeps its data.

use std::path::Path;
use std::{fs, io};

use mc_durable::{DirectoryLock, DurableError, SmallFile, sync_dir};
use mc_types::{ClusterId, NodeId};

use super::identity::{IdentityError, IdentityFile};

/// Format of the mark. Its body is the node's id and the cluster's, in bytes.
const FILE: SmallFile = SmallFile { magic: *b"mcLV", version: 1 };
const NAME: &str = "left";
/// Parts of a data directory, in the order in which they are deleted. The identity is last: without it the rest would look
/// like the directory of a master that lost its identity.
const PARTS: [&str; 3] = ["log", "snapshots", "identity"];

/// Marks the directory of `node`, which has no vote in `cluster` any more. Durable when it returns.
///
/// # Errors
/// [`DurableError`]: the next start begins empty or with the data, and both are safe.
pub(crate) fn mark(dir: &Path, node: NodeId, cluster: ClusterId) -> Result<(), DurableError> {
    FILE.write(&dir.join(NAME), &body(node, cluster))
}

/// Empties a marked directory. Returns whether it was one.
///
/// # Errors
/// [`IdentityError`]: the directory cannot be read, or a part cannot be deleted. The next start tries again.
pub(crate) fn begin_empty(dir: &DirectoryLock) -> Result<bool, IdentityError> {
    let dir = dir.path();
    let path = dir.join(NAME);
    let Some(marked) = FILE.read(&path)? else { return Ok(false) };
    // A missing identity was deleted by the previous attempt.
    let is_of = |identity: &IdentityFile| {
        identity.belonging().is_some_and(|belonging| marked == body(identity.node(), belonging.cluster))
    };
    let left = IdentityFile::read(dir)?.as_ref().is_none_or(is_of);
    if left {
        for part in PARTS {
            delete(&dir.join(part))?;
            sync_dir(dir)?;
        }
    }
    delete(&path)?;
    sync_dir(dir)?;
    Ok(left)
}

fn body(node: NodeId, cluster: ClusterId) -> Vec<u8> {
    [&node.to_bytes()[..], &cluster.to_bytes()[..]].concat()
}

fn delete(path: &Path) -> Result<(), DurableError> {
    let deleted = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match deleted {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(DurableError::Io { action: "delete", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::Belonging;

    const NODE: NodeId = NodeId(5);
    const CLUSTER: ClusterId = ClusterId(7);

    /// The directory of a master with data, and the names in it.
    fn directory() -> (tempfile::TempDir, DirectoryLock) {
        let dir = tempfile::tempdir().unwrap();
        for part in ["log", "snapshots"] {
            fs::create_dir(dir.path().join(part)).unwrap();
            fs::write(dir.path().join(part).join("content"), "data").unwrap();
        }
        let lock = DirectoryLock::acquire(dir.path()).unwrap();
        IdentityFile::create(&lock, NODE, Belonging { cluster: CLUSTER, founder: None }).unwrap();
        (dir, lock)
    }

    fn has(dir: &Path, names: &[&str]) -> bool {
        names.iter().all(|name| dir.join(name).exists())
    }

    #[test]
    fn a_directory_without_a_mark_is_left_alone() {
        let (dir, lock) = directory();
        assert!(!begin_empty(&lock).unwrap());
        assert!(has(dir.path(), &PARTS));
    }

    #[test]
    fn a_marked_directory_is_emptied_wherever_the_last_attempt_died() {
        for deleted in 0..=PARTS.len() {
            let (dir, lock) = directory();
            mark(dir.path(), NODE, CLUSTER).unwrap();
            for part in &PARTS[..deleted] {
                delete(&dir.path().join(part)).unwrap();
            }
            assert!(begin_empty(&lock).unwrap(), "after {deleted} parts");
            for name in PARTS.iter().chain([&NAME]) {
                assert!(!dir.path().join(name).exists(), "{name} after {deleted} parts");
            }
            assert!(!begin_empty(&lock).unwrap(), "once");
            assert_ne!(IdentityFile::open(&lock).unwrap().node(), NODE, "it is a new node");
        }
    }

    #[test]
    fn a_log_half_deleted_is_deleted_and_the_identity_outlives_it() {
        let (dir, lock) = directory();
        mark(dir.path(), NODE, CLUSTER).unwrap();
        fs::remove_file(dir.path().join("log").join("content")).unwrap();
        assert!(has(dir.path(), &PARTS));
        assert!(begin_empty(&lock).unwrap());
        assert!(!dir.path().join("identity").exists());
    }

    #[test]
    fn a_directory_that_was_rescued_since_keeps_its_data() {
        let (dir, lock) = directory();
        mark(dir.path(), NODE, ClusterId(1)).unwrap();
        assert!(!begin_empty(&lock).unwrap());
        assert!(has(dir.path(), &PARTS));
        assert!(!dir.path().join(NAME).exists(), "the mark is of another cluster");
    }

    #[test]
    fn the_file_is_stable() {
        let dir = tempfile::tempdir().unwrap();
        mark(dir.path(), NODE, CLUSTER).unwrap();
        let bytes = fs::read(dir.path().join(NAME)).unwrap();
        let ids = [&[0; 7][..], &[5], &[0; 15], &[7]].concat();
        assert_eq!(bytes[..bytes.len() - 4], [&b"mcLV\0\0\0\x01"[..], &ids].concat());
    }

    #[test]
    fn a_damaged_mark_deletes_nothing() {
        let (dir, lock) = directory();
        mark(dir.path(), NODE, CLUSTER).unwrap();
        let path = dir.path().join(NAME);
        let mut bytes = fs::read(&path).unwrap();
        bytes[9] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = begin_empty(&lock).unwrap_err().to_string();
        assert!(error.contains("left is damaged"), "{error}");
        assert!(has(dir.path(), &PARTS));
    }
}
