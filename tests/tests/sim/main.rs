//! Masters in a simulation: the real code, from the client port down to the log writer, over simulated network, time,
//! disks and randomness, many schedules of faults one after the other, each given by its seed.
//!
//!     cargo test -p mc-tests --test sim                    # 200 seeds, or as many as fit into 3 minutes
//!     MC_SIM_SEED=17 cargo test -p mc-tests --test sim     # one seed; prints the hash of all that happened
//!     MC_SIM_SEEDS=10000 MC_SIM_SECONDS=0 cargo test -p mc-tests --test sim       # a soak
//!
//! `MC_SIM_FIRST` is the first seed (1), `MC_SIM_JOBS` how many run at once (one a processor), `MC_SIM_GO_ON` counts
//! violations instead of stopping at the first, and fewer seeds than `MC_SIM_LEAST` (1) are a failure. Of one seed, `MC_SIM_TRACE=file` writes down every event, and `RUST_LOG`
//! shows what the masters say.
//!
//! # How
//!
//! - **A machine** ([`machine`]) holds what survives, and a process: a [`mc_master::Master`] on a runtime of its own with
//!   one thread and paused time. Each step lets a millisecond pass on every machine, or a bit more or less where its clock
//!   runs at another rate. Dropping the runtime is `kill -9`; not stepping it is SIGSTOP.
//! - **The network** ([`net`]) is bytes between hosts with latency, cut in one direction or both, or with losses, which are
//!   stalls; tonic runs over it as over TCP. Not turmoil: its hosts share one rate of time, and it wants its own sockets
//!   where masters already take a [`mc_net::Network`].
//! - **Disks**: the log is on the memory disk of `mc_log`, written by the real writer ([`log`]); files are real
//!   ones in memory. A loss of power keeps what was synced and a part of the rest ([`files`]).
//! - **Randomness** comes from the seed for every library, and all clocks show the simulation's time: `getrandom` and
//!   `clock_gettime` of the C library are replaced ([`c_library`]).
//!   Each seed runs in a process of its own, so what another one left behind (counters, caches) plays no part. A seed
//!   prints the same hash each time; of every run of many, three are run again, and another hash is a failure.
//! - **Size**: three masters; in one schedule of four five, or three to which two with empty disks are added one by one.
//! - **Clients** ([`client`]) put, put if absent, revoke, read and remove, one key or several by a call, on one or two of three
//!   stores. The name of a key says how it is put: in a group, with a pin that stays or changes, within the quota of a
//!   tenant ([`keys`]). Values have a byte to some MiB, and in a quarter of the schedules there is no room for all ([`pool`]).
//!   All objects of another tenant are removed at once, or those that match a pattern, or their replicas on one store
//!   ([`removals`]). Entries of the table of keys and values are changed over HTTP ([`entries`]).
//! - **Real clients** ([`user`]), beside those, put, read and remove values with bytes.
//! - **Stores**: two are real ones ([`lender`]): link, heartbeats, grants, fence and segments. What clients send them comes
//!   over the simulated network in a format of the simulation's ([`carrier`]). A third one lends memory and does nothing else
//!   ([`store`]). It dies, or unmounts, and comes back with nothing: it never has the only replica.
//! - **Evictions**: in half of the schedules the pool evicts, in all of them a tenant at its
//!   quota. The committed entries are applied once more, which tells the oracle of each eviction ([`evictions`]).
//! - **Faults** ([`nemesis`]): kill, at rest or in the middle of a step, loss of power, errors of the log's disk, data
//!   directories without room, a disk that is taken (once in a schedule), SIGTERM, SIGSTOP, restart,
//!   clock rates within 5 %, slow disks; links between masters, and from and to clients, that are slow, lose segments, come
//!   and go, or are cut one way or both; restarts of the voters on whose promise a lease rests, and a leader that is
//!   stopped while answers are on their way to it: most schedules are mostly about one of the two. A newcomer is killed or
//!   cut off while it copies the log. In some schedules a person removes members, the leader as well, and adds them again or
//!   not ([`operator`]). Snapshots are taken every 8 to 200 entries.
//! - **By hand**: in some schedules a person restarts the masters one after the other at the end, each once the one before is
//!   ready and the cluster is healthy; puts go on being acknowledged ([`roller`]). In some the majority is lost for good at
//!   the very end, and the survivor is rescued: it has all that its log has ([`rescue`]).
//! - **Small bounds**: in a quarter of the schedules bounds on the work of a step are small, such as the entries of an append, the
//!   bytes of a piece of a snapshot, the puts that an entry ends and the objects of a choice of the evictor
//!   (`mc_index::bound`). So a few objects reach bounds that take thousands in production.
//! - **After every step** ([`invariants`]): at most one leader a term; no committed entry lost or changed, and every new
//!   leader has them all; no master that runs holds a lease once another was elected to a later term; replicas that applied
//!   the same entries are the same, byte by byte; every log can be read; no master gave up but for its disk, and no task
//!   panicked. On the disks ([`disks`]): every committed entry is synced on a majority of the voters, no synced vote goes
//!   back, and what a log has purged is in a synced snapshot. After
//!   every operation of a client ([`oracle`]): nothing older than what was acknowledged before it began, no value that was
//!   evicted, and no miss of a key that is neither removed nor evicted at times. A loss of one that is shows at the end: a
//!   miss needs a removal, or an eviction of exactly the value that was there.
//! - **At the end** all faults stop, and what was ordered by hand is done: within 10 s (30 s where a disk was taken, 90 s where
//!   a master was added, too) all members vote and follow one leader, every client's put is acknowledged and every key is
//!   answered; and the whole history must be linearizable. A history that the checker gives up is counted, and more than one
//!   in a hundred are a failure.
//! - **Of many seeds** it is counted how often they did what they are for ([`exercised`]): of 50 or more, each at least
//!   once, or the run is a failure.
//!
//! # That it bites
//!
//! `tests/planted.patch` puts known bugs back; `MC_BUG` chooses one. What was found is in docs/simulation.md.
#![allow(clippy::unwrap_used, reason = "a test")]

mod c_library;
mod caller;
mod carrier;
mod client;
mod disks;
mod entries;
mod evictions;
mod exercised;
mod files;
mod http;
mod invariants;
mod keys;
mod lender;
mod log;
mod machine;
mod nemesis;
mod net;
mod operator;
mod oracle;
mod panics;
mod pool;
mod puts;
mod reads;
mod removals;
#[path = "../common/replay.rs"]
mod replay;
mod rescue;
mod roller;
mod schedule;
mod seeds;
mod store;
mod trace;
mod user;
mod written;

use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use crate::schedule::Found;

fn main() -> ExitCode {
    // As the usual harness would: tests are listed and chosen by name.
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("sim: test");
        return ExitCode::SUCCESS;
    }
    let names: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    if !names.is_empty() && !names.iter().any(|name| "sim".contains(name.as_str())) {
        return ExitCode::SUCCESS;
    }
    match number("MC_SIM_SEED") {
        Some(seed) => one(seed),
        None => seeds::run(),
    }
}

/// A number of the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, which is no number")))
}

/// Runs one seed in this process.
fn one(seed: u64) -> ExitCode {
    if let Ok(path) = std::env::var("MC_SIM_TRACE") {
        let _ = trace::TRACE.set(std::fs::File::create(path).unwrap());
    }
    if std::env::var_os(EnvFilter::DEFAULT_ENV).is_some() {
        let filter = EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    panics::watch();
    if schedule::has_small_bounds(seed) {
        mc_index::use_small_bounds();
    }
    // It times the processor's clock by that of the system once, which stands still in the simulation.
    drop(mc_process::metrics::Registry::new());
    // A thread that has drawn nothing yet.
    let run = std::thread::spawn(move || {
        c_library::seed_this_thread(seed);
        schedule::run(seed)
    });
    let Ok(report) = run.join() else { return ExitCode::FAILURE };
    let (hash, events) = report.trace;
    println!("seed {seed}: trace {hash:016x} of {events} events: {}", report.summary);
    println!("{}", report.exercised);
    let violation = match report.found {
        Found::Nothing => return ExitCode::SUCCESS,
        Found::Undecided(why) => {
            println!("UNDECIDED: {why}");
            return ExitCode::from(seeds::UNDECIDED);
        }
        Found::Violation(violation) => violation,
    };
    for fault in report.faults {
        println!("  {fault}");
    }
    println!("VIOLATION in seed {seed}: {violation}");
    ExitCode::FAILURE
}
