//! `mcctl cert init|issue|rotate|inspect`: makes the certificates of a cluster, and shows what is in them.

mod files;
mod init;
mod inspect;
mod issue;
mod report;
mod rotate;

use anyhow::Result;
use clap::Subcommand;
use mc_console::{Ended, Output};

pub(crate) use files::write_new;

#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Make the authority (CA) of a new cluster: ca.crt, which every process trusts, and ca.key, which signs certificates
    Init(init::InitArgs),
    /// Issue the certificate of a process or user, or renew it: writes ca.crt, tls.crt and tls.key
    Issue(issue::IssueArgs),
    /// Replace certificates by new ones with the same identities and names, as a timer does
    Rotate(rotate::RotateArgs),
    /// Show what is in certificates; exit code 0: all is well, 1: one has expired, is not valid yet or is not signed by ca.crt,
    /// or tls.key does not fit
    Inspect(inspect::InspectArgs),
}

pub(crate) fn cert(command: &CertCommand, output: Output) -> Result<Ended> {
    match command {
        CertCommand::Init(args) => init::init(args, output),
        CertCommand::Issue(args) => issue::issue(args, output),
        CertCommand::Rotate(args) => rotate::rotate(args, output),
        CertCommand::Inspect(args) => inspect::inspect(args, output),
    }
}
