use std::fs;
use std::path::Path;

use mc_types::SpiffeId;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::TlsError;
use super::peer::identity;

/// Names of the files, as in a TLS secret of Kubernetes.
pub(super) const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Certificate chain, the process' own first, and its key.
pub(super) type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Contents of the files, which are compared to see whether they have changed.
#[derive(PartialEq, Eq)]
pub(super) struct Files {
    authorities: Vec<u8>,
    /// Certificate and key.
    pair: Option<[Vec<u8>; 2]>,
}

impl Files {
    pub(super) fn read(dir: &Path) -> Result<Self, TlsError> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read(&path).map_err(|source| TlsError::Read { path, source })
        };
        let has = |name: &str| {
            let path = dir.join(name);
            path.try_exists().map_err(|source| TlsError::Read { path, source })
        };
        let pair = match has(CERTIFICATE)? || has(KEY)? {
            true => Some([read(CERTIFICATE)?, read(KEY)?]),
            false => None,
        };
        Ok(Self { authorities: read(CA)?, pair })
    }

    /// Returns the certificates that are trusted: one at least.
    pub(super) fn authorities(&self, dir: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        certificates(dir, CA, &self.authorities, "the certificates of the authorities that you trust")
    }

    /// Returns the process' own certificate and key.
    pub(super) fn pair(&self, dir: &Path) -> Result<Option<Pair>, TlsError> {
        let Some([chain, key]) = &self.pair else { return Ok(None) };
        let chain = certificates(dir, CERTIFICATE, chain, "the certificate of this process")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Content {
            path: dir.join(KEY),
            what: format!("holds no private key ({error})"),
            wanted: "the private key of this process",
        })?;
        Ok(Some((chain, key)))
    }

    /// Returns the identity in the process' own certificate.
    pub(super) fn id(&self, dir: &Path) -> Result<Option<SpiffeId>, TlsError> {
        let Some((chain, _)) = self.pair(dir)? else { return Ok(None) };
        let id = identity(&chain[0]);
        id.map(Some).map_err(|why| TlsError::Identity { path: dir.join(CERTIFICATE), why })
    }
}

fn certificates(
    dir: &Path,
    name: &str,
    pem: &[u8],
    wanted: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let invalid = |what| TlsError::Content { path: dir.join(name), what, wanted };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| invalid(format!("can't be read as certificates ({error})")))?;
    if read.is_empty() { Err(invalid("holds no certificate".to_owned())) } else { Ok(read) }
}
