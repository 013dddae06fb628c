//! `mcctl principals list|add|set|rm|token|deny|allow`: shows and changes what the cluster knows of its users.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use mc_client::{Admin, Outcome, Principal, PrincipalChange, SpiffeId, Token};
use mc_console::certificates::rfc3339;
use mc_console::{Ended, Global, Output, columns, connect, note, or_dash, printable};
use mc_types::Span;
use serde::Serialize;

use super::Switch;
use super::cert::write_new;

#[derive(Debug, Subcommand)]
pub(crate) enum PrincipalsCommand {
    /// List the principals that were added or denied
    List,
    /// Add a principal, with a token or with certificates of another system
    Add(AddArgs),
    /// Change what a principal may besides its role
    Set(SetArgs),
    /// Remove a principal and its token; a certificate of the cluster with its name still counts
    Rm {
        /// Its name, as `principals list` shows it, or the whole identity
        name: PrincipalName,
    },
    /// Draw a new token for a principal, and print it once; the one before ends
    Token(TokenArgs),
    /// Refuse a principal, whatever it shows; it need not have been added
    Deny {
        /// Its name, such as tenant/a/rw/engine, or the whole identity
        name: PrincipalName,
    },
    /// Let a principal in again that was denied
    Allow {
        /// Its name, as `principals list` shows it, or the whole identity
        name: PrincipalName,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// Its name: tenant/TENANT/rw/NAME (ro: to read only), admin/NAME, operator/NAME, observer/NAME, or the whole identity
    /// with spiffe://
    name: PrincipalName,
    /// Draw a token for it, and print it once
    #[arg(long)]
    token: bool,
    /// Draw a token for it, and write it into this new file, which only you can read
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_to: Option<PathBuf>,
    /// Identity in certificates of another system that stands for it; an asterisk stands for any characters but a slash. May be
    /// given several times
    #[arg(long = "certificate", value_name = "URI")]
    certificates: Vec<String>,
    /// Time after which it is refused, such as 30d, or never
    #[arg(long, value_name = "TIME", default_value = "never")]
    expires: Expiry,
    /// Let it map the memory of stores on its host that were started with `--shm same-uid` or `any`; that memory holds the bytes
    /// of all tenants
    #[arg(long)]
    shared_memory: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Its name, as `principals list` shows it, or the whole identity
    name: PrincipalName,
    /// Whether it may map the memory of stores on its host that were started with `--shm same-uid` or `any`; that memory holds
    /// the bytes of all tenants
    #[arg(long, value_enum, value_name = "on|off")]
    shared_memory: Switch,
}

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Its name, as `principals list` shows it, or the whole identity
    name: PrincipalName,
    /// Write the token into this new file, which only you can read, rather than to standard output
    #[arg(long, value_name = "FILE")]
    token_to: Option<PathBuf>,
}

/// Name of a principal: its identity without the trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrincipalName(String);

/// End of a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Never,
    In(Duration),
}

#[derive(Serialize)]
struct Document {
    principals: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    has_token: bool,
    certificates: Vec<String>,
    /// RFC 3339; `None`: never.
    expires: Option<String>,
    denied: bool,
    /// Whether it may map the memory of stores on its host.
    shared_memory: bool,
}

#[derive(Serialize)]
struct Changed<'a> {
    principal: &'a str,
    /// added, set, removed, denied, allowed, or "new token".
    result: &'static str,
    /// The token that was drawn, unless it was written to a file.
    token: Option<&'a str>,
    /// File with the token that was drawn.
    token_file: Option<&'a Path>,
}

pub(crate) async fn principals(
    global: &Global,
    command: &PrincipalsCommand,
    output: Output,
) -> Result<Ended> {
    let admin = connect::client_of(global).await?.admin();
    let changed = |PrincipalName(name): &PrincipalName, result, text: &str| {
        let changed = Changed { principal: name, result, token: None, token_file: None };
        output.result(&changed, || format!("{name} {text}"));
    };
    match command {
        PrincipalsCommand::List => {
            let principals = admin.security().await?.principals.into_iter().map(listed).collect();
            let document = Document { principals };
            output.result(&document, || table(&document));
        }
        PrincipalsCommand::Add(args) => add(&admin, args, output).await?,
        PrincipalsCommand::Set(SetArgs { name, shared_memory }) => {
            let change = PrincipalChange::default().with_shared_memory(*shared_memory == Switch::On);
            admin.set_principal(&name.0, change).await?;
            changed(name, "set", &format!("has shared memory {shared_memory}"));
        }
        PrincipalsCommand::Rm { name } => {
            admin.remove_principal(&name.0).await?;
            changed(name, "removed", "removed");
        }
        PrincipalsCommand::Token(args) => {
            let PrincipalName(name) = &args.name;
            let token = Token::random();
            let change = PrincipalChange::default().with_token(&token);
            kept(&token, args.token_to.as_deref(), admin.set_principal(name, change)).await?;
            show_token(name, "new token", &token, args.token_to.as_deref(), output);
        }
        PrincipalsCommand::Deny { name } => {
            admin.deny_principal(&name.0).await?;
            changed(name, "denied", "is refused, whatever it shows");
        }
        PrincipalsCommand::Allow { name } => {
            admin.allow_principal(&name.0).await?;
            changed(name, "allowed", "is let in again");
        }
    }
    Ok(Ended::Well)
}

async fn add(admin: &Admin, args: &AddArgs, output: Output) -> Result<()> {
    let AddArgs { name: PrincipalName(name), token, token_to, certificates, expires, shared_memory } = args;
    let mut change = PrincipalChange::default();
    if !certificates.is_empty() {
        change = change.with_certificates(certificates);
    }
    if *shared_memory {
        change = change.with_shared_memory(true);
    }
    if let Expiry::In(time) = expires {
        let at =
            SystemTime::now().checked_add(*time).context("--expires is further than the clock counts")?;
        change = change.with_expiry(Some(at));
    }
    if !token && token_to.is_none() {
        admin.add_principal(name, change).await?;
        let added = Changed { principal: name, result: "added", token: None, token_file: None };
        output.result(&added, || format!("{name} added"));
        return Ok(());
    }
    let token = Token::random();
    let call = admin.add_principal(name, change.with_token(&token));
    kept(&token, token_to.as_deref(), call).await?;
    show_token(name, "added", &token, token_to.as_deref(), output);
    Ok(())
}

/// Writes a token to its file, if it has one, then makes the call that gives it to a principal. The file of a token that
/// is none is removed again.
async fn kept(
    token: &Token,
    file: Option<&Path>,
    call: impl Future<Output = Result<(), mc_client::Error>>,
) -> Result<()> {
    if let Some(file) = file {
        write_new(file, &format!("{}\n", token.secret()))?;
    }
    let made = call.await;
    if let (Err(error), Some(file)) = (&made, file)
        && error.outcome == Outcome::Definite
    {
        fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(made?)
}

fn show_token(name: &str, result: &'static str, token: &Token, file: Option<&Path>, output: Output) {
    let shown = file.is_none().then(|| token.secret());
    let changed = Changed { principal: name, result, token: shown, token_file: file };
    output.result(&changed, || match file {
        Some(file) => format!("{name} has the token in {}", file.display()),
        None => token.secret().to_owned(),
    });
    if file.is_none() && !output.is_json() {
        note(&format!("this is the token of {name}: it is not shown again"));
    }
}

impl FromStr for PrincipalName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = match text.starts_with("spiffe://") {
            true => text.parse::<SpiffeId>(),
            // Its trust domain is that of the cluster, which is not known here.
            false => format!("spiffe://cluster/mc/{text}").parse(),
        };
        let name = id.map(|id| id.path()).map_err(|_| {
            "write tenant/TENANT/rw/NAME (ro: to read only), admin/NAME, operator/NAME or observer/NAME, or the whole identity, \
             spiffe://TRUST/mc/ROLE/NAME"
        });
        Ok(Self(name?))
    }
}

impl FromStr for Expiry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
        let time = match days {
            Some(days) => Some(Duration::from_secs(u64::from(days) * 24 * 60 * 60)),
            None => text.parse::<Span>().ok().map(|span| span.0),
        };
        let time = time.ok_or("write a whole number with a unit, such as 30d or 12h, or never")?;
        Ok(Self::In(time))
    }
}

fn listed(principal: Principal) -> Listed {
    let Principal { name, has_token, certificates, expires, denied, shares_memory: shared_memory, .. } =
        principal;
    Listed { name, has_token, certificates, expires: expires.map(rfc3339), denied, shared_memory }
}

fn table(document: &Document) -> String {
    if document.principals.is_empty() {
        return "no principals".to_owned();
    }
    let rows = document.principals.iter().map(|it| {
        [
            printable(&it.name).into_owned(),
            if it.denied { "denied" } else { "let in" }.to_owned(),
            if it.has_token { "yes" } else { "no" }.to_owned(),
            it.expires.clone().unwrap_or_else(|| "never".to_owned()),
            if it.shared_memory { "on" } else { "off" }.to_owned(),
            or_dash(Some(printable(&it.certificates.join(", "))).filter(|uris| !uris.is_empty())),
        ]
    });
    columns(["PRINCIPAL", "STATE", "TOKEN", "EXPIRES", "SHM", "CERTIFICATES"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_named_with_or_without_its_trust_domain() {
        for text in ["tenant/a/rw/engine", "spiffe://prod/mc/tenant/a/rw/engine"] {
            assert_eq!(text.parse(), Ok(PrincipalName("tenant/a/rw/engine".to_owned())));
        }
        for text in ["engine", "tenant/a/engine", "root/a", "spiffe://prod/ns/a", "admin/", ""] {
            let why = text.parse::<PrincipalName>().unwrap_err();
            assert!(why.contains("tenant/TENANT/rw/NAME"), "{why}");
        }
    }

    #[test]
    fn an_expiry_has_days_besides_the_units_of_other_durations() {
        let hours = |hours: u64| Ok(Expiry::In(Duration::from_secs(hours * 3_600)));
        assert_eq!("never".parse(), Ok(Expiry::Never));
        assert_eq!(("30d".parse(), "12h".parse()), (hours(30 * 24), hours(12)));
        for text in ["", "d", "30", "-1d", "1.5d", "99999999999d"] {
            assert!(text.parse::<Expiry>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_forges_no_row() {
        let principal = |name: &str, denied: bool| Listed {
            name: name.to_owned(),
            has_token: !denied,
            certificates: if denied { Vec::new() } else { vec!["spiffe://k8s/ns/a/*".to_owned()] },
            expires: None,
            denied,
            shared_memory: !denied,
        };
        let principals = vec![principal("admin/a", false), principal("admin/b\nadmin/c", true)];
        assert_eq!(
            table(&Document { principals }),
            "PRINCIPAL         STATE   TOKEN  EXPIRES  SHM  CERTIFICATES\n\
             admin/a           let in  yes    never    on   spiffe://k8s/ns/a/*\n\
             admin/b\\nadmin/c  denied  no     never    off  -\n"
        );
    }
}
