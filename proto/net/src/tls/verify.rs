use std::path::Path;
use std::sync::Arc;

use mc_types::{Role, SpiffeId};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, SignatureScheme,
};

use super::error::TlsError;
use super::files::{CredentialPaths, Files};
use super::peer::identity;

/// Kind of process that a connection must lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// A master.
    Master,
    /// A store.
    Store,
    /// A store that is the memory of one tenant, and has a certificate of a writer of that.
    OwnStore,
}

/// Authorities that are trusted, and the signatures that can be checked.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    store: Arc<RootCertStore>,
    /// Authorities that are trusted for users of tenants alone.
    users: Option<Arc<RootCertStore>>,
    algorithms: WebPkiSupportedAlgorithms,
    provider: Arc<CryptoProvider>,
}

impl Roots {
    pub(super) fn of(
        files: &Files,
        paths: &CredentialPaths,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let store = |authorities: Vec<CertificateDer<'static>>| {
            let mut store = RootCertStore::empty();
            for authority in authorities {
                store
                    .add(authority)
                    .map_err(|source| TlsError::Pair { dir: paths.dir().to_owned(), source })?;
            }
            Ok(Arc::new(store))
        };
        Ok(Self {
            store: store(files.authorities(paths)?)?,
            users: files.users_authorities(paths)?.map(store).transpose()?,
            algorithms: provider.signature_verification_algorithms,
            provider: provider.clone(),
        })
    }

    /// Returns the judge of certificates that clients show, of a process in the trust domain `trust`. A client may show none.
    pub(super) fn clients(
        &self,
        dir: &Path,
        trust: Option<&str>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let judge = |store: &Arc<RootCertStore>| {
            let builder = WebPkiClientVerifier::builder_with_provider(store.clone(), self.provider.clone());
            builder.allow_unauthenticated().build().map_err(|error| TlsError::Pair {
                dir: dir.to_owned(),
                source: rustls::Error::General(error.to_string()),
            })
        };
        let all = judge(&self.store)?;
        Ok(match &self.users {
            None => all,
            Some(users) => {
                let (users, trust) = (judge(users)?, trust.unwrap_or_default().to_owned());
                Arc::new(VerifyClient { all, users, trust })
            }
        })
    }
}

/// Judge of the certificates that clients show, where other authorities vouch for users of tenants.
#[derive(Debug)]
struct VerifyClient {
    all: Arc<dyn ClientCertVerifier>,
    users: Arc<dyn ClientCertVerifier>,
    /// Trust domain of this process; empty if it has none.
    trust: String,
}

impl VerifyClient {
    fn check_user(&self, leaf: &CertificateDer<'_>) -> Result<(), Unexpected> {
        let id = identity_of(leaf)?;
        if id.trust() == self.trust && matches!(id.role(), Role::Tenant { .. }) {
            return Ok(());
        }
        Err(Unexpected(format!(
            "its certificate is that of {id}, and its authority vouches for users of tenants of {} alone",
            self.trust
        )))
    }
}

impl ClientCertVerifier for VerifyClient {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Any: hints of the one half would keep clients of the other from showing their certificates.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let by_all = self.all.verify_client_cert(end_entity, intermediates, now);
        if by_all.is_ok() || self.users.verify_client_cert(end_entity, intermediates, now).is_err() {
            return by_all;
        }
        self.check_user(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.all.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.all.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.all.supported_verify_schemes()
    }
}

/// Judge of the certificates that servers show: by an authority that is trusted, with the right role in the trust domain of
/// this process. The address is not compared, so a process may move.
#[derive(Debug)]
pub(super) struct VerifyServer {
    pub(super) roots: Roots,
    pub(super) server: Server,
    /// Trust domain; `None` for a process that belongs to none itself.
    pub(super) trust: Option<String>,
}

/// Why a certificate is not that of a process that was expected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unexpected(String);

impl From<Unexpected> for rustls::Error {
    fn from(why: Unexpected) -> Self {
        CertificateError::Other(OtherError(Arc::new(why))).into()
    }
}

/// Returns the identity in a certificate that must have one.
fn identity_of(leaf: &CertificateDer<'_>) -> Result<SpiffeId, Unexpected> {
    identity(leaf).map_err(|why| Unexpected(format!("its certificate has no identity: {why}")))
}

impl VerifyServer {
    fn check_identity(&self, leaf: &CertificateDer<'_>) -> Result<(), Unexpected> {
        let id = identity_of(leaf)?;
        let (expected, wanted) = match self.server {
            Server::Master => (*id.role() == Role::Master, "a master"),
            Server::Store => (*id.role() == Role::Store, "a store"),
            Server::OwnStore => (id.writes_for().is_some(), "a tenant's writer"),
        };
        if !expected {
            return Err(Unexpected(format!("its certificate is that of {id}, not of {wanted}")));
        }
        match &self.trust {
            Some(ours) if ours != id.trust() => Err(Unexpected(format!(
                "its certificate is of {id}, and this process' own of the trust domain {ours}"
            ))),
            _ => Ok(()),
        }
    }
}

impl ServerCertVerifier for VerifyServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.roots.algorithms.all;
        let vouched_for_by = |authorities| {
            verify_server_cert_signed_by_trust_anchor(&parsed, authorities, intermediates, now, algorithms)
        };
        // Authorities of users vouch for a tenant's certificate alone, and only such a one is accepted from an own store.
        let users = self.roots.users.as_ref().filter(|_| self.server == Server::OwnStore);
        vouched_for_by(&self.roots.store).or_else(|why| match users {
            Some(users) => vouched_for_by(users).map_err(|_| why),
            None => Err(why),
        })?;
        self.check_identity(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.roots.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.roots.algorithms.supported_schemes()
    }
}
