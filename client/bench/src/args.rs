//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mc_console::Global;
use mc_testbed::Ending;
use mc_types::{ByteSize, Span};

/// Measure the pool, and the limits of this machine in the same run.
#[derive(Debug, Parser)]
#[command(name = "mc-bench", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Put new objects
    Put(LoadArgs),
    /// Get objects that were put before
    Get(LoadArgs),
    /// Check whether objects exist
    Exist(LoadArgs),
    /// Look up the places of objects without reading them
    Lookup(LoadArgs),
    /// Run four gets for every put
    Mixed(LoadArgs),
    /// Kill the leader repeatedly under load; starts a pool of its own
    ///
    /// The bench runs --rounds rounds. It reports the time without a leader (median and longest) and checks every
    /// acknowledged put. It does not report rates: the writers pause between calls, so that the pool never fills.
    Failover(FailoverArgs),
    /// Kill all masters of a filled pool and restart them; starts a pool of its own
    ///
    /// The bench reports the time from the restart to a leader, and until every master and store serves.
    Restart(RestartArgs),
    /// Replay a recorded workload through a full pool, and compare its hit ratio with LRU, FIFO and the optimum
    ///
    /// The bench drives the masters' index and eviction in this process, with the times of the trace. With --bytes it
    /// also starts a pool and moves the blocks through it, as fast as it can. A hit is a block that the pool holds together with all
    /// earlier blocks of the request.
    Replay(ReplayArgs),
    /// Run hundreds of stores and thousands of clients on three masters, and kill the leader, then all masters
    ///
    /// Stores and clients run in this process, with the product's own code; the masters are child processes. Each client
    /// gets one object a second. Raise the limit on open files first: a store takes about 10 descriptors, a client 3.
    Fleet(FleetArgs),
    /// Measure how much of the pool's memory objects can use, and how fast the masters place them
    ///
    /// The bench drives the masters' index in this process, without memory behind it. It fills the pool until an object
    /// finds no room, evicts 5 % of the objects at random, and goes on. Utilization is the share of the capacity that
    /// objects take when one finds no room.
    Allocator(AllocatorArgs),
    /// Compare a pool that is kept full by eviction with the same pool while it has room; starts a pool of its own
    ///
    /// The bench puts objects of 256 bytes, 128 a call, and objects of 1 MiB, beside one caller that reads. Turns with room
    /// and turns without alternate. Between turns the pool is emptied by eviction, outside of the measured time.
    Full(FullArgs),
    /// Measure a transport alone, beside what this machine can do: --transport tcp, shm or rdma
    ///
    /// One client moves bytes to or from one store in a process of its own, without masters. Each round also measures the
    /// limit. TCP: the best of 1, 2 and 4 plain streams between two processes, in writes of 1 MiB. Shared memory: copying
    /// between two regions of the size of --region, 1 MiB at a time. RDMA: perftest (ib_read_bw for puts and ib_write_bw for gets,
    /// since the store moves the bytes).
    Transfer(TransferArgs),
    /// The store of `bench transfer`
    #[command(hide = true)]
    TransferStore(TransferStoreArgs),
}

impl Bench {
    /// Returns the number of a load bench's callers; `None` for every other bench.
    pub(crate) fn callers(&self) -> Option<u32> {
        match self {
            Self::Put(load)
            | Self::Get(load)
            | Self::Exist(load)
            | Self::Lookup(load)
            | Self::Mixed(load) => Some(load.threads),
            Self::Failover(_)
            | Self::Restart(_)
            | Self::Replay(_)
            | Self::Fleet(_)
            | Self::Allocator(_)
            | Self::Full(_)
            | Self::Transfer(_)
            | Self::TransferStore(_) => None,
        }
    }
}

/// Load that a bench puts on the pool.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadArgs {
    /// Number of concurrent callers
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) threads: u32,
    /// Number of objects in each call
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) batch: u32,
    /// Size of each object
    #[arg(long, default_value = "1mb", value_name = "SIZE")]
    pub(crate) size: ByteSize,
    /// Duration of the measurement
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub(crate) duration: Span,
    /// Number of objects in the pool: benches that read use them, a put bench removes them after each round of as many puts [default: 512 MiB of objects, at most 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) keys: Option<u64>,
    /// Read buffers of each caller, used in turn
    ///
    /// The buffers of a few callers fit into the processor's cache, those of a thousand callers do not. To compare the two,
    /// give the few callers as many buffers in total as the thousand have.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) buffers: u32,
    /// Start one master and one store instead of three and two
    #[arg(long)]
    pub(crate) single: bool,
    /// Parent of the directory for data and logs, where fdatasync is measured too [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FailoverArgs {
    /// Number of times that the leader is killed
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,
    /// Signal that ends the leader: kill is SIGKILL, term is SIGTERM, on which it hands over
    #[arg(long, value_enum, default_value_t = Ending::Kill, value_name = "SIGNAL")]
    pub(crate) signal: Ending,
    /// Number of concurrent writers
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// Number of objects in each put
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) batch: u32,
    /// Size of each object
    #[arg(long, default_value = "4kb", value_name = "SIZE")]
    pub(crate) size: ByteSize,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RestartArgs {
    /// Number of objects to put before the restart; the last 200,000 stay in the pool
    #[arg(long, default_value_t = 2_200_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) puts: u64,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The workload: JSON lines with `timestamp` in milliseconds and `hash_ids`, plain or gzipped
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Number of blocks that fit into the pool before eviction starts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) capacity_blocks: u64,
    /// Start a pool too, and move blocks of this size through it
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<ByteSize>,
    /// Lose the leader after this share of the requests, above 0 and below 1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) kill_leader_at: Option<f64>,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Parses a share above 0 and below 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("it must be a number above 0 and below 1, such as 0.5".to_owned()),
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FleetArgs {
    /// Number of stores
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) stores: u32,
    /// Number of clients, each with its own connections
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=50_000))]
    pub(crate) clients: u32,
    /// Duration of each measurement of the leader's CPU time: at rest, then under the clients' gets
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub(crate) rest: Span,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AllocatorArgs {
    /// Sizes of the objects
    #[arg(long, value_enum, default_value_t = AllocatorWorkload::Kv, value_name = "WORKLOAD")]
    pub(crate) workload: AllocatorWorkload,
    /// Number of stores, each with one segment of 64 GiB, or less if the pool would have more than 1 TiB
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) segments: u32,
    /// Replicas of each object, at most as many as segments
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) replicas: u8,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FullArgs {
    /// Number of turns with room, and of turns with a full pool
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Duration of each turn
    #[arg(long, default_value = "3s", value_name = "DURATION")]
    pub(crate) duration: Span,
    /// Number of concurrent writers
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// Parent of the directory for data and logs, where fdatasync is measured too [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TransferArgs {
    /// Bytes of each operation
    #[arg(long, default_value = "1mb", value_name = "SIZE")]
    pub(crate) size: ByteSize,
    /// Number of operations in each call
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) batch: u32,
    /// Number of calls at a time, all of one client
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) callers: u32,
    /// get: from the store. put: to it
    #[arg(long, value_enum, default_value_t = Direction::Get)]
    pub(crate) direction: Direction,
    /// Whether the client computes checksums of all bytes
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    pub(crate) checksum: OnOff,
    /// Memory of the client's buffers
    ///
    /// allocated: by the transport, so that stores of the host map it, and others reach it by RDMA. other: any other, which is
    /// copied once more.
    #[arg(long, value_enum, default_value_t = Memory::Allocated)]
    pub(crate) memory: Memory,
    /// Memory of the store that the operations go through in turn
    #[arg(long, default_value = "1gb", value_name = "SIZE")]
    pub(crate) region: ByteSize,
    /// Time the calls also beside streams of gets of this size, each of which the same client makes one after the other
    #[arg(long, value_name = "SIZE")]
    pub(crate) beside: Option<ByteSize>,
    /// Number of the streams of --beside
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) streams: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Memory {
    Allocated,
    Other,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TransferStoreArgs {
    #[arg(long)]
    pub(crate) region: ByteSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Get,
    Put,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnOff {
    On,
    Off,
}

/// Sizes of the objects in the allocator's bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AllocatorWorkload {
    /// 3,274,752 bytes: one page of KV cache
    Kv,
    /// Calls of 1 to 128 pages of 3,274,752 and 658,432 bytes each
    Paired,
    /// One size in each pool: powers of two from 4 KiB to 16 MiB, and 17 bytes or a tenth beside them
    Uniform,
    /// Any size from 1 KiB to 16 MiB
    Random,
}

impl AllocatorWorkload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Paired => "paired",
            Self::Uniform => "uniform",
            Self::Random => "random",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_durations_read_as_everywhere() {
        let cli = Cli::parse_from(["mc-bench", "put", "--size", "64KiB", "--duration", "500ms"]);
        let Bench::Put(load) = cli.bench else { panic!("put") };
        assert_eq!((load.size.0, load.duration.0.as_millis()), (65_536, 500));
        assert!(Cli::try_parse_from(["mc-bench", "put", "--size", "1.5gb"]).is_err());
    }

    #[test]
    fn the_page_of_figures_lists_every_bench() {
        let page = include_str!("../../../docs/benchmarks.md");
        let shown = |bench: &&clap::Command| !bench.is_hide_set() && bench.get_name() != "help";
        for bench in Cli::command().get_subcommands().filter(shown) {
            let about = bench.get_about().unwrap().to_string();
            let begins = format!("| `mcctl bench {}", bench.get_name());
            let listed = |line: &str| line.starts_with(&begins) && line.ends_with(&format!("| {about} |"));
            assert!(page.lines().any(listed), "docs/benchmarks.md lacks {begins} ...` | {about} |");
        }
    }
}
