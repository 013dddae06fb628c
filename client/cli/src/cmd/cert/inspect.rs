use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use clap::Args;
use mc_console::certificates::{Certificate, public_key_of};
use mc_console::{Ended, Output};

use super::files::{self, CA_CERT, CERT, DEFAULT_TLS_DIR, KEY};
use super::report::{Checks, Report};

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// TLS directory, whose files are checked against each other, or one file with certificates
    #[arg(value_name = "PATH", default_value = DEFAULT_TLS_DIR)]
    path: PathBuf,
}

pub(super) fn inspect(args: &InspectArgs, output: Output) -> Result<Ended> {
    let (path, now) = (&args.path, SystemTime::now());
    let report = if path.is_dir() { directory(path, now)? } else { file(path, now)? };
    output.result(&report, || report.text(output));
    Ok(if report.wrong.is_empty() { Ended::Well } else { Ended::Negative })
}

fn file(path: &Path, now: SystemTime) -> Result<Report> {
    let Some(certificates) = certificates(path)? else {
        bail!(
            "no file or directory {}: name one that has certificates, or issue some by `mcctl cert issue`",
            path.display()
        );
    };
    let mut report = Report::default();
    for certificate in &certificates {
        report.add(path, certificate, Checks::default(), now);
    }
    Ok(report)
}

fn directory(dir: &Path, now: SystemTime) -> Result<Report> {
    let [ca_path, cert_path, key_path] = [CA_CERT, CERT, KEY].map(|name| dir.join(name));
    let authorities = certificates(&ca_path)?;
    let chain = certificates(&cert_path)?;
    let key = files::read(&key_path)?.map(|pem| public_key_of(&pem)).transpose();
    let key = key.with_context(|| format!("cannot use {}", key_path.display()))?;
    if authorities.is_none() && chain.is_none() {
        bail!("no {CA_CERT} or {CERT} in {}: issue a certificate by `mcctl cert issue`", dir.display());
    }

    let mut report = Report::default();
    // Without both, a directory is that of a client which shows no certificate, or of an authority.
    if chain.is_some() || key.is_some() {
        let found =
            [(&ca_path, authorities.is_some()), (&cert_path, chain.is_some()), (&key_path, key.is_some())];
        for (path, _) in found.iter().filter(|(_, is_there)| !is_there) {
            report.wrong.push(format!("{} is missing", path.display()));
        }
    }
    let chain = chain.unwrap_or_default();
    let mut is_signed =
        authorities.as_deref().map(|authorities| signed(&chain, authorities)).unwrap_or_default().into_iter();
    for (place, certificate) in chain.iter().enumerate() {
        // The key is that of the first; the others are above it.
        let key_fits = key.as_ref().filter(|_| place == 0).map(|key| *key == certificate.public_key);
        report.add(&cert_path, certificate, Checks { key_fits, signed_by_ca: is_signed.next() }, now);
    }
    for certificate in authorities.iter().flatten() {
        report.add(&ca_path, certificate, Checks::default(), now);
    }
    Ok(report)
}

fn certificates(path: &Path) -> Result<Option<Vec<Certificate>>> {
    let read = files::read(path)?.map(|pem| Certificate::read_all(&pem)).transpose();
    read.with_context(|| format!("cannot use {}", path.display()))
}

/// Returns whether each certificate of a chain is signed by an authority, or by the next certificate if that is.
fn signed(chain: &[Certificate], authorities: &[Certificate]) -> Vec<bool> {
    let mut signed = Vec::with_capacity(chain.len());
    let mut above: Option<&Certificate> = None;
    for certificate in chain.iter().rev() {
        let is_signed = authorities.iter().chain(above).any(|authority| certificate.is_signed_by(authority));
        above = is_signed.then_some(certificate);
        signed.push(is_signed);
    }
    signed.reverse();
    signed
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mc_console::certificates::{Authority, IssueOptions};
    use tempfile::TempDir;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn authority() -> Authority {
        Authority::generate("prod", 30).unwrap()
    }

    /// A TLS directory with a certificate that is valid for the next ten days, as `change` leaves its files.
    fn tls(authority: &Authority, change: impl FnOnce(&mut [(&str, String); 3])) -> TempDir {
        let identity = "spiffe://prod/mc/store/kv".parse().unwrap();
        let issued = authority.issue(&identity, IssueOptions::days(10)).unwrap();
        let mut texts =
            [(KEY, issued.key_pem), (CERT, issued.chain_pem), (CA_CERT, authority.cert_pem().to_owned())];
        change(&mut texts);
        let dir = tempfile::tempdir().unwrap();
        files::replace(dir.path(), &texts.each_ref().map(|(name, text)| (*name, text.as_str()))).unwrap();
        dir
    }

    fn wrong(dir: &TempDir, now: SystemTime) -> String {
        directory(dir.path(), now).unwrap().wrong.join("\n")
    }

    #[test]
    fn a_directory_as_it_was_issued_is_in_order() {
        let dir = tls(&authority(), |_| {});
        let report = directory(dir.path(), SystemTime::now()).unwrap();
        assert!(report.wrong.is_empty(), "{:?}", report.wrong);
        let [leaf, ca] = &report.certificates[..] else { panic!("{:?}", report.certificates) };
        assert_eq!(leaf.identity.as_deref(), Some("spiffe://prod/mc/store/kv"));
        assert_eq!((leaf.days_left, leaf.key_fits, leaf.signed_by_ca), (9, Some(true), Some(true)));
        assert_eq!(
            (ca.ca, ca.identity.as_deref(), ca.uris.as_slice()),
            (true, None, &["spiffe://prod".to_owned()][..])
        );
    }

    #[test]
    fn a_certificate_that_has_expired_or_is_not_valid_yet_is_wrong() {
        let dir = tls(&authority(), |_| {});
        let now = SystemTime::now();
        let expired = wrong(&dir, now + DAY * 13);
        assert!(expired.contains("tls.crt: kv has expired 3 days ago"), "{expired}");
        assert!(!expired.contains("ca.crt"), "{expired}");
        let early = wrong(&dir, now - DAY);
        assert!(early.contains("tls.crt: kv is not valid before"), "{early}");
        let one = file(&dir.path().join(CERT), now + DAY * 13).unwrap();
        assert_eq!(one.wrong.len(), 1, "{:?}", one.wrong);
    }

    #[test]
    fn a_key_of_another_certificate_is_wrong() {
        let (one, other) = (authority(), authority());
        let dir = tls(&one, |texts| texts[0].1 = other.key_pem());
        let said = wrong(&dir, SystemTime::now());
        assert!(said.contains("tls.key does not fit") && !said.contains("signed"), "{said}");
    }

    #[test]
    fn a_certificate_of_another_authority_is_wrong_unless_that_is_trusted_too() {
        let (one, other) = (authority(), authority());
        let dir = tls(&one, |texts| texts[2].1 = other.cert_pem().to_owned());
        let said = wrong(&dir, SystemTime::now());
        assert!(said.contains("not signed") && !said.contains("does not fit"), "{said}");
        let dir = tls(&one, |texts| texts[2].1 = format!("{}{}", other.cert_pem(), one.cert_pem()));
        assert_eq!(wrong(&dir, SystemTime::now()), "");
    }

    #[test]
    fn a_file_that_is_missing_is_wrong_and_a_directory_without_certificates_an_error() {
        let dir = tls(&authority(), |_| {});
        std::fs::remove_file(dir.path().join(KEY)).unwrap();
        let said = wrong(&dir, SystemTime::now());
        assert!(said.contains("tls.key is missing") && !said.contains("does not fit"), "{said}");
        std::fs::remove_file(dir.path().join(CERT)).unwrap();
        assert_eq!(wrong(&dir, SystemTime::now()), "", "a client needs no more than ca.crt");
        std::fs::remove_file(dir.path().join(CA_CERT)).unwrap();
        let error = directory(dir.path(), SystemTime::now()).unwrap_err().to_string();
        assert!(error.contains("mcctl cert issue"), "{error}");
        let error = file(&dir.path().join("none"), SystemTime::now()).unwrap_err().to_string();
        assert!(error.contains("no file or directory"), "{error}");
    }
}
