//! Data directory of a store, which keeps its id and the cluster that it belongs to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mc_durable::{DirectoryLock, DurableError, SmallFile};
use mc_types::{ClusterId, StoreId};

/// The file `identity`: store id (8 B) and cluster id (16 B, zero while unknown), both big-endian.
const FILE: SmallFile = SmallFile { magic: *b"mcSI", version: 1 };
const STORE: usize = 8;
const CLUSTER: usize = 16;

/// A store's data directory, locked by this process; or none, and an id that ends with the process.
#[derive(Debug)]
pub(crate) struct DataDir {
    store: StoreId,
    cluster: Option<ClusterId>,
    kept: Option<Kept>,
}

/// The file of an id that is kept.
#[derive(Debug)]
struct Kept {
    path: PathBuf,
    _lock: DirectoryLock,
}

impl DataDir {
    /// Reads the directory, or initializes it with a fresh store id. Without a directory the id is fresh each time. Waits up to
    /// `patience` for a process that still holds the directory.
    pub(crate) fn open(dir: Option<&Path>, patience: Duration) -> Result<Self, DurableError> {
        let Some(dir) = dir else {
            return Ok(Self { store: StoreId::random(), cluster: None, kept: None });
        };
        let lock = DirectoryLock::acquire_within(dir, patience)?;
        let path = dir.join("identity");
        let damaged = || DurableError::Damaged { path: path.clone(), why: "it has another length" };
        let (store, cluster) = match FILE.read(&path)? {
            Some(body) => decode(&body).ok_or_else(damaged)?,
            None => {
                let store = StoreId::random();
                FILE.write(&path, &encode(store, None))?;
                (store, None)
            }
        };
        Ok(Self { store, cluster, kept: Some(Kept { path, _lock: lock }) })
    }

    pub(crate) fn store(&self) -> StoreId {
        self.store
    }

    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// Saves the cluster id, so that a restarted store does not join a foreign cluster at a reused address.
    pub(crate) fn keep_cluster(&self, cluster: ClusterId) -> Result<(), DurableError> {
        match &self.kept {
            Some(kept) => FILE.write(&kept.path, &encode(self.store, Some(cluster))),
            None => Ok(()),
        }
    }
}

pub(crate) fn encode(store: StoreId, cluster: Option<ClusterId>) -> Vec<u8> {
    [&store.to_bytes()[..], &cluster.unwrap_or_default().to_bytes()].concat()
}

pub(crate) fn decode(body: &[u8]) -> Option<(StoreId, Option<ClusterId>)> {
    if body.len() != STORE + CLUSTER {
        return None;
    }
    let cluster = ClusterId::from_bytes(&body[STORE..])?;
    Some((StoreId::from_bytes(&body[..STORE])?, Some(cluster).filter(|cluster| cluster.0 != 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_keeps_its_id_and_its_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(Some(dir.path()), Duration::ZERO).unwrap();
        let store = first.store();
        assert_eq!(first.cluster(), None);
        first.keep_cluster(ClusterId(7)).unwrap();
        assert!(
            matches!(DataDir::open(Some(dir.path()), Duration::ZERO), Err(DurableError::Locked { .. })),
            "one process a directory"
        );
        drop(first);
        let again = DataDir::open(Some(dir.path()), Duration::ZERO).unwrap();
        assert_eq!((again.store(), again.cluster()), (store, Some(ClusterId(7))));
    }

    #[test]
    fn the_form_on_disk_is_stable() {
        let body = encode(StoreId(0x0102), Some(ClusterId(3)));
        assert_eq!(body[..8], [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(body[8..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(decode(&body), Some((StoreId(0x0102), Some(ClusterId(3)))));
        assert_eq!(decode(&body[1..]), None);
    }
}
