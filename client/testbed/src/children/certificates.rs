//! Certificates of the children.

use std::io;
use std::path::{Path, PathBuf};

use mc_console::certificates::{Authority, IssueOptions};
use mc_types::SpiffeId;

use super::ChildrenError;

/// Validity in days: longer than any pool of children runs.
const DAYS: u32 = 30;

/// Maker of certificates for the processes of one pool; none for a pool without TLS.
pub(super) struct Certificates {
    authority: Option<Authority>,
    dir: PathBuf,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Certificates").field(&self.dir).finish()
    }
}

impl Certificates {
    pub(super) fn new(dir: &Path, tls: bool) -> Result<Self, ChildrenError> {
        let trust = format!("bench-{:08x}", rand::random::<u32>());
        let authority = if tls { Some(Authority::generate(&trust, DAYS)?) } else { None };
        Ok(Self { authority, dir: dir.to_owned() })
    }

    /// Writes the folder of a process, such as `master/master-1`, and returns it for `--tls-dir`.
    pub(super) fn of(&self, process: &str) -> Result<PathBuf, ChildrenError> {
        let Some(authority) = &self.authority else { return Ok("none".into()) };
        let folder = self.dir.join(process);
        let identity = format!("spiffe://{}/mc/{process}", authority.trust());
        let identity: SpiffeId = identity.parse().map_err(|why| failed(&folder, io::Error::other(why)))?;
        let issued = authority.issue(&identity, IssueOptions::days(DAYS))?;
        match issued.write(&folder, authority) {
            Ok(()) => Ok(folder),
            Err(why) => Err(failed(&folder, why)),
        }
    }
}

fn failed(path: &Path, why: io::Error) -> ChildrenError {
    ChildrenError::Directory { path: path.to_owned(), why }
}
