use std::fs;
use std::path::{Path, PathBuf};

use mc_types::{SpiffeId, Token};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::TlsError;
use super::peer::identity;

/// Names of the files, as in a TLS secret of Kubernetes.
const CA: &str = "ca.crt";
const USERS_CA: &str = "users-ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const TOKEN: &str = "token";

/// Files from which a process has its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialPaths {
    /// Certificates of the authorities that are trusted.
    pub ca: PathBuf,
    /// Certificates of authorities whose word counts for users of tenants alone; it need not exist.
    pub users_ca: PathBuf,
    /// Certificate of the process; it need not exist.
    pub certificate: PathBuf,
    /// Key of that certificate; it need not exist.
    pub key: PathBuf,
    /// Token of the process.
    pub token: PathBuf,
    /// Whether the token must exist.
    pub needs_token: bool,
}

impl CredentialPaths {
    /// Returns the files in a folder: `ca.crt`, `users-ca.crt`, `tls.crt`, `tls.key` and `token`.
    #[must_use]
    pub fn in_dir(dir: &Path) -> Self {
        let [ca, users_ca, certificate, key, token] =
            [CA, USERS_CA, CERTIFICATE, KEY, TOKEN].map(|name| dir.join(name));
        Self { ca, users_ca, certificate, key, token, needs_token: false }
    }

    /// Folder of the authorities, by which a person knows where the files are.
    pub(super) fn dir(&self) -> &Path {
        self.ca.parent().unwrap_or(&self.ca)
    }
}

/// Certificate chain, the process' own first, and its key.
pub(super) type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Contents of the files, which are compared to see whether they have changed.
#[derive(PartialEq, Eq)]
pub(super) struct Files {
    authorities: Vec<u8>,
    users_authorities: Option<Vec<u8>>,
    /// Certificate and key.
    pair: Option<[Vec<u8>; 2]>,
    token: Option<Vec<u8>>,
}

impl Files {
    pub(super) fn read(paths: &CredentialPaths) -> Result<Self, TlsError> {
        let read =
            |path: &Path| fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source });
        let has = |path: &Path| {
            path.try_exists().map_err(|source| TlsError::Read { path: path.to_owned(), source })
        };
        let pair = match has(&paths.certificate)? || has(&paths.key)? {
            true => Some([read(&paths.certificate)?, read(&paths.key)?]),
            false => None,
        };
        let token = if paths.needs_token || has(&paths.token)? { Some(read(&paths.token)?) } else { None };
        let users_authorities = if has(&paths.users_ca)? { Some(read(&paths.users_ca)?) } else { None };
        Ok(Self { authorities: read(&paths.ca)?, users_authorities, pair, token })
    }

    /// Returns the certificates that are trusted: one at least.
    pub(super) fn authorities(
        &self,
        paths: &CredentialPaths,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        certificates(&paths.ca, &self.authorities, "the certificates of the authorities that you trust")
    }

    /// Returns the certificates that are trusted for users of tenants alone.
    pub(super) fn users_authorities(
        &self,
        paths: &CredentialPaths,
    ) -> Result<Option<Vec<CertificateDer<'static>>>, TlsError> {
        let wanted = "the certificates of the authorities that vouch for users of tenants";
        self.users_authorities.as_ref().map(|pem| certificates(&paths.users_ca, pem, wanted)).transpose()
    }

    /// Returns the process' own certificate and key.
    pub(super) fn pair(&self, paths: &CredentialPaths) -> Result<Option<Pair>, TlsError> {
        let Some([chain, key]) = &self.pair else { return Ok(None) };
        let chain = certificates(&paths.certificate, chain, "the certificate of this process")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Content {
            path: paths.key.clone(),
            what: format!("holds no private key ({error})"),
            wanted: "the private key of this process",
        })?;
        Ok(Some((chain, key)))
    }

    /// Returns the identity in the process' own certificate.
    pub(super) fn id(&self, paths: &CredentialPaths) -> Result<Option<SpiffeId>, TlsError> {
        let Some((chain, _)) = self.pair(paths)? else { return Ok(None) };
        let id = identity(&chain[0]);
        id.map(Some).map_err(|why| TlsError::Identity { path: paths.certificate.clone(), why })
    }

    /// Returns the token.
    pub(super) fn token(&self, paths: &CredentialPaths) -> Result<Option<Token>, TlsError> {
        let Some(token) = &self.token else { return Ok(None) };
        let token = String::from_utf8_lossy(token).trim().parse();
        token.map(Some).map_err(|source| TlsError::Token { path: paths.token.clone(), source })
    }
}

fn certificates(
    path: &Path,
    pem: &[u8],
    wanted: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let invalid = |what| TlsError::Content { path: path.to_owned(), what, wanted };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| invalid(format!("can't be read as certificates ({error})")))?;
    if read.is_empty() { Err(invalid("holds no certificate".to_owned())) } else { Ok(read) }
}
