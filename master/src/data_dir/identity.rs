//! Identity of this master in `<data-dir>/identity`: drawn and recorded before the master sends its first message.

use std::path::{Path, PathBuf};

use mc_durable::{DirectoryLock, DurableError, SmallFile};
use mc_types::{ClusterId, NodeId};
use serde::{Deserialize, Serialize};

/// Format of the identity file. Its body is a [`Record`] in postcard, without trailing bytes.
const FILE: SmallFile = SmallFile { magic: *b"mcID", version: 1 };

/// The cluster that this master belongs to, and whether it took part in its founding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Belonging {
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// The master whose founding this one accepted (or its own id); `None` for one that joined a formed cluster.
    pub(crate) founder: Option<NodeId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    node: NodeId,
    belonging: Option<Belonging>,
    formed: bool,
}

/// This master's identity and the file that keeps it. Every change is durable when its call returns.
#[derive(Debug)]
pub(crate) struct IdentityFile {
    path: PathBuf,
    record: Record,
}

/// Why the identity cannot be read or recorded.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file can't be read or written.
    #[error(transparent)]
    Durable(#[from] DurableError),
    /// The checksum is right but the content is not: another program wrote the file.
    #[error("{path} is not an identity ({why}): restore it from a copy, or start with an empty data directory", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        why: String,
    },
}

impl IdentityFile {
    /// Reads the identity in a data directory, or draws one there. A new node id is on disk before this returns, so a
    /// node that has shown an id keeps it through any crash.
    ///
    /// # Errors
    /// [`IdentityError`]
    pub(crate) fn open(dir: &DirectoryLock) -> Result<Self, IdentityError> {
        match Self::read(dir.path())? {
            Some(identity) => Ok(identity),
            None => {
                let path = dir.path().join("identity");
                let record = Record { node: NodeId::random(), belonging: None, formed: false };
                let identity = Self { path, record };
                identity.write(&identity.record)?;
                Ok(identity)
            }
        }
    }

    /// Writes the identity of a master that already has Raft state of `belonging`'s cluster into a directory that holds
    /// none.
    pub(crate) fn create(
        dir: &DirectoryLock,
        node: NodeId,
        belonging: Belonging,
    ) -> Result<(), IdentityError> {
        let record = Record { node, belonging: Some(belonging), formed: true };
        let identity = Self { path: dir.path().join("identity"), record };
        identity.write(&identity.record)
    }

    /// The identity in a directory, if there is one.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, IdentityError> {
        let path = dir.join("identity");
        match FILE.read(&path)? {
            Some(body) => Ok(Some(Self { record: decode(&path, &body)?, path })),
            None => Ok(None),
        }
    }

    /// This master's id.
    #[must_use]
    pub(crate) fn node(&self) -> NodeId {
        self.record.node
    }

    /// The cluster that this master belongs to, once it belongs to one.
    #[must_use]
    pub(crate) fn belonging(&self) -> Option<Belonging> {
        self.record.belonging
    }

    /// Whether this master has held Raft state. If so, an empty log means that the log was lost.
    #[must_use]
    pub(crate) fn formed(&self) -> bool {
        self.record.formed
    }

    /// Records the cluster that this master belongs to from now on.
    ///
    /// # Errors
    /// [`IdentityError`]: the identity in memory is then still the old one; the one on disk is either the old or the
    /// new.
    pub(crate) fn belong(&mut self, belonging: Belonging) -> Result<(), IdentityError> {
        self.replace(Record { belonging: Some(belonging), ..self.record.clone() })
    }

    /// Records that Raft state exists.
    ///
    /// # Errors
    /// As [`Self::belong`].
    pub(crate) fn record_formed(&mut self) -> Result<(), IdentityError> {
        self.replace(Record { formed: true, ..self.record.clone() })
    }

    fn replace(&mut self, record: Record) -> Result<(), IdentityError> {
        if record != self.record {
            self.write(&record)?;
            self.record = record;
        }
        Ok(())
    }

    fn write(&self, record: &Record) -> Result<(), IdentityError> {
        Ok(FILE.write(&self.path, &encode(record))?)
    }
}

fn encode(record: &Record) -> Vec<u8> {
    postcard::to_allocvec(record).expect("a record of plain values always encodes")
}

fn decode(path: &Path, body: &[u8]) -> Result<Record, IdentityError> {
    let malformed = |why: String| IdentityError::Malformed { path: path.to_owned(), why };
    match postcard::take_from_bytes::<Record>(body) {
        Ok((record, [])) => Ok(record),
        Ok((_, rest)) => Err(malformed(format!("{} bytes too many", rest.len()))),
        Err(err) => Err(malformed(err.to_string())),
    }
}

/// Entry point of tests/fuzz: whether `body` is the body of an identity.
#[cfg(feature = "testing")]
pub(crate) fn fuzz(body: &[u8]) -> bool {
    let path = Path::new("identity");
    let Ok(record) = decode(path, body) else { return false };
    assert_eq!(decode(path, &encode(&record)).ok(), Some(record), "what was decoded encodes to itself");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reopen(dir: &Path) -> Result<IdentityFile, IdentityError> {
        IdentityFile::open(&DirectoryLock::acquire(dir).unwrap())
    }

    #[test]
    fn a_node_id_is_drawn_once_and_everything_recorded_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = reopen(dir.path()).unwrap();
        let belonging = Belonging { cluster: ClusterId(7), founder: Some(NodeId(1)) };
        first.belong(belonging).unwrap();
        let second = reopen(dir.path()).unwrap();
        assert_eq!(
            (second.node(), second.belonging(), second.formed()),
            (first.node(), Some(belonging), false)
        );
        first.record_formed().unwrap();
        assert!(reopen(dir.path()).unwrap().formed());
    }

    #[test]
    fn the_file_is_stable_and_a_damaged_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut identity = reopen(dir.path()).unwrap();
        identity.record.node = NodeId(5);
        identity.belong(Belonging { cluster: ClusterId(7), founder: Some(NodeId(9)) }).unwrap();
        let bytes = std::fs::read(&identity.path).unwrap();
        assert_eq!(bytes[..bytes.len() - 4], *b"mcID\0\0\0\x01\x05\x01\x07\x01\x09\0");

        FILE.write(&identity.path, b"\x05\0\0\0").unwrap();
        let err = reopen(dir.path()).unwrap_err().to_string();
        assert!(err.contains("is not an identity (1 bytes too many)"), "{err}");
        std::fs::write(&identity.path, b"mcID").unwrap();
        let err = reopen(dir.path()).unwrap_err().to_string();
        assert!(err.contains("is damaged"), "{err}");
    }
}
