use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mc_console::certificates::{Certificate, rfc3339};
use mc_console::{Output, Tone, printable};
use serde::Serialize;

use super::files::{CA_CERT, KEY};

const SECONDS_A_DAY: u64 = 24 * 60 * 60;

/// Certificates, and what is wrong with them.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) certificates: Vec<Listed>,
    /// One sentence for each defect.
    pub(super) wrong: Vec<String>,
}

/// A certificate as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    file: PathBuf,
    pub(super) identity: Option<String>,
    pub(super) uris: Vec<String>,
    subject: String,
    issuer: String,
    not_before: String,
    not_after: String,
    /// Whole days until it expires; negative: since it has.
    pub(super) days_left: i64,
    dns: Vec<String>,
    ips: Vec<IpAddr>,
    pub(super) ca: bool,
    pub(super) key_fits: Option<bool>,
    pub(super) signed_by_ca: Option<bool>,
}

/// Results of the checks of a certificate against other files; `None`: not checked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checks {
    /// Whether the private key beside it is its own.
    pub(super) key_fits: Option<bool>,
    /// Whether an authority that the directory trusts has signed it.
    pub(super) signed_by_ca: Option<bool>,
}

impl Report {
    /// Adds a certificate of `file`, and what is wrong with it at the time `now`.
    pub(super) fn add(&mut self, file: &Path, certificate: &Certificate, checks: Checks, now: SystemTime) {
        let this = format!("{}: {}", file.display(), certificate.subject);
        let Certificate { not_before, not_after, .. } = *certificate;
        let days_left = days(now, not_after);
        if now < not_before {
            let from = rfc3339(not_before);
            self.wrong
                .push(format!("{this} is not valid before {from}: wait, or set the clock of this machine"));
        }
        if now > not_after {
            let (ago, command) = (-days_left, if certificate.is_ca { "init" } else { "issue" });
            self.wrong
                .push(format!("{this} has expired {ago} days ago: make another by `mcctl cert {command}`"));
        }
        if checks.key_fits == Some(false) {
            self.wrong.push(format!(
                "{this}: {KEY} does not fit: restore both files from the same copy, or issue both"
            ));
        }
        if checks.signed_by_ca == Some(false) {
            self.wrong.push(format!(
                "{this} is not signed by an authority in {CA_CERT}: issue one by that authority"
            ));
        }
        self.certificates.push(Listed {
            file: file.to_owned(),
            identity: certificate.identity().map(|identity| identity.to_string()),
            uris: certificate.uris.clone(),
            subject: certificate.subject.clone(),
            issuer: certificate.issuer.clone(),
            not_before: rfc3339(not_before),
            not_after: rfc3339(not_after),
            days_left,
            dns: certificate.dns.clone(),
            ips: certificate.ips.clone(),
            ca: certificate.is_ca,
            key_fits: checks.key_fits,
            signed_by_ca: checks.signed_by_ca,
        });
    }

    /// Returns the certificates one below the other, and last what is wrong.
    pub(super) fn text(&self, output: Output) -> String {
        let mut text = String::new();
        for listed in &self.certificates {
            let _ = writeln!(text, "{}", listed.file.display());
            for (what, value) in listed.rows() {
                let _ = writeln!(text, "  {what:<10}  {}", printable(&value));
            }
        }
        for line in &self.wrong {
            let _ = writeln!(text, "{} {}", output.paint(Tone::Bad, "wrong:"), printable(line));
        }
        text
    }
}

impl Listed {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let identity = match &self.identity {
            Some(identity) => identity.clone(),
            None if self.uris.is_empty() => "none of mc's".to_owned(),
            None => format!("none of mc's: {}", self.uris.join(", ")),
        };
        let mut rows = vec![
            ("identity", identity),
            ("subject", self.subject.clone()),
            ("issuer", self.issuer.clone()),
            ("not before", self.not_before.clone()),
            ("not after", format!("{}, days left: {}", self.not_after, self.days_left)),
        ];
        let names: Vec<_> = self.dns.iter().cloned().chain(self.ips.iter().map(IpAddr::to_string)).collect();
        if !names.is_empty() {
            rows.push(("names", names.join(", ")));
        }
        let yes_or_no = |yes: bool| String::from(if yes { "yes" } else { "no" });
        rows.push(("authority", yes_or_no(self.ca)));
        rows.extend(self.key_fits.map(|fits| ("key fits", yes_or_no(fits))));
        rows.extend(self.signed_by_ca.map(|signed| ("signed", yes_or_no(signed))));
        rows
    }
}

/// Returns the whole days from one time to another; negative if that was earlier.
fn days(from: SystemTime, to: SystemTime) -> i64 {
    let whole = |seconds: u64| i64::try_from(seconds / SECONDS_A_DAY).unwrap_or(i64::MAX);
    match to.duration_since(from) {
        Ok(ahead) => whole(ahead.as_secs()),
        Err(past) => -whole(past.duration().as_secs()),
    }
}
