use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use mc_console::certificates::{Authority, rfc3339};
use mc_console::{Ended, Output};
use serde::Serialize;

use super::files::{self, CA_CERT, CA_KEY, DEFAULT_CA_DIR};

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Directory of the authority, for ca.crt and ca.key; nothing in it is overwritten
    #[arg(long, value_name = "DIR", default_value = DEFAULT_CA_DIR)]
    dir: PathBuf,
    /// Trust domain, the first part of every identity; processes of different ones refuse each other
    /// [default: mc- and eight random hex digits]
    #[arg(long, value_name = "NAME")]
    trust_domain: Option<String>,
    /// Days until the authority expires, and all certificates that it has issued with it
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
}

#[derive(Serialize)]
struct Document {
    trust_domain: String,
    not_after: String,
    files: Vec<PathBuf>,
}

pub(super) fn init(args: &InitArgs, output: Output) -> Result<Ended> {
    let document = make(args)?;
    output.result(&document, || {
        let Document { trust_domain, not_after, files } = &document;
        let mut text =
            format!("made an authority for the trust domain {trust_domain}, valid until {not_after}\n");
        text.extend(files.iter().map(|file| format!("wrote {}\n", file.display())));
        text.push_str(
            "ca.key can issue every certificate of the cluster: keep it here, and a copy offline\n",
        );
        text + &format!("next: mcctl cert issue master/NAME --ca {}", args.dir.display())
    });
    Ok(Ended::Well)
}

fn make(args: &InitArgs) -> Result<Document> {
    for name in [CA_KEY, CA_CERT] {
        let path = args.dir.join(name);
        if path.symlink_metadata().is_ok() {
            bail!(
                "cannot make an authority: {} is there already, and the certificates of its cluster could no longer be renewed; \
                 name another directory by --dir, or move the file away if no cluster uses it",
                path.display()
            );
        }
    }
    let trust = args.trust_domain.clone().unwrap_or_else(|| format!("mc-{:08x}", rand::random::<u32>()));
    let authority = Authority::generate(&trust, args.days).context("cannot make an authority")?;
    let key = authority.key_pem();
    let files = [(CA_KEY, key.as_str()), (CA_CERT, authority.cert_pem())];
    files::create(&args.dir, &files).context("cannot make an authority")?;
    Ok(Document {
        trust_domain: trust,
        not_after: rfc3339(authority.not_after()),
        files: files::paths(&args.dir, &files),
    })
}

/// Makes an authority in `dir`, for tests of commands that need one.
#[cfg(test)]
pub(super) fn authority_in(dir: &std::path::Path, trust: &str) {
    make(&InitArgs { dir: dir.to_owned(), trust_domain: Some(trust.to_owned()), days: 30 }).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: &tempfile::TempDir) -> InitArgs {
        InitArgs { dir: dir.path().join("ca"), trust_domain: None, days: 30 }
    }

    #[test]
    fn an_authority_has_a_trust_domain_that_no_other_has() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [one, other] = dirs.each_ref().map(|dir| make(&args(dir)).unwrap().trust_domain);
        assert!(one.starts_with("mc-") && one.len() == 11 && one != other, "{one} {other}");
        let read = |name: &str| files::read(&args(&dirs[0]).dir.join(name)).unwrap().unwrap();
        assert_eq!(Authority::read(&read(CA_CERT), &read(CA_KEY)).unwrap().trust(), one);
    }

    #[test]
    fn an_authority_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        make(&args(&dir)).unwrap();
        let path = |name: &str| args(&dir).dir.join(name);
        let before = [CA_KEY, CA_CERT].map(|name| files::read(&path(name)).unwrap());
        let error = make(&args(&dir)).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("ca.key is there already") && error.contains("--dir"), "{error}");
        assert_eq!([CA_KEY, CA_CERT].map(|name| files::read(&path(name)).unwrap()), before);

        std::fs::remove_file(path(CA_KEY)).unwrap();
        let error = make(&args(&dir)).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("ca.crt is there already"), "{error}");
    }

    #[test]
    fn a_trust_domain_with_other_characters_is_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = InitArgs { trust_domain: Some("My Cluster".to_owned()), ..args(&dir) };
        let error = make(&wrong).err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(error.contains("`My Cluster` is not a trust domain"), "{error}");
        assert!(!wrong.dir.exists());
    }
}
