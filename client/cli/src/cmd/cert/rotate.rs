use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use clap::Args;
use mc_console::certificates::{Certificate, rfc3339};
use mc_console::{Ended, Output, columns};
use serde::Serialize;

use super::files::{self, CERT, DEFAULT_CA_DIR};
use super::issue::{self, IssueArgs};

#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    /// TLS directories whose tls.crt and tls.key are replaced
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Directory of the authority, which `mcctl cert init` has made
    #[arg(long, value_name = "DIR", default_value = DEFAULT_CA_DIR)]
    ca: PathBuf,
    /// Days until the new certificates expire; they expire with their authority at the latest
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
    /// Keep certificates that are valid for longer than this number of days [default: replace all]
    #[arg(long, value_name = "N")]
    within: Option<u32>,
}

#[derive(Serialize)]
struct Document {
    certificates: Vec<Rotated>,
}

#[derive(Serialize)]
struct Rotated {
    dir: PathBuf,
    identity: String,
    /// Whether it was replaced.
    replaced: bool,
    not_after: String,
}

pub(super) fn rotate(args: &RotateArgs, output: Output) -> Result<Ended> {
    let certificates = args.dirs.iter().map(|dir| one(args, dir.clone())).collect::<Result<_>>()?;
    let document = Document { certificates };
    output.result(&document, || {
        let row = |it: &Rotated| {
            let result = if it.replaced { "replaced" } else { "kept" };
            [it.identity.clone(), result.to_owned(), it.not_after.clone(), it.dir.display().to_string()]
        };
        columns(["IDENTITY", "CERTIFICATE", "VALID UNTIL", "DIR"], document.certificates.iter().map(row))
    });
    Ok(Ended::Well)
}

/// Replaces the certificate of a directory by one with the same identity and names, if it is due.
fn one(args: &RotateArgs, dir: PathBuf) -> Result<Rotated> {
    let path = dir.join(CERT);
    let Some(pem) = files::read(&path)? else {
        bail!("there is no {}: issue the first certificate by `mcctl cert issue`", path.display());
    };
    let read = Certificate::read_all(&pem).with_context(|| format!("cannot read {}", path.display()))?;
    // The first one is that of the process.
    let present = &read[0];
    let identity = present.identity().with_context(|| {
        format!(
            "{} has no identity of mc: issue its certificate by the tool that has made it",
            path.display()
        )
    })?;
    let identity = identity.to_string();
    let due = args
        .within
        .is_none_or(|days| present.not_after <= SystemTime::now() + Duration::from_secs(24 * 60 * 60) * days);
    if !due {
        return Ok(Rotated { dir, identity, replaced: false, not_after: rfc3339(present.not_after) });
    }
    let issued = issue::write(&IssueArgs {
        identity,
        ca: args.ca.clone(),
        dir: dir.clone(),
        days: args.days,
        dns: present.dns.clone(),
        ip: present.ips.clone(),
        force: false,
    })?;
    Ok(Rotated { dir, identity: issued.identity, replaced: true, not_after: issued.not_after })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::files::{CA_CERT, KEY};
    use super::super::init::authority_in;
    use super::*;

    fn args(dir: &TempDir) -> RotateArgs {
        let dirs = vec![dir.path().join("tls")];
        RotateArgs { dirs, ca: dir.path().join("ca"), days: 30, within: None }
    }

    /// A directory with an authority, and a certificate that is valid for 7 days.
    fn issued() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        authority_in(&dir.path().join("ca"), "prod");
        issue::write(&IssueArgs {
            identity: "store/kv".into(),
            ca: dir.path().join("ca"),
            dir: dir.path().join("tls"),
            days: 7,
            dns: vec!["kv.example".into()],
            ip: vec![[10, 0, 0, 7].into()],
            force: false,
        })
        .unwrap();
        dir
    }

    fn text(dir: &TempDir, name: &str) -> String {
        files::read(&dir.path().join("tls").join(name)).unwrap().unwrap()
    }

    #[test]
    fn the_new_certificate_has_the_identity_and_names_of_the_one_before() {
        let dir = issued();
        let (before, key) = (Certificate::read_all(&text(&dir, CERT)).unwrap(), text(&dir, KEY));
        let authorities = text(&dir, CA_CERT);
        let rotated = one(&args(&dir), dir.path().join("tls")).unwrap();
        assert!(rotated.replaced && rotated.identity == "spiffe://prod/mc/store/kv");
        let after = Certificate::read_all(&text(&dir, CERT)).unwrap();
        assert_eq!(
            (&after[0].uris, &after[0].dns, &after[0].ips),
            (&before[0].uris, &before[0].dns, &before[0].ips)
        );
        assert!(after[0].not_after > before[0].not_after);
        assert_ne!(text(&dir, KEY), key);
        assert_eq!(text(&dir, CA_CERT), authorities);
    }

    #[test]
    fn a_certificate_that_is_not_due_is_kept() {
        let dir = issued();
        let key = text(&dir, KEY);
        for (within, replaced) in [(Some(3), false), (Some(10), true)] {
            let rotated = one(&RotateArgs { within, ..args(&dir) }, dir.path().join("tls")).unwrap();
            assert_eq!((rotated.replaced, text(&dir, KEY) != key), (replaced, replaced), "{within:?}");
        }
    }

    #[test]
    fn a_directory_without_a_certificate_of_mc_is_refused() {
        let dir = issued();
        let refusal = |at: &str| format!("{:#}", one(&args(&dir), dir.path().join(at)).err().unwrap());
        assert!(refusal("none").contains("mcctl cert issue"));
        std::fs::copy(dir.path().join("ca").join(CA_CERT), dir.path().join("tls").join(CERT)).unwrap();
        assert!(refusal("tls").contains("no identity of mc"));
    }
}
