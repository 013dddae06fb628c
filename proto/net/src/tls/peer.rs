use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mc_types::SpiffeId;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::error::IdentityError;

/// The process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Unknown: the connection has no TLS.
    Plain,
    /// Unknown: it showed no certificate, or one without an identity.
    Anonymous,
    /// It has proven an identity of another system: the URI in its certificate.
    Other(Arc<str>),
    /// It has proven its identity.
    Named(Arc<SpiffeId>),
}

impl Peer {
    /// Returns the peer that showed `chain`, whose proof was checked.
    pub(crate) fn of(chain: Option<&[CertificateDer<'_>]>) -> Self {
        let uri = chain.and_then(<[_]>::first).and_then(|leaf| uri(leaf).ok());
        uri.map_or(Self::Anonymous, |uri| match uri.parse() {
            Ok(id) => Self::Named(Arc::new(id)),
            Err(_) => Self::Other(uri.into()),
        })
    }

    /// Returns its identity, if it has proven one.
    #[must_use]
    pub fn id(&self) -> Option<&SpiffeId> {
        match self {
            Self::Named(id) => Some(id),
            Self::Plain | Self::Anonymous | Self::Other(_) => None,
        }
    }
}

/// Returns how long the certificate of a peer is still valid; `None` if it has shown none.
pub(crate) fn validity_left(chain: Option<&[CertificateDer<'_>]>) -> Option<Duration> {
    let expires = not_after(chain?.first()?)?;
    Some(expires.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Returns the last second at which a certificate is valid.
pub(super) fn not_after(leaf: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = X509Certificate::from_der(leaf).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Returns the identity in a certificate.
pub(super) fn identity(leaf: &CertificateDer<'_>) -> Result<SpiffeId, IdentityError> {
    Ok(uri(leaf)?.parse()?)
}

/// Returns the only URI in a certificate.
fn uri(leaf: &CertificateDer<'_>) -> Result<String, IdentityError> {
    let malformed = |error: String| IdentityError::Malformed(error);
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| malformed(error.to_string()))?;
    let names = parsed.subject_alternative_name().map_err(|error| malformed(error.to_string()))?;
    let uris: Vec<&str> = names
        .iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    match uris[..] {
        [uri] => Ok(uri.to_owned()),
        [] => Err(IdentityError::NoUri),
        // As SPIFFE has it: with two, each end could take another one for the identity.
        _ => Err(IdentityError::Several(uris.len())),
    }
}
