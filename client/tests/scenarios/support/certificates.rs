//! Certificates and tokens of an imaginary cluster.

use std::path::Path;
use std::sync::Arc;

use mc_client::{Network, Tls, TlsNetwork, Token};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use tempfile::TempDir;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let (mut params, key) = (CertificateParams::new([]).unwrap(), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// The network of a master.
    pub fn master(&self) -> Arc<dyn Network> {
        let (mut params, key) = (CertificateParams::new([]).unwrap(), KeyPair::generate().unwrap());
        let id = "spiffe://here/mc/master/m".try_into().unwrap();
        params.subject_alt_names = vec![SanType::URI(id)];
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let dir = self.folder();
        std::fs::write(dir.path().join("tls.crt"), certificate).unwrap();
        std::fs::write(dir.path().join("tls.key"), key.serialize_pem()).unwrap();
        TlsNetwork::shared(Some(Tls::load(dir.path()).unwrap()))
    }

    /// The folder of a client with no certificate.
    pub fn folder(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), &self.pem).unwrap();
        dir
    }

    /// The folder of a client with a token.
    pub fn folder_with(&self, token: &Token) -> TempDir {
        let dir = self.folder();
        write_token(&dir.path().join("token"), token);
        dir
    }
}

pub fn write_token(file: &Path, token: &Token) {
    std::fs::write(file, format!("{}\n", token.secret())).unwrap();
}
