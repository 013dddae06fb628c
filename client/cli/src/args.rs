//! The command line: the commands, each with arguments of its own.

use clap::{Parser, Subcommand};
use mc_console::Global;

use crate::cmd::audit::AuditArgs;
use crate::cmd::bench::BenchArgs;
use crate::cmd::cert::CertCommand;
use crate::cmd::check::CheckCommand;
use crate::cmd::completion::CompletionArgs;
use crate::cmd::config::ConfigCommand;
use crate::cmd::exist::ExistArgs;
use crate::cmd::get::GetArgs;
use crate::cmd::ls::LsArgs;
use crate::cmd::members::MembersCommand;
use crate::cmd::monitoring::MonitoringArgs;
use crate::cmd::playground::PlaygroundArgs;
use crate::cmd::principals::PrincipalsCommand;
use crate::cmd::put::PutArgs;
use crate::cmd::rm::RmArgs;
use crate::cmd::run::RunArgs;
use crate::cmd::security::SecurityCommand;
use crate::cmd::stat::StatArgs;
use crate::cmd::tenants::TenantsCommand;
use crate::cmd::upgrade::UpgradeCommand;
use crate::cmd::whoami::WhoamiArgs;

const EXIT_CODES: &str = "\
Exit codes: 0 done, yes, healthy; 1 no (not found, put refused, not removed, degraded, not yet a voter, data lost, unusable certificate, not allowed); \
2 wrong usage, another error of the pool, pool unreachable or down, output lost; 3 temporarily unavailable (get, exist, stat: the object is in the pool, and no \
store that holds it can be read now); 130 interrupted.
With --json a command that fails prints {\"error\": ..., \"code\": ..., \"outcome\": ...}: the text, the pool's code \
or null, and `definite` or `unknown`. Only --help, --version and run print no JSON.";

const EXAMPLES: &str = "\
Examples:
  mcctl playground               a pool of real processes whose leader is killed while you watch
  mcctl status                   one screen about the pool at MC_MASTERS
  mcctl put model.kv ./file      put a file; `get model.kv -` writes it to standard output
  mcctl bench put --size 1mb     measure; starts its own pool unless --masters names one";

/// Run, watch, use and measure a pool of memory for KV caches.
#[derive(Debug, Parser)]
#[command(name = "mcctl", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a pool too small for its workload, kill the leader, check every byte; then stay up
    Playground(PlaygroundArgs),
    /// Show the pool on one screen; exit code 0: healthy, 1: degraded, 2: down
    Status,
    /// Store a file as one object
    Put(PutArgs),
    /// Read an object into a file
    Get(GetArgs),
    /// Check whether an object exists; exit code 0: yes, 1: no, 3: it exists, but cannot be read now
    Exist(ExistArgs),
    /// Remove an object, or many
    Rm(RmArgs),
    /// List the keys of objects; with --long also where they lie
    Ls(LsArgs),
    /// Show the size, checksum, pin and stores of an object
    Stat(StatArgs),
    /// List the segments of the stores, with their sizes and how full they are
    Segments,
    /// List, add, remove and rescue masters
    #[command(subcommand)]
    Members(MembersCommand),
    /// Show and change the settings that all masters share
    #[command(subcommand)]
    Config(ConfigCommand),
    /// List tenants, and set their quotas and limits
    #[command(subcommand)]
    Tenants(TenantsCommand),
    /// List the users that the cluster knows, give them tokens, and shut them out
    #[command(subcommand)]
    Principals(PrincipalsCommand),
    /// Show who you are to the masters, and which calls you may make
    Whoami(WhoamiArgs),
    /// Show and set how far the cluster insists on TLS
    #[command(subcommand)]
    Security(SecurityCommand),
    /// Show who changed the cluster, from the audit logs of all masters; with --refusals, who was refused
    Audit(AuditArgs),
    /// Show and raise the cluster version after all masters run a newer build
    #[command(subcommand)]
    Upgrade(UpgradeCommand),
    /// Say what this machine can do for the pool, and what keeps it from more
    #[command(subcommand)]
    Check(CheckCommand),
    /// Make the certificates of a cluster, and show what is in them
    #[command(subcommand)]
    Cert(CertCommand),
    /// Measure the pool, and the limits of this machine in the same run: starts mc-bench, whose --help lists the benches
    Bench(BenchArgs),
    /// Run a master or a store: the same as mc-master and mc-store
    Run(RunArgs),
    /// Print shell completions: `source <(mcctl completion bash)`
    Completion(CompletionArgs),
    /// Write the Grafana dashboards and the Prometheus alerts of this build
    Monitoring(MonitoringArgs),
    /// Print docs/reference.md as it is for this build
    #[command(hide = true)]
    Reference,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
