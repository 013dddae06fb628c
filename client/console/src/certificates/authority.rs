use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use mc_types::SpiffeId;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};

use super::certificate::{Certificate, is_trust_domain};
use super::time::{asn1_time, rfc3339};
use super::{CertificateError, public_key_of};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Certificates are valid from this long before they are made: clocks of other machines may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);
/// Longest common name in characters (RFC 5280, appendix A.1: ub-common-name).
const LONGEST_NAME: usize = 64;

/// A certificate authority with its private key.
#[derive(Debug)]
pub struct Authority {
    cert_pem: String,
    own: Certificate,
    trust: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Validity and names of a certificate that is to be issued.
#[derive(Clone, Debug)]
pub struct IssueOptions {
    /// First second at which it is valid.
    pub not_before: SystemTime,
    /// Last second at which it is valid. It ends with its authority at the latest.
    pub not_after: SystemTime,
    /// DNS names of the process, for clients that compare them. Those of mc compare the identity alone.
    pub dns: Vec<String>,
    /// IP addresses of the process, for the same clients.
    pub ips: Vec<IpAddr>,
}

/// A certificate with its private key, both in PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate, and none above it.
    pub chain_pem: String,
    /// The private key (PKCS#8).
    pub key_pem: String,
    /// Last second at which the certificate is valid.
    pub not_after: SystemTime,
}

impl IssueOptions {
    /// Valid from now on for this number of days, without names of hosts.
    pub fn days(days: u32) -> Self {
        let now = SystemTime::now();
        Self { not_before: now - CLOCK_SKEW, not_after: now + DAY * days, dns: Vec::new(), ips: Vec::new() }
    }
}

impl Authority {
    /// Makes an authority of a trust domain, which is valid for this number of days. It issues certificates of processes and
    /// users, and none of other authorities.
    ///
    /// # Errors
    /// [`CertificateError`]
    pub fn generate(trust: &str, days: u32) -> Result<Self, CertificateError> {
        if !is_trust_domain(trust) {
            return Err(CertificateError::TrustDomain(trust.to_owned()));
        }
        let validity = IssueOptions::days(days);
        let mut params = params(&format!("mc CA {trust}"), validity.not_before, validity.not_after)?;
        params.subject_alt_names.push(uri(&format!("spiffe://{trust}"))?);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(CertificateError::sign)?;
        let certificate = params.self_signed(&key).map_err(CertificateError::sign)?;
        Self::read(&certificate.pem(), &key.serialize_pem())
    }

    /// Reads an authority. Of several certificates, the one that fits the key is its own; the others are of authorities that
    /// its cluster trusts, too.
    ///
    /// # Errors
    /// [`CertificateError`]
    pub fn read(cert_pem: &str, key_pem: &str) -> Result<Self, CertificateError> {
        let public_key = public_key_of(key_pem)?;
        let own = Certificate::read_all(cert_pem)?.into_iter().find(|one| one.public_key == public_key);
        let own = own.ok_or(CertificateError::OtherKey)?;
        let trust = own.trust_domain().map(str::to_owned);
        let trust = trust.ok_or_else(|| CertificateError::NotAnAuthority(own.subject.clone()))?;
        let key = KeyPair::from_pem(key_pem).map_err(CertificateError::key)?;
        let issuer =
            Issuer::from_ca_cert_der(&own.der().into(), key).map_err(CertificateError::certificate)?;
        Ok(Self { cert_pem: cert_pem.to_owned(), own, trust, issuer })
    }

    /// Trust domain.
    pub fn trust(&self) -> &str {
        &self.trust
    }

    /// Certificate in PEM, and those of the other authorities that were read with it.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// Private key in PEM.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Last second at which the authority is valid, and with it everything that it has issued.
    pub fn not_after(&self) -> SystemTime {
        self.own.not_after
    }

    /// Whether a process that trusts the certificates in `bundle_pem` trusts those that this authority issues.
    pub fn is_trusted_by(&self, bundle_pem: &str) -> bool {
        let trusted = Certificate::read_all(bundle_pem).unwrap_or_default();
        trusted.iter().any(|one| one.public_key == self.own.public_key)
    }

    /// Makes a key, and a certificate for it with which a process can both connect and accept connections.
    ///
    /// # Errors
    /// [`CertificateError`]
    pub fn issue(&self, identity: &SpiffeId, options: IssueOptions) -> Result<Issued, CertificateError> {
        if identity.trust() != self.trust {
            let (identity, trust) = (identity.clone(), self.trust.clone());
            return Err(CertificateError::ForeignTrust { identity, trust });
        }
        let not_after = options.not_after.min(self.own.not_after);
        let mut params = params(identity.name(), options.not_before, not_after)?;
        params.serial_number = Some(SerialNumber::from_slice(&rand::random::<u128>().to_be_bytes()));
        params.subject_alt_names.push(uri(&identity.to_string())?);
        for name in options.dns {
            params.subject_alt_names.push(dns_name(&name).ok_or(CertificateError::DnsName(name))?);
        }
        params.subject_alt_names.extend(options.ips.into_iter().map(SanType::IpAddress));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(CertificateError::sign)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(CertificateError::sign)?;
        Ok(Issued { chain_pem: certificate.pem(), key_pem: key.serialize_pem(), not_after })
    }
}

impl Issued {
    /// Writes the folder of a process with this certificate that trusts `authority`, for pools that are there for a test or a bench:
    /// `mcctl cert issue` replaces files with more care.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, folder: &Path, authority: &Authority) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let files =
            [("ca.crt", authority.cert_pem()), ("tls.crt", &self.chain_pem), ("tls.key", &self.key_pem)];
        files.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
    }
}

impl fmt::Debug for Issued {
    /// Leaves the key out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("chain_pem", &self.chain_pem).finish_non_exhaustive()
    }
}

fn params(
    name: &str,
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<CertificateParams, CertificateError> {
    let validity = asn1_time(not_before).zip(asn1_time(not_after)).filter(|(from, to)| from < to);
    let (from, to) = validity
        .ok_or_else(|| CertificateError::Validity { from: rfc3339(not_before), to: rfc3339(not_after) })?;
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (from.to_datetime(), to.to_datetime());
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name.chars().take(LONGEST_NAME).collect::<String>());
    Ok(params)
}

fn uri(text: &str) -> Result<SanType, CertificateError> {
    Ia5String::try_from(text).map(SanType::URI).map_err(CertificateError::sign)
}

/// Returns a DNS name for a certificate if it is one that readers of certificates accept.
fn dns_name(text: &str) -> Option<SanType> {
    let labels = text.strip_prefix("*.").unwrap_or(text).split('.');
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let last_has_a_letter = labels.clone().next_back()?.bytes().any(|byte| !byte.is_ascii_digit());
    let is_name = text.len() <= 253 && last_has_a_letter && labels.clone().all(is_label);
    if is_name { Ia5String::try_from(text).map(SanType::DnsName).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> Authority {
        Authority::generate("prod", 30).unwrap()
    }

    fn id(text: &str) -> SpiffeId {
        text.parse().unwrap()
    }

    /// The only certificate in a text.
    fn only(pem: &str) -> Certificate {
        let mut read = Certificate::read_all(pem).unwrap();
        assert_eq!(read.len(), 1);
        read.remove(0)
    }

    #[test]
    fn a_certificate_has_the_identity_and_the_names_that_it_was_issued_for() {
        let authority = authority();
        let identity = id("spiffe://prod/mc/tenant/default/rw/engine");
        let options = IssueOptions {
            dns: vec!["kv.example".to_owned(), "*.kv.example".to_owned()],
            ips: vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
            ..IssueOptions::days(7)
        };
        let issued = authority.issue(&identity, options.clone()).unwrap();
        let read = only(&issued.chain_pem);
        assert_eq!(read.identity(), Some(identity));
        assert_eq!((&read.dns, &read.ips), (&options.dns, &options.ips));
        assert_eq!((read.subject.as_str(), read.issuer.as_str()), ("engine", "mc CA prod"));
        assert_eq!(read.public_key, public_key_of(&issued.key_pem).unwrap());
        assert!(!read.is_ca && read.is_signed_by(&only(authority.cert_pem())));
    }

    #[test]
    fn two_certificates_of_an_identity_have_keys_of_their_own() {
        let authority = authority();
        let issue = || authority.issue(&id("spiffe://prod/mc/store/a"), IssueOptions::days(1)).unwrap();
        assert_ne!(issue().key_pem, issue().key_pem);
    }

    #[test]
    fn an_authority_that_is_read_issues_as_before_also_from_a_bundle() {
        let (before, other) = (authority(), Authority::generate("prod", 30).unwrap());
        let bundle = format!("{}{}", other.cert_pem(), before.cert_pem());
        let read = Authority::read(&bundle, &before.key_pem()).unwrap();
        let issued = read.issue(&id("spiffe://prod/mc/master/a"), IssueOptions::days(1)).unwrap();
        assert!(only(&issued.chain_pem).is_signed_by(&only(before.cert_pem())));
        assert!(read.is_trusted_by(before.cert_pem()) && other.is_trusted_by(&bundle));
        assert!(!read.is_trusted_by(other.cert_pem()) && !read.is_trusted_by("no certificate"));
    }

    #[test]
    fn a_key_of_another_authority_and_a_certificate_of_a_process_are_refused() {
        let authority = authority();
        let refused =
            Authority::read(authority.cert_pem(), &Authority::generate("prod", 1).unwrap().key_pem());
        assert_eq!(refused.unwrap_err(), CertificateError::OtherKey);
        let issued = authority.issue(&id("spiffe://prod/mc/admin/root"), IssueOptions::days(1)).unwrap();
        let refused = Authority::read(&issued.chain_pem, &issued.key_pem).unwrap_err();
        assert_eq!(refused, CertificateError::NotAnAuthority("root".to_owned()));
    }

    #[test]
    fn an_identity_of_another_trust_domain_is_refused() {
        let refused = authority().issue(&id("spiffe://test/mc/master/a"), IssueOptions::days(1)).unwrap_err();
        assert!(matches!(refused, CertificateError::ForeignTrust { .. }), "{refused}");
        for trust in ["", "Prod", "a b", "a/mc", "a/mc/tenant/t/rw"] {
            let refused = Authority::generate(trust, 1).unwrap_err();
            assert_eq!(refused, CertificateError::TrustDomain(trust.to_owned()));
        }
    }

    #[test]
    fn the_validity_is_the_one_asked_for_within_that_of_the_authority() {
        let authority = authority();
        let now = SystemTime::now();
        let issue = |not_before, not_after| {
            let options = IssueOptions { not_before, not_after, ..IssueOptions::days(1) };
            authority.issue(&id("spiffe://prod/mc/store/a"), options)
        };
        let expired = only(&issue(now - DAY * 2, now - DAY).unwrap().chain_pem);
        assert!(expired.not_before < expired.not_after && expired.not_after < now);
        let later = only(&issue(now + DAY, now + DAY * 2).unwrap().chain_pem);
        assert!(later.not_before > now);
        let longest = issue(now, now + DAY * 90).unwrap();
        assert_eq!(only(&longest.chain_pem).not_after, authority.not_after());
        for (from, to) in [(now, now), (now + DAY, now), (now + DAY * 40, now + DAY * 50)] {
            assert!(matches!(issue(from, to), Err(CertificateError::Validity { .. })));
        }
        assert!(matches!(Authority::generate("prod", u32::MAX), Err(CertificateError::Validity { .. })));
    }

    #[test]
    fn a_name_that_readers_would_reject_is_refused() {
        for name in ["", "a b", "10.0.0.1", "a..b", "-a", "a-", "a.*", "*.", "ä", "a.", &"a".repeat(64)] {
            assert_eq!(dns_name(name), None, "{name}");
        }
        for name in ["a", "a_1.b-2", "1a", "*.a.b", "10.example"] {
            assert!(dns_name(name).is_some(), "{name}");
        }
    }
}
