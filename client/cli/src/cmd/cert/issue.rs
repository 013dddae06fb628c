use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use mc_console::certificates::{Authority, IssueOptions, rfc3339};
use mc_console::{Ended, Output};
use mc_types::SpiffeId;
use serde::Serialize;

use super::files::{self, CA_CERT, CA_KEY, CERT, DEFAULT_CA_DIR, DEFAULT_TLS_DIR, KEY};

#[derive(Debug, Args)]
pub(crate) struct IssueArgs {
    /// Identity: master/NAME, store/NAME, admin/NAME, tenant/TENANT/rw/NAME (ro to read only), or one of these after
    /// spiffe://TRUST/mc/
    #[arg(value_name = "IDENTITY")]
    pub(super) identity: String,
    /// Directory of the authority, which `mcctl cert init` has made
    #[arg(long, value_name = "DIR", default_value = DEFAULT_CA_DIR)]
    pub(super) ca: PathBuf,
    /// TLS directory for ca.crt, tls.crt and tls.key; those that are there are replaced, as a renewal
    #[arg(long, value_name = "DIR", default_value = DEFAULT_TLS_DIR)]
    pub(super) dir: PathBuf,
    /// Days until the certificate expires; it expires with its authority at the latest
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) days: u32,
    /// DNS name of the process, for clients that compare it, such as a browser; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) dns: Vec<String>,
    /// IP address of the process, for the same clients; may be repeated
    #[arg(long, value_name = "IP")]
    pub(super) ip: Vec<IpAddr>,
    /// Replace the certificates of another authority, too
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Serialize)]
pub(super) struct Document {
    pub(super) identity: String,
    pub(super) not_after: String,
    files: Vec<PathBuf>,
}

pub(super) fn issue(args: &IssueArgs, output: Output) -> Result<Ended> {
    let document = write(args)?;
    output.result(&document, || {
        let Document { identity, not_after, files } = &document;
        let mut text = format!("issued a certificate for {identity}, valid until {not_after}\n");
        text.extend(files.iter().map(|file| format!("wrote {}\n", file.display())));
        text
    });
    Ok(Ended::Well)
}

pub(super) fn write(args: &IssueArgs) -> Result<Document> {
    let authority = authority_of(&args.ca)?;
    let identity = identity(&args.identity, authority.trust())?;
    check_target(args, &authority)?;
    let options =
        IssueOptions { dns: args.dns.clone(), ips: args.ip.clone(), ..IssueOptions::days(args.days) };
    let failed =
        || format!("cannot issue a certificate for {identity} by the authority in {}", args.ca.display());
    let issued = authority.issue(&identity, options).with_context(failed)?;
    let mut files = vec![(KEY, issued.key_pem.as_str()), (CERT, issued.chain_pem.as_str())];
    // A directory that trusts the authority, and others perhaps, goes on to trust them.
    if !trusts(&args.dir, &authority)? {
        files.push((CA_CERT, authority.cert_pem()));
    }
    files::replace(&args.dir, &files).with_context(failed)?;
    Ok(Document {
        identity: identity.to_string(),
        not_after: rfc3339(issued.not_after),
        files: files::paths(&args.dir, &files),
    })
}

/// Whether the directory has a bundle that trusts the authority already.
fn trusts(dir: &Path, authority: &Authority) -> Result<bool> {
    Ok(files::read(&dir.join(CA_CERT))?.is_some_and(|bundle| authority.is_trusted_by(&bundle)))
}

fn authority_of(dir: &Path) -> Result<Authority> {
    let texts = (files::read(&dir.join(CA_CERT))?, files::read(&dir.join(CA_KEY))?);
    let (Some(cert), Some(key)) = texts else {
        let dir = dir.display();
        bail!(
            "no authority in {dir}, which needs {CA_CERT} and {CA_KEY}: make one by `mcctl cert init --dir {dir}`, or name the \
             directory that has it by --ca"
        );
    };
    Authority::read(&cert, &key).with_context(|| format!("cannot use the authority in {}", dir.display()))
}

/// Reads an identity, which may go without the part that all of a trust domain share.
fn identity(text: &str, trust: &str) -> Result<SpiffeId> {
    let is_whole = text.starts_with("spiffe://");
    let uri = if is_whole { text.to_owned() } else { format!("spiffe://{trust}/mc/{text}") };
    uri.parse::<SpiffeId>().with_context(|| {
        format!("cannot issue a certificate for `{text}`: write master/NAME, store/NAME, admin/NAME or tenant/TENANT/rw/NAME")
    })
}

/// Refuses a directory whose files a process may need: certificates of another authority, or the key of one.
fn check_target(args: &IssueArgs, authority: &Authority) -> Result<()> {
    let dir = &args.dir;
    if dir.join(CA_KEY).exists() {
        bail!(
            "cannot issue a certificate into {}: it has the key of an authority, which must not travel with certificates; name \
             another directory by --dir",
            dir.display()
        );
    }
    let is_new = [CA_CERT, CERT, KEY].iter().all(|name| !dir.join(name).exists());
    if !is_new && !trusts(dir, authority)? && !args.force {
        bail!(
            "cannot issue a certificate into {}: the {CA_CERT} there is missing, or is not that of the authority in {}, and a \
             process may be cut off from its cluster by another one; name another directory by --dir, or replace the files by \
             --force",
            dir.display(),
            args.ca.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mc_console::certificates::{Certificate, public_key_of};
    use tempfile::TempDir;

    use super::super::init::authority_in;
    use super::*;

    /// Arguments with the authority in `ca` and the target in `tls` of a directory.
    fn args(dir: &TempDir, identity: &str) -> IssueArgs {
        IssueArgs {
            identity: identity.to_owned(),
            ca: dir.path().join("ca"),
            dir: dir.path().join("tls"),
            days: 7,
            dns: Vec::new(),
            ip: Vec::new(),
            force: false,
        }
    }

    fn cluster(trust: &str) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        authority_in(&dir.path().join("ca"), trust);
        dir
    }

    fn text(dir: &TempDir, name: &str) -> String {
        files::read(&dir.path().join("tls").join(name)).unwrap().unwrap()
    }

    fn refusal(args: &IssueArgs) -> String {
        write(args).err().map(|error| format!("{error:#}")).unwrap_or_default()
    }

    #[test]
    fn a_certificate_is_issued_and_renewed() {
        let dir = cluster("prod");
        let id = "spiffe://prod/mc/master/m1";
        let mut keys = Vec::new();
        for identity in ["master/m1", id] {
            assert_eq!(write(&args(&dir, identity)).unwrap().identity, id);
            let read = Certificate::read_all(&text(&dir, CERT)).unwrap();
            assert_eq!(read[0].identity().unwrap().to_string(), id);
            assert_eq!(read[0].public_key, public_key_of(&text(&dir, KEY)).unwrap());
            assert!(read[0].is_signed_by(&Certificate::read_all(&text(&dir, CA_CERT)).unwrap()[0]));
            keys.push(text(&dir, KEY));
        }
        assert_ne!(keys[0], keys[1], "a renewal has a key of its own");
        assert!(!dir.path().join("tls").join(CA_KEY).exists());
    }

    #[test]
    fn a_directory_that_trusts_two_authorities_keeps_both() {
        let (dir, next) = (cluster("prod"), cluster("prod"));
        write(&args(&dir, "store/a")).unwrap();
        let new = files::read(&next.path().join("ca").join(CA_CERT)).unwrap().unwrap();
        let both = text(&dir, CA_CERT) + &new;
        std::fs::write(dir.path().join("tls").join(CA_CERT), &both).unwrap();
        write(&IssueArgs { ca: next.path().join("ca"), ..args(&dir, "store/a") }).unwrap();
        assert_eq!(text(&dir, CA_CERT), both, "processes with certificates by the old one stay welcome");
        assert!(
            Certificate::read_all(&text(&dir, CERT)).unwrap()[0]
                .is_signed_by(&Certificate::read_all(&new).unwrap()[0])
        );
    }

    #[test]
    fn what_is_no_identity_of_the_trust_domain_is_refused_and_nothing_written() {
        let dir = cluster("prod");
        for (identity, why) in [
            ("spiffe://test/mc/master/m1", "not in the trust domain"),
            ("master", "write master/NAME"),
            ("root/m1", "the role is unknown"),
        ] {
            let refusal = refusal(&args(&dir, identity));
            assert!(refusal.contains(why), "{identity}: {refusal}");
        }
        assert!(!dir.path().join("tls").exists());
    }

    #[test]
    fn the_certificate_of_another_authority_is_replaced_by_force_alone() {
        let (dir, other) = (cluster("prod"), cluster("prod"));
        write(&args(&dir, "store/a")).unwrap();
        let key = text(&dir, KEY);
        let foreign = IssueArgs { ca: other.path().join("ca"), ..args(&dir, "store/a") };
        let said = refusal(&foreign);
        assert!(said.contains("not that of the authority") && said.contains("--force"), "{said}");
        std::fs::remove_file(dir.path().join("tls").join(CA_CERT)).unwrap();
        assert!(refusal(&args(&dir, "store/a")).contains("--force"), "nothing says whose certificate it is");
        assert_eq!(text(&dir, KEY), key);
        write(&IssueArgs { force: true, ..foreign }).unwrap();
        assert_ne!(text(&dir, KEY), key);
    }

    #[test]
    fn without_an_authority_the_command_that_makes_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let said = refusal(&args(&dir, "store/a"));
        assert!(said.contains("mcctl cert init --dir") && said.contains("--ca"), "{said}");
    }

    #[test]
    fn a_key_of_an_authority_stays_out_of_tls_directories() {
        let dir = cluster("prod");
        let same = IssueArgs { dir: dir.path().join("ca"), ..args(&dir, "store/a") };
        assert!(refusal(&same).contains("another directory"));
    }
}
