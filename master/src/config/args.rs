//! The flags of `mc-master`. Each can be set by environment (`MC_*`) or file, too: see `mc_process::config`.

use std::path::PathBuf;
use std::time::Duration;

use mc_index::{ReadPolicy, Settings};
use mc_log::LogSync;
use mc_process::TlsOptions;
use mc_process::config::FileOptions;
use mc_process::telemetry::LogOptions;
use mc_raft::RaftTiming;
use mc_types::{ByteSize, Span};

use super::peers::{PeerList, PeersError};
use super::setting::{PUT_DEADLINE_MAX, READ_LEASE, STORE_TTL};

/// Shortest time between two summaries in the log.
const METRICS_LOG_MIN: Duration = Duration::from_secs(1);

/// Who may use `/metadata` where TLS is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MetadataAccess {
    /// Admins.
    Admins,
    /// Everyone.
    Open,
}

/// A master of a memory pool for KV caches
///
/// Three masters with the same --peers form a cluster by themselves, in any start order. Every flag can also be set
/// in the environment (MC_DATA_DIR for --data-dir) or in a TOML file (--config).
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-master", version, after_help = "Example: mc-master --peers a,b,c")]
pub struct MasterArgs {
    /// Raft addresses of all masters of the cluster, this one included: host or host:port, with commas
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', conflicts_with = "single")]
    pub peers: Vec<String>,
    /// Form a cluster of this master alone
    #[arg(long)]
    pub single: bool,
    /// Number of masters; required when a name in --peers resolves to several
    #[arg(long, value_name = "N", requires = "peers")]
    pub cluster_size: Option<usize>,
    /// Listen address for clients and stores
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:50051")]
    pub listen: String,
    /// Listen address for the other masters
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:50055")]
    pub raft_listen: String,
    /// Listen address for metrics, health and status over HTTP
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:9003")]
    pub http_listen: String,
    /// Listen address of a second HTTP port with nothing but `/metadata` and `/health`, for engines that were made for
    /// Mooncake's metadata server. It accepts connections before the cluster has formed; `none` overrides a variable or a
    /// file that has one [default: none]
    #[arg(long, value_name = "IP:PORT")]
    pub metadata_listen: Option<String>,
    /// Who may use `/metadata` where TLS is required: `open` for everyone, because engines that were made for Mooncake's metadata
    /// server can't show certificates
    #[arg(long, value_name = "admins|open", default_value = "admins")]
    pub metadata: MetadataAccess,
    /// Host under which others reach this master [default: its own entry in --peers]
    #[arg(long, value_name = "HOST")]
    pub advertise: Option<String>,
    /// Directory for the identity, the log and the snapshots
    #[arg(long, value_name = "DIR", default_value = "./mc-data/master")]
    pub data_dir: PathBuf,
    /// Treat the disk of --data-dir as disposable: at SIGTERM, give up the vote before stopping if the other masters can do
    /// without it, and begin with an empty directory at the next start. Not for a cluster of one
    #[arg(long, conflicts_with = "single")]
    pub ephemeral: bool,
    /// Free space to keep on the disk of --data-dir. A leader starts no puts while less is free, or less than two snapshots
    /// and the log need. Each master has its own value
    #[arg(long, value_name = "SIZE", default_value = "1gb")]
    pub disk_reserve: ByteSize,
    /// Point at which a log write counts as durable: after fdatasync, or after the write alone (`none`: a loss of power can
    /// lose acknowledged puts)
    #[arg(long, value_name = "fdatasync|none", default_value = "fdatasync")]
    pub log_sync: LogSync,
    /// Bytes of log after which a snapshot is taken, or half the size of the last snapshot if that is more
    #[arg(long, value_name = "SIZE", default_value = "32mb")]
    pub snapshot_log_bytes: ByteSize,
    /// Number of log entries after which a snapshot is also taken (0: only the bytes count)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub snapshot_log_entries: u64,
    /// Number of log entries to keep behind a snapshot for followers that lag; fewer if they would take more than 64 MiB
    /// and more than the snapshot
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub keep_log_entries: u64,
    /// Longest deadline of a put (cluster setting: used when the cluster forms)
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub put_deadline_max: Span,
    /// Read lease: how long a client may use a placement (cluster setting: used when the cluster forms)
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub read_lease: Span,
    /// Time without a heartbeat after which a store and its replicas are dropped (cluster setting: used when the cluster forms)
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    pub store_ttl: Span,
    /// How a leader makes sure that it leads before it answers a read: by its lease, or by asking a majority each time,
    /// for machines that may be suspended or migrated while they run (cluster setting: used when the cluster forms)
    #[arg(long, value_name = "lease|read-index", default_value = "lease")]
    pub read_policy: ReadPolicy,
    /// Raft timing, the same on all masters. lan: masters in one data centre, round trips of up to 75 ms, failover in about
    /// half a second. wan: several data centres, round trips of up to 250 ms, failover in about two seconds
    #[arg(long, value_name = "lan|wan", default_value = "lan")]
    pub raft_timing: RaftTiming,
    /// Time between two lines of the log that sum this master and its pool up in the form of Mooncake's master, for tools that
    /// look for them (0s: none)
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub metrics_log: Span,
    /// Show metrics at `/metrics` under Mooncake's names as well, for tools that look for them there. They are always at
    /// `/metrics?compat=mooncake`
    #[arg(long)]
    pub mooncake_metrics: bool,
    /// Exit when standard input is closed, so that this process ends with its parent
    #[arg(long, hide = true)]
    pub exit_on_stdin_eof: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub tls: TlsOptions,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub file: FileOptions,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub log: LogOptions,
}

/// Why a configuration cannot work. Each message names the flag.
#[derive(Debug, thiserror::Error)]
pub enum MasterConfigError {
    /// The data directory holds no master of a formed cluster, and no flag says which cluster to form.
    #[error(
        "neither --peers nor --single is given, and {data_dir} holds no master yet: name all masters with \
         --peers a,b,c, or run a cluster of one with --single",
        data_dir = data_dir.display()
    )]
    NoCluster {
        /// The directory.
        data_dir: PathBuf,
    },
    /// The list of peers is wrong.
    #[error(transparent)]
    Peers(#[from] PeersError),
    /// A listen address is not an address.
    #[error("--{flag} `{value}` is not an address to listen on: write ip:port, such as 0.0.0.0:50051")]
    Listen {
        /// Name of the flag.
        flag: &'static str,
        /// Value as given.
        value: String,
    },
    /// A disposable disk without the addresses of the other masters.
    #[error(
        "--ephemeral is given without --peers: the next start begins with an empty directory, and then finds its cluster by \
         --peers alone; name all masters with --peers a,b,c, or leave out --ephemeral"
    )]
    EphemeralAlone,
    /// A value is out of its bounds.
    #[error("--{flag} {value} is out of bounds: {why}")]
    Bounds {
        /// Name of the flag.
        flag: &'static str,
        /// Value as given.
        value: String,
        /// The bounds.
        why: &'static str,
    },
}

impl MasterArgs {
    /// Checks the flags before anything is opened. Returns the list of peers, if one is given.
    ///
    /// # Errors
    /// [`MasterConfigError`]
    pub(crate) fn check(&self) -> Result<Option<PeerList>, MasterConfigError> {
        let listens = [
            ("listen", &self.listen),
            ("raft-listen", &self.raft_listen),
            ("http-listen", &self.http_listen),
        ];
        let metadata = self.metadata_address().map(|value| ("metadata-listen", value));
        for (flag, value) in listens.into_iter().chain(metadata) {
            if value.parse::<std::net::SocketAddr>().is_err() {
                return Err(MasterConfigError::Listen { flag, value: value.clone() });
            }
        }
        let spans = [
            ("put-deadline-max", self.put_deadline_max, PUT_DEADLINE_MAX),
            ("read-lease", self.read_lease, READ_LEASE),
            ("store-ttl", self.store_ttl, STORE_TTL),
        ];
        for (flag, span, bounds) in spans {
            if !bounds.hold(span.0) {
                return Err(MasterConfigError::Bounds { flag, value: span.to_string(), why: bounds.text });
            }
        }
        if !self.metrics_log.0.is_zero() && self.metrics_log.0 < METRICS_LOG_MIN {
            let value = self.metrics_log.to_string();
            return Err(MasterConfigError::Bounds { flag: "metrics-log", value, why: "0s, or at least 1s" });
        }
        if self.snapshot_log_bytes.0 < 1 << 20 {
            let value = self.snapshot_log_bytes.to_string();
            return Err(MasterConfigError::Bounds { flag: "snapshot-log-bytes", value, why: "at least 1mb" });
        }
        if self.peers.is_empty() {
            if self.ephemeral {
                return Err(MasterConfigError::EphemeralAlone);
            }
            return Ok(None);
        }
        Ok(Some(PeerList::parse(&self.peers, self.cluster_size)?))
    }

    /// Returns the listen address for `/metadata` alone.
    pub(crate) fn metadata_address(&self) -> Option<&String> {
        self.metadata_listen.as_ref().filter(|address| *address != "none")
    }

    /// Returns the replicated settings with which a new cluster starts.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let ms = |span: Span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
        Settings {
            put_deadline_max_ms: ms(self.put_deadline_max),
            read_lease_ms: ms(self.read_lease),
            store_ttl_ms: ms(self.store_ttl),
            read_policy: self.read_policy,
            ..Settings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clap::Parser as _;

    use super::*;
    use crate::config::peers::DEFAULT_RAFT_PORT;

    fn parse(args: &[&str]) -> Result<MasterArgs, clap::Error> {
        MasterArgs::try_parse_from(["mc-master"].iter().chain(args))
    }

    fn peers(list: &str) -> Vec<String> {
        let peers = parse(&["--peers", list]).unwrap().check().unwrap().unwrap();
        peers.listed().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_bare_name_gets_the_default_port_and_an_address_keeps_its_own() {
        assert_eq!(peers("a,b,c"), ["a:50055", "b:50055", "c:50055"]);
        assert_eq!(peers("c:7,10.0.0.2,A"), ["10.0.0.2:50055", "a:50055", "c:7"]);
        assert_eq!(peers("::1,[::2],[fd00::3]:7"), ["[::1]:50055", "[::2]:50055", "[fd00::3]:7"]);
        let twice = parse(&["--peers", "a,b", "--peers", "c"]).unwrap();
        assert_eq!(twice.peers, ["a", "b", "c"]);
    }

    #[test]
    fn one_flag_is_enough_and_the_rest_has_the_default_ports_and_directory() {
        let args = parse(&["--single"]).unwrap();
        assert_eq!(args.check().unwrap(), None);
        let port = |address: &str| address.parse::<SocketAddr>().unwrap().port();
        assert_eq!(
            [&args.listen, &args.raft_listen, &args.http_listen].map(|address| port(address)),
            [50051, DEFAULT_RAFT_PORT, 9003]
        );
        assert_eq!(args.data_dir, PathBuf::from("./mc-data/master"));
    }

    #[test]
    fn no_port_for_metadata_can_be_asked_for() {
        let metadata = |args: &[&str]| parse(args).unwrap().metadata_address().cloned();
        assert_eq!(metadata(&["--single", "--metadata-listen", "0.0.0.0:7"]).as_deref(), Some("0.0.0.0:7"));
        assert_eq!(metadata(&["--single", "--metadata-listen", "none"]), None);
        assert!(parse(&["--single", "--metadata-listen", "none"]).unwrap().check().is_ok());
    }

    #[test]
    fn each_mistake_names_its_flag() {
        for (args, words) in [
            (&["--peers", "a,b,A:50055"][..], "--peers names a:50055 twice"),
            (&["--peers", ","], "--peers is empty"),
            (&["--peers", "a,b:70000"], "--peers: `b:70000` is not an address"),
            (&["--peers", "[::1,b"], "--peers: `[::1` is not an address (a bracket is not closed)"),
            (&["--single", "--listen", "a:50051"], "--listen `a:50051` is not an address to listen on"),
            (&["--single", "--raft-listen", ":50055"], "--raft-listen `:50055`"),
            (&["--single", "--metadata-listen", "8080"], "--metadata-listen `8080`"),
            (&["--single", "--read-lease", "1s"], "--read-lease 1s is out of bounds: 5s to 60s"),
            (
                &["--single", "--metrics-log", "10ms"],
                "--metrics-log 10ms is out of bounds: 0s, or at least 1s",
            ),
            (&["--ephemeral"], "--ephemeral is given without --peers"),
            (&["--single", "--snapshot-log-bytes", "1kb"], "--snapshot-log-bytes 1KiB is out of bounds"),
        ] {
            let text = parse(args).unwrap().check().unwrap_err().to_string();
            assert!(text.contains(words), "{args:?}: {text}");
        }
        for args in [&["--single", "--peers", "a"][..], &["--cluster-size", "3"], &["--log-sync", "maybe"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
