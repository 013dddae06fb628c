//! The command line: the benches, each with arguments of its own.

use clap::{Parser, Subcommand};
use mc_console::Global;

use crate::allocator::AllocatorArgs;
use crate::failover::FailoverArgs;
use crate::fleet::FleetArgs;
use crate::flood::FloodArgs;
use crate::full::FullArgs;
use crate::load::LoadArgs;
use crate::replay::ReplayArgs;
use crate::restart::RestartArgs;
use crate::restart_store::RestartStoreArgs;
use crate::transfer::args::TransferArgs;
use crate::transfer::store::TransferStoreArgs;

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
    /// Kill a store that keeps its memory, and restart it; starts a pool of its own
    ///
    /// The bench fills the store, kills it by SIGKILL and starts it again at once, --rounds times. It reports the time from the kill to
    /// the first object that a client gets, what its calls answered meanwhile, and checks every object at the end.
    RestartStore(RestartStoreArgs),
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
    /// Measure how much a tenant notices of others who flood the pool; starts a pool of its own, which requires TLS
    ///
    /// One client gets objects at a steady pace: alone, and beside callers that flood the leader with calls of another tenant beyond
    /// its limit, with calls without a certificate, with handshakes, and with handshakes that they don't finish.
    Flood(FloodArgs),
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
            | Self::RestartStore(_)
            | Self::Replay(_)
            | Self::Fleet(_)
            | Self::Flood(_)
            | Self::Allocator(_)
            | Self::Full(_)
            | Self::Transfer(_)
            | Self::TransferStore(_) => None,
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
