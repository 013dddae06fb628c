//! Flags of every command.

use std::path::PathBuf;

use clap::Args;
use mc_client::{RdmaDevices, RdmaOptions, ShmAccess, Transports};
use mc_types::Span;

use crate::output::Format;

/// Masters to connect to when neither the flag nor the environment names any.
const DEFAULT_MASTERS: &str = "127.0.0.1:50051";

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Client addresses of the masters, comma-separated; one reachable master is enough
    /// [env: MC_MASTERS] [default: 127.0.0.1:50051]
    #[arg(long, global = true, value_name = "ADDRESSES")]
    masters: Option<String>,
    /// Format of the result on standard output [default: table]
    #[arg(short = 'o', long = "output", global = true, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    /// Short for `-o json`: print one JSON document on standard output and nothing else, also on failure
    #[arg(long, global = true, conflicts_with = "output")]
    json: bool,
    /// Tenant whose objects the command works on; empty: the default tenant [env: MC_TENANT]
    #[arg(long, global = true, value_name = "NAME")]
    tenant: Option<String>,
    /// Folder with the certificate of the user (tls.crt, tls.key) and the authorities to trust (ca.crt)
    /// (`none`: plain connections) [env: MC_TLS_DIR] [default: mc-data/tls if it has a ca.crt]
    #[arg(long, global = true, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// File with the token of the user, which is shown to masters in place of a certificate; ca.crt is needed as well
    /// [env: MC_TOKEN_FILE] [default: token in the folder of --tls-dir if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Longest time to wait for a leader
    #[arg(long, global = true, value_name = "DURATION", default_value = "60s")]
    pub timeout: Span,
    /// Stores of this host to share memory with: off, same-uid (run by this user or root), any
    #[arg(long, global = true, value_name = "WHO", default_value_t = ShmAccess::SameUid)]
    pub shm: ShmAccess,
    /// Transports of bytes to and from stores: auto (the best that both have), tcp, shm, rdma (nothing else)
    #[arg(long, global = true, value_name = "NAME", default_value_t)]
    pub transport: Transports,
    /// RDMA devices to use: auto (all with an active port), off, or names such as mlx5_0,mlx5_1
    #[arg(long, global = true, value_name = "NAMES", default_value_t)]
    pub rdma_devices: RdmaDevices,
    /// How to use them: default, or some of traffic-class=0..255, service-level=0..15, gid-index=N, pkey=0xN, port=N,
    /// timeout=1..31 (a lost packet is sent again after 4.096 us * 2^timeout, 14 is 67 ms), separated by commas
    #[arg(long, global = true, value_name = "OPTIONS", default_value_t)]
    pub rdma_options: RdmaOptions,
}

impl Global {
    /// Returns the format of the result.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output.unwrap_or_default() }
    }

    /// Returns the tenant: the flag, else `MC_TENANT`, else the default one.
    pub fn tenant(&self) -> String {
        self.named_tenant().unwrap_or_default()
    }

    /// Returns the tenant of the flag, else of `MC_TENANT`, if one is named.
    pub fn named_tenant(&self) -> Option<String> {
        self.tenant.clone().or_else(|| std::env::var("MC_TENANT").ok())
    }

    /// The value of `--masters`.
    pub fn masters_flag(&self) -> Option<&str> {
        self.masters.as_deref()
    }

    /// Returns the masters to connect to: the flag, else `MC_MASTERS` if it is not empty, else this machine.
    pub fn masters(&self) -> String {
        let from_env = || std::env::var("MC_MASTERS").ok().filter(|value| !value.is_empty());
        self.masters.clone().or_else(from_env).unwrap_or_else(|| DEFAULT_MASTERS.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "tool")]
    struct Tool {
        #[command(flatten)]
        global: Global,
        #[command(subcommand)]
        _command: Command,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Command {
        Status,
    }

    #[test]
    fn json_is_short_for_o_json_anywhere_on_the_line() {
        for line in [
            &["tool", "--json", "status"][..],
            &["tool", "status", "-o", "json"],
            &["tool", "status", "--json"],
        ] {
            assert_eq!(Tool::parse_from(line).global.format(), Format::Json, "{line:?}");
        }
        assert_eq!(Tool::parse_from(["tool", "status"]).global.format(), Format::Table);
    }
}
