//! `mcctl security status|tls`: shows and sets how far the cluster insists on TLS.

use std::fmt::Write as _;

use anyhow::Result;
use clap::Subcommand;
use mc_client::TlsLevel;
use mc_console::{Ended, Global, Output, columns, connect, printable};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum SecurityCommand {
    /// Show how far the cluster insists on TLS, and whom `require` would cut off
    Status,
    /// Set how far masters, stores and clients with certificates insist on TLS
    Tls {
        /// allow: accept both, connect plain; prefer: accept both, connect by TLS where the other end has it; require: TLS alone.
        /// A running pool goes up step by step
        #[arg(value_parser = ["allow", "prefer", "require"])]
        level: String,
        /// Require TLS although processes would be cut off
        #[arg(long)]
        force: bool,
    },
}

#[derive(Serialize)]
struct Document {
    /// allow, prefer or require; `-` before the cluster has a level.
    tls: String,
    /// Processes that `require` would cut off, as far as the leader can tell.
    cut_off: Vec<CutOff>,
    /// Number of principals that were added or denied.
    principals: usize,
}

#[derive(Serialize)]
struct CutOff {
    who: String,
    why: String,
}

#[derive(Serialize)]
struct Changed<'a> {
    tls: &'a str,
}

pub(crate) async fn security(global: &Global, command: &SecurityCommand, output: Output) -> Result<Ended> {
    let admin = connect::client_of(global).await?.admin();
    match command {
        SecurityCommand::Status => {
            let security = admin.security().await?;
            let document = Document {
                tls: security.tls_level.map_or_else(|| "-".to_owned(), |level| level.to_string()),
                cut_off: security.cut_off.into_iter().map(|it| CutOff { who: it.who, why: it.why }).collect(),
                principals: security.principals.len(),
            };
            output.result(&document, || text(&document));
        }
        SecurityCommand::Tls { level, force } => {
            admin.set_tls_level(level.parse::<TlsLevel>()?, *force).await?;
            output.result(&Changed { tls: level }, || {
                format!("TLS: {level}; masters and stores that have a level of their own (--tls) keep it")
            });
        }
    }
    Ok(Ended::Well)
}

fn text(document: &Document) -> String {
    let Document { tls, cut_off, principals } = document;
    let mut text = format!("TLS {tls}  principals {principals}\n");
    // Writing to a string can't fail.
    let _ = match (cut_off.as_slice(), tls == "require") {
        (_, true) => Ok(()),
        ([], false) => writeln!(text, "`require` would cut off nobody, as far as the leader can tell"),
        (some, false) => {
            let rows = some.iter().map(|it| [&it.who, &it.why].map(|part| printable(part).into_owned()));
            write!(text, "`require` would cut off:\n{}", columns(["WHO", "WHY"], rows))
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_whom_require_would_cut_off_are_listed_while_it_is_not_in_force() {
        let shown = |tls: &str, who: &[&str]| {
            let cut_off = who.iter().map(|who| CutOff { who: (*who).into(), why: "plain".into() }).collect();
            text(&Document { tls: tls.into(), cut_off, principals: 2 })
        };
        assert_eq!(shown("require", &[]), "TLS require  principals 2\n");
        assert!(shown("prefer", &[]).ends_with("cut off nobody, as far as the leader can tell\n"));
        assert_eq!(
            shown("allow", &["10.0.0.7", "store kv\n"]),
            "TLS allow  principals 2\n`require` would cut off:\nWHO         WHY\n10.0.0.7    plain\nstore kv\\n  plain\n"
        );
    }
}
