//! Certificates of an imaginary cluster.

use std::sync::Arc;

use mc_net::Tls;
use mc_transfer::{TcpOptions, Timeouts};
use mc_types::TlsLevel;
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use tempfile::TempDir;

use super::Store;

/// Issues certificates, all of the trust domain `here`.
pub(crate) struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl CertificateAuthority {
    pub(crate) fn new() -> Self {
        let (mut params, key) = (CertificateParams::new([]).unwrap(), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Certificates of a process with a role and a name: `store/kv`.
    pub(crate) fn issue(&self, role: &str) -> Arc<Tls> {
        self.issue_until(role, 4096)
    }

    /// Certificates that end with a year.
    pub(crate) fn issue_until(&self, role: &str, year: i32) -> Arc<Tls> {
        self.load(&self.pair(role, year))
    }

    /// Certificates of a process that trusts this authority, and has its own of another one.
    pub(crate) fn with_pair_of(&self, other: &Self, role: &str) -> Arc<Tls> {
        self.load(&other.pair(role, 4096))
    }

    /// Those of a process without a certificate.
    pub(crate) fn anonymous(&self) -> Arc<Tls> {
        self.load(&[])
    }

    fn pair(&self, role: &str, year: i32) -> [(&'static str, String); 2] {
        let (mut params, key) = (CertificateParams::new([]).unwrap(), KeyPair::generate().unwrap());
        let id = format!("spiffe://here/mc/{role}");
        params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        params.not_after = date_time_ymd(year, 12, 31);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        [("tls.crt", certificate), ("tls.key", key.serialize_pem())]
    }

    fn load(&self, files: &[(&str, String)]) -> Arc<Tls> {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("ca.crt"), &self.certificate).unwrap();
        files.iter().for_each(|(name, content)| std::fs::write(dir.path().join(name), content).unwrap());
        Tls::load(dir.path()).unwrap()
    }
}

/// Certificates with another level than [`TlsLevel::Require`].
pub(crate) fn at(level: TlsLevel, tls: Arc<Tls>) -> Arc<Tls> {
    tls.set_level(level);
    tls.set_level_to_stores(level);
    tls
}

/// Options of a client with certificates.
pub(crate) fn options(tls: Arc<Tls>) -> TcpOptions {
    // A test that starves must not take the store for unreachable.
    let connect_timeout = std::time::Duration::from_secs(10);
    TcpOptions { tls: Some(tls), connect_timeout, ..TcpOptions::default() }
}

/// A store and the options of its client, plain or with TLS.
pub(crate) async fn ends(secured: bool, len: u64) -> (Store, TcpOptions) {
    if !secured {
        return (Store::start(len).await, TcpOptions::default());
    }
    let authority = CertificateAuthority::new();
    let store = Store::start_secured(len, Timeouts::default(), authority.issue("store/kv")).await;
    (store, options(authority.issue("tenant/team/rw/engine")))
}
