use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_console::certificates::{Authority, IssueOptions};
use mc_net::{Network, Tls, TlsNetwork};
use mc_types::SpiffeId;

/// Trust domain of the pools of tests.
const TRUST: &str = "test";
/// Validity of an authority in days.
const DAYS: u32 = 30;

/// The authority of a pool, and a folder with certificates for each of its processes and users.
pub struct Certificates {
    authority: Authority,
    dir: PathBuf,
}

impl Certificates {
    /// Makes an authority, whose folders are in `dir`.
    pub fn new(dir: PathBuf) -> Self {
        Self { authority: Authority::generate(TRUST, DAYS).expect("an authority"), dir }
    }

    /// Returns the folder of a process or user, such as `master/m1` or `tenant/a/rw/w`, and writes it if it is new.
    pub fn of(&self, identity: &str) -> PathBuf {
        let folder = self.dir.join(identity);
        if !folder.exists() {
            self.write(
                &folder,
                &self.authority,
                &format!("spiffe://{TRUST}/mc/{identity}"),
                IssueOptions::days(1),
            );
        }
        folder
    }

    /// Writes a folder that trusts this pool's authority, with a certificate that `authority` has issued.
    pub fn write(&self, folder: &Path, authority: &Authority, identity: &str, options: IssueOptions) {
        let identity: SpiffeId = identity.parse().expect("an identity");
        let issued = authority.issue(&identity, options).expect("a certificate");
        issued.write(folder, &self.authority).expect("files");
    }

    /// Returns the network of a process or user.
    pub fn network(&self, identity: &str) -> Arc<dyn Network> {
        network_of(&self.of(identity))
    }

    /// Returns the pool's authority.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }
}

/// Returns the network of a process with the certificates in `folder`.
pub fn network_of(folder: &Path) -> Arc<dyn Network> {
    TlsNetwork::shared(Some(Tls::load(folder).expect("certificates")))
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Certificates").field(&self.dir).finish()
    }
}
