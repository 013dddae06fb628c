use std::net::IpAddr;
use std::time::SystemTime;

use mc_types::{Role, SpiffeId};
use rcgen::{KeyPair, PublicKeyData as _};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use x509_parser::pem::Pem;
use x509_parser::x509::X509Name;

use super::CertificateError;

/// Contents of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Common name of the subject; empty without one.
    pub subject: String,
    /// Common name of the issuer; empty without one.
    pub issuer: String,
    /// URIs among the subject's alternative names.
    pub uris: Vec<String>,
    /// DNS names among them.
    pub dns: Vec<String>,
    /// IP addresses among them.
    pub ips: Vec<IpAddr>,
    /// First second at which it is valid.
    pub not_before: SystemTime,
    /// Last second at which it is valid.
    pub not_after: SystemTime,
    /// Whether it may sign other certificates.
    pub is_ca: bool,
    /// Public key (SubjectPublicKeyInfo in DER).
    pub public_key: Vec<u8>,
    der: Vec<u8>,
}

impl Certificate {
    /// Reads the certificates in a PEM text, which has at least one. Other blocks are skipped.
    ///
    /// # Errors
    /// [`CertificateError::Certificate`]
    pub fn read_all(pem: &str) -> Result<Vec<Self>, CertificateError> {
        let mut certificates = Vec::new();
        for block in Pem::iter_from_buffer(pem.as_bytes()) {
            let block = block.map_err(CertificateError::certificate)?;
            if block.label == "CERTIFICATE" {
                certificates.push(Self::read(&block.contents)?);
            }
        }
        if certificates.is_empty() {
            return Err(CertificateError::certificate("there is none"));
        }
        Ok(certificates)
    }

    fn read(der: &[u8]) -> Result<Self, CertificateError> {
        let (_, parsed) = parse_x509_certificate(der).map_err(CertificateError::certificate)?;
        let names = parsed.subject_alternative_name().map_err(CertificateError::certificate)?;
        let (mut uris, mut dns, mut ips) = (Vec::new(), Vec::new(), Vec::new());
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                GeneralName::DNSName(name) => dns.push((*name).to_owned()),
                GeneralName::IPAddress(octets) => ips.extend(ip(octets)),
                _ => {}
            }
        }
        Ok(Self {
            subject: common_name(parsed.subject()),
            issuer: common_name(parsed.issuer()),
            uris,
            dns,
            ips,
            not_before: parsed.validity().not_before.to_datetime().into(),
            not_after: parsed.validity().not_after.to_datetime().into(),
            is_ca: parsed.is_ca(),
            public_key: parsed.public_key().raw.to_vec(),
            der: der.to_vec(),
        })
    }

    /// Returns the identity of the process or user: the only URI. A certificate with several has none.
    pub fn identity(&self) -> Option<SpiffeId> {
        self.only_uri()?.parse().ok()
    }

    /// Returns the trust domain of an authority: its only URI, `spiffe://TRUST` (X509-SVID, section 3.1).
    pub fn trust_domain(&self) -> Option<&str> {
        let trust = self.only_uri()?.strip_prefix("spiffe://")?;
        (self.is_ca && is_trust_domain(trust)).then_some(trust)
    }

    /// Whether `authority` may sign certificates, and has signed this one.
    pub fn is_signed_by(&self, authority: &Self) -> bool {
        let parsed = (parse_x509_certificate(&self.der), parse_x509_certificate(&authority.der));
        let (Ok((_, this)), Ok((_, signer))) = parsed else { return false };
        authority.is_ca
            && this.issuer().as_raw() == signer.subject().as_raw()
            && this.verify_signature(Some(signer.public_key())).is_ok()
    }

    pub(super) fn der(&self) -> &[u8] {
        &self.der
    }

    fn only_uri(&self) -> Option<&str> {
        match self.uris.as_slice() {
            [uri] => Some(uri),
            _ => None,
        }
    }
}

/// Returns the public key of a private key in PEM, in the form of [`Certificate::public_key`].
///
/// # Errors
/// [`CertificateError::Key`]
pub fn public_key_of(key_pem: &str) -> Result<Vec<u8>, CertificateError> {
    let key = KeyPair::from_pem(key_pem).map_err(CertificateError::key)?;
    Ok(key.subject_public_key_info())
}

pub(super) fn is_trust_domain(text: &str) -> bool {
    SpiffeId::new(text, Role::Admin, "name").is_ok_and(|id| id.trust() == text)
}

fn common_name(name: &X509Name<'_>) -> String {
    let first = name.iter_common_name().next();
    first.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned()
}

/// Returns the address in a name, unless its length is that of none.
fn ip(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::super::Authority;
    use super::*;

    #[test]
    fn a_text_without_certificates_is_refused() {
        let authority = Authority::generate("prod", 1).unwrap();
        let key = authority.key_pem();
        for text in ["", "text", &key, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let refused = Certificate::read_all(text);
            assert!(matches!(refused, Err(CertificateError::Certificate(_))), "{text}: {refused:?}");
        }
        assert!(matches!(public_key_of(authority.cert_pem()), Err(CertificateError::Key(_))));
    }

    #[test]
    fn every_certificate_of_a_bundle_is_read_in_its_order() {
        let [old, new] = ["old", "new"].map(|trust| Authority::generate(trust, 1).unwrap());
        let bundle = format!("comment\n{}{}{}", old.cert_pem(), old.key_pem(), new.cert_pem());
        let read = Certificate::read_all(&bundle).unwrap();
        let trusts: Vec<_> = read.iter().map(Certificate::trust_domain).collect();
        assert_eq!(trusts, [Some("old"), Some("new")]);
        assert_eq!(read[1].public_key, public_key_of(&new.key_pem()).unwrap());
        assert_eq!((read[0].subject.as_str(), read[0].issuer.as_str()), ("mc CA old", "mc CA old"));
    }

    #[test]
    fn an_authority_signs_itself_and_not_another_of_the_same_name() {
        let [one, other] = [(); 2].map(|()| Authority::generate("prod", 1).unwrap());
        let [one, other] = [one, other].map(|ca| Certificate::read_all(ca.cert_pem()).unwrap().remove(0));
        assert!(one.is_signed_by(&one) && !one.is_signed_by(&other));
    }
}
