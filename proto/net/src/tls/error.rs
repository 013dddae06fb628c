use std::io;
use std::path::PathBuf;

use mc_types::{ParseSpiffeError, ParseTokenError};

/// Why certificates can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} {what}: write {wanted} in PEM there", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Its defect.
        what: String,
        /// Its proper content.
        wanted: &'static str,
    },
    /// A certificate has no identity of mc, or more than one.
    #[error("{} has no identity of mc: {why}; `mcctl cert issue` makes certificates that have", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// Why.
        why: IdentityError,
    },
    /// A file holds no token.
    #[error("{}: {source}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParseTokenError,
    },
    /// A token or a certificate is named, and no authority by which masters are known.
    #[error(
        "no certificates of authorities are named, which are needed to know the masters that a token or a certificate may be \
         shown to: name them by MC_TLS_CA, or put ca.crt into the folder of MC_TLS_DIR"
    )]
    NoAuthority,
    /// New certificates are those of another process.
    #[error(
        "the certificates in {} are those of {next} now, and were those of {before}: the identity of a process that runs keeps its \
         role and trust domain", dir.display()
    )]
    OtherIdentity {
        /// The folder.
        dir: PathBuf,
        /// Identity so far.
        before: String,
        /// Identity in the new certificate, or none.
        next: String,
    },
    /// The certificate and the key don't fit, or can't be used together with the authorities.
    #[error("the certificates in {} can't be used: {source}", dir.display())]
    Pair {
        /// The folder.
        dir: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
}

/// Why no identity can be read from a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It is no certificate.
    #[error("it is not a certificate: {0}")]
    Malformed(String),
    /// It has no URI.
    #[error("its subject alternative names have no URI")]
    NoUri,
    /// It has several URIs, of which none is the identity.
    #[error("its subject alternative names have {0} URIs, and must have one")]
    Several(usize),
    /// Its URI is something else.
    #[error(transparent)]
    Other(#[from] ParseSpiffeError),
}
