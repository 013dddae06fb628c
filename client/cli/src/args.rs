//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mc_client::ByteRange;
use mc_types::{ByteSize, Span};

use mc_console::Global;

const EXIT_CODES: &str = "\
Exit codes: 0 done, yes, healthy; 1 no (not found, put refused, not removed, degraded, not yet a voter, data lost); \
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
    Exist(KeyArgs),
    /// Remove an object, or many
    Rm(RmArgs),
    /// List the keys of objects; with --long also where they lie
    Ls(LsArgs),
    /// Show the size, checksum, pin and stores of an object
    Stat(KeyArgs),
    /// List the segments of the stores, with their sizes and how full they are
    Segments,
    /// List, add, remove and rescue masters
    #[command(subcommand)]
    Members(MembersCommand),
    /// Show and change the settings that all masters share
    #[command(subcommand)]
    Config(ConfigCommand),
    /// List tenants, and set their quotas
    #[command(subcommand)]
    Tenants(TenantsCommand),
    /// Show and raise the cluster version after all masters run a newer build
    #[command(subcommand)]
    Upgrade(UpgradeCommand),
    /// Say what this machine can do for the pool, and what keeps it from more
    #[command(subcommand)]
    Check(CheckCommand),
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

#[derive(Debug, Subcommand)]
pub(crate) enum CheckCommand {
    /// RDMA devices, and which of them --rdma-devices uses; exit code 0: at least one, 1: none
    Rdma,
    /// Transport by which bytes go between this machine and each store, and why not by a better one; exit code 0: bytes went to
    /// all, 1: not to some
    ///
    /// An object of 64 KiB is put on each store, read and removed.
    Transports,
}

#[derive(Debug, Args)]
pub(crate) struct MonitoringArgs {
    /// Folder for `grafana/*.json` and `prometheus/alerts.yml`; existing files of these names are replaced
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct RunArgs {
    /// The process to run
    #[arg(value_enum)]
    pub(crate) role: Role,
    /// Flags of the process; `mcctl run master --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    pub(crate) args: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// mc-master
    Master,
    /// mc-store
    Store,
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct BenchArgs {
    /// Bench and its flags; `mcctl bench --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCH")]
    pub(crate) args: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct PlaygroundArgs {
    /// Exit after the check instead of staying up
    #[arg(long)]
    pub(crate) once: bool,
    /// Replay a recorded workload instead of a generated one: JSON lines with `timestamp` and `hash_ids`, plain or
    /// gzipped, with at least --puts different blocks
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Seed of the generated workload
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "trace")]
    pub(crate) seed: u64,
    /// Number of different blocks to put; the leader is killed half-way, and the pool has room for about half of them
    #[arg(long, default_value_t = 3_600, value_name = "N", value_parser = clap::value_parser!(u64).range(2_000..=100_000))]
    pub(crate) puts: u64,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Key of the object, 1 to 4,096 bytes
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Key of the object, 1 to 4,096 bytes
    pub(crate) key: String,
    /// File to put; `-` is standard input
    pub(crate) file: PathBuf,
    /// Replace an existing object; without this flag the old object stays and the exit code is 1
    #[arg(long)]
    pub(crate) replace: bool,
    /// Number of copies, each on another store
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) replicas: u32,
    /// Refuse the put rather than store fewer copies than --replicas
    #[arg(long)]
    pub(crate) all_replicas: bool,
    /// Store to prefer, given by its address as `status` shows it, or by its name; can be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) prefer: Vec<String>,
    /// Prefer the stores of this host
    #[arg(long)]
    pub(crate) local: bool,
    /// Group that the object joins: its members are evicted together
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) group: String,
    /// Tag of the object, 0 to 255, which the pool keeps and does not interpret
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) data_type: u8,
    /// Protection of the object from eviction
    #[arg(long, value_enum, default_value_t = PinKind::Preserve, value_name = "PIN")]
    pub(crate) pin: PinKind,
    /// Duration of a soft pin, at most 24 hours
    #[arg(long, default_value = "30m", value_name = "DURATION")]
    pub(crate) pin_for: Span,
}

/// Pin that a put asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PinKind {
    /// Keep the pin of the object that is replaced, if any
    Preserve,
    /// No pin
    Off,
    /// For the time in --pin-for, evict the object only when no object without a pin can be evicted
    Soft,
    /// Never evict the object; the setting hard-pin-limit bounds the bytes of such objects
    Hard,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Key of the object
    pub(crate) key: String,
    /// File to write; `-` is standard output
    pub(crate) file: PathBuf,
    /// Part of the object to read, such as 0:4096 or 64kib:1mib; repeat the flag to write several parts, one after the
    /// other [default: the whole object, whose checksum is compared; that of a part can't be]
    #[arg(long = "range", value_name = "OFFSET:LEN", value_parser = byte_range)]
    pub(crate) ranges: Vec<ByteRange>,
}

fn byte_range(text: &str) -> Result<ByteRange, String> {
    let (offset, len) = text.split_once(':').ok_or("write OFFSET:LEN, such as 0:4096 or 64kib:1mib")?;
    let size = |text: &str| text.parse::<ByteSize>().map(|size| size.0).map_err(|error| error.to_string());
    Ok(ByteRange { offset: size(offset)?, len: size(len)? })
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// First bytes of the keys to list [default: all keys]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Show the data type, pin, group and stores of each object, too
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Most keys to list; the exit code is 0 even if there are more
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: u64,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Key of the object
    #[arg(required_unless_present_any = ["all", "regex"])]
    pub(crate) key: Option<String>,
    /// Remove all objects of the tenant, pinned ones included
    #[arg(long, conflicts_with = "key")]
    pub(crate) all: bool,
    /// Remove the objects whose keys match a regular expression, which is not anchored; pinned ones included
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["key", "all"])]
    pub(crate) regex: Option<String>,
    /// Drop only the replica on this store, given by its address as `status` shows it, or by its name
    #[arg(long, value_name = "NAME", requires = "key")]
    pub(crate) replica_on: Option<String>,
    /// Remove objects even while clients read them
    #[arg(long, conflicts_with = "replica_on")]
    pub(crate) force: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TenantsCommand {
    /// List the tenants that have a quota of their own or something in the pool
    List,
    /// Give a tenant a quota of its own, or change it; at the quota, its own objects are evicted first
    Set(TenantQuotaArgs),
    /// Take a tenant's own quota away; it must have no objects
    Rm {
        /// Name of the tenant; empty: the default tenant
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TenantQuotaArgs {
    /// Name of the tenant; empty: the default tenant
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) limits: TenantLimits,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct TenantLimits {
    /// Most bytes of all replicas, puts in flight included; 0: no limit [default: as it is]
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<ByteSize>,
    /// Most objects, puts in flight included; 0: no limit [default: as it is]
    #[arg(long, value_name = "N")]
    pub(crate) objects: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MembersCommand {
    /// List the masters with their votes and their lag
    List,
    /// Add a running master that waits to be added; returns once it has a vote
    Add {
        /// Raft address of the master: host or host:port
        #[arg(value_name = "RAFT-ADDRESS")]
        address: String,
    },
    /// Remove a master permanently, dead or alive
    Remove {
        /// Id of the master, a prefix of the id, or one of its addresses
        member: String,
    },
    /// Transfer the leadership to another master
    TransferLeader {
        /// The new leader: an id, a prefix of an id, or an address [default: the voter with most of the log]
        member: Option<String>,
    },
    /// Recover from the permanent loss of a majority: make a cluster of one from a surviving data directory
    Rescue(RescueArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RescueArgs {
    /// Data directory of the surviving master, which must be stopped
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Make the changes; without this flag the command only prints them
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every setting with its default and its effect
    Show,
    /// Change a setting, for all masters at once
    Set {
        /// Name of the setting, as `config show` lists it
        name: String,
        /// New value
        value: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum UpgradeCommand {
    /// Show the build of every master and the cluster version that each supports
    Status,
    /// Raise the cluster version to the highest that all masters support; older builds cannot join afterwards
    Finish,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// Shell to print completions for
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
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
