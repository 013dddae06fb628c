//! Certificates as values in memory: an authority, the certificates that it issues, and the contents of either.

mod authority;
mod certificate;
mod time;

use std::fmt;

use mc_types::SpiffeId;

pub use authority::{Authority, IssueOptions, Issued};
pub use certificate::{Certificate, public_key_of};
pub use time::rfc3339;

/// Why a certificate can't be read or made. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The text has no certificate, or a damaged one.
    #[error("cannot read a certificate ({0}): it must be X.509 in PEM")]
    Certificate(String),
    /// The text has no private key that can be used.
    #[error("cannot read a private key ({0}): it must be PKCS#8 in PEM, without a passphrase")]
    Key(String),
    /// The private key belongs to another certificate.
    #[error("the private key fits no certificate of the authority: restore both from the same copy")]
    OtherKey,
    /// The certificate is not that of an authority for processes of mc.
    #[error(
        "the certificate of `{0}` is not that of an authority, or has no trust domain (a URI spiffe://TRUST): `mcctl cert init` \
         makes one that has"
    )]
    NotAnAuthority(String),
    /// The text is not the name of a trust domain.
    #[error(
        "`{0}` is not a trust domain: use up to 255 lower-case letters, digits, dots, dashes and underscores"
    )]
    TrustDomain(String),
    /// The authority does not issue for this trust domain.
    #[error("{identity} is not in the trust domain of the authority, which is {trust}")]
    ForeignTrust {
        /// The identity.
        identity: SpiffeId,
        /// Trust domain of the authority.
        trust: String,
    },
    /// The text is not the name of a host.
    #[error("`{0}` is not a DNS name")]
    DnsName(String),
    /// The validity would end before it begins, or lies outside of the years that a certificate can express.
    #[error(
        "a certificate can't be valid from {from} to {to}: it ends with its authority at the latest, and in the year 9999"
    )]
    Validity {
        /// First second.
        from: String,
        /// Last second.
        to: String,
    },
    /// No key could be made, or nothing could be signed with it.
    #[error("cannot make a key or sign with it: {0}")]
    Sign(String),
}

impl CertificateError {
    fn certificate(why: impl fmt::Display) -> Self {
        Self::Certificate(why.to_string())
    }

    fn key(why: impl fmt::Display) -> Self {
        Self::Key(why.to_string())
    }

    fn sign(why: impl fmt::Display) -> Self {
        Self::Sign(why.to_string())
    }
}
