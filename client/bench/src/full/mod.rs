//! `mc-bench full`: what eviction costs a pool that is full, beside the same pool with room.

mod load;
mod pool;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use mc_console::{Ended, Global, Output, connect, human_bytes, note};
use mc_testbed::{Cluster, Shape};
use mc_types::{ByteSize, Span};
use serde::Serialize;
use tokio::time::Instant;

use self::load::{Counts, Kind, Load, Until};
use self::pool::{Pool, Seen};
use crate::latencies::{median, round};
use crate::machine::Machine;
use crate::own_pool::{READY_WITHIN, refuse_masters};

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

/// Time after which a new leader frees evicted bytes at once: the default of `read-lease`, and some more. Before, leases
/// of an earlier leader may run, so it holds them.
const FREES_AFTER: Duration = Duration::from_secs(11);
/// Longest time in which a pool is filled.
const FILLED_WITHIN: Duration = Duration::from_secs(120);
/// Share of the pool up to which it has room: below the high watermark, from which on objects are evicted.
const HAS_ROOM: f64 = 0.9;
/// Watermarks with which the use of the pool is measured: the low one, then the high one.
const HIGH: [&str; 2] = ["0.98", "0.99"];
/// Pause between two looks at the pool while it fills to the high watermark.
const LOOK: Duration = Duration::from_millis(2);

/// Result of the command, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    rounds: u32,
    threads: u32,
    /// Measured time of each turn.
    turn_seconds: f64,
    loads: Vec<OfLoad>,
    machine: Machine,
}

/// Result of one kind of puts. Rates and times are medians of the rounds.
#[derive(Debug, Serialize)]
struct OfLoad {
    size_bytes: u64,
    batch: u64,
    pool_bytes: u64,
    /// Objects put in a second, in the pool with room.
    room_puts_s: f64,
    /// The same in the full pool, which evicts as many.
    full_puts_s: f64,
    /// The second, in per cent of the first, from the rounds' medians.
    full_percent: f64,
    /// 99th percentile of the gets beside these puts.
    room_get_p99_us: f64,
    full_get_p99_us: f64,
    full_get_p99_times: f64,
    /// Objects evicted in the turns with a full pool.
    evicted: u64,
    /// Puts that failed in turns with room, and in those with a full pool.
    room_failed: u64,
    full_failed: u64,
    /// Gets that failed or found nothing.
    missed: u64,
    /// Share of the pool in use when a put had to wait for the first time, with eviction-high-watermark 0.99: the most that
    /// was seen before. If no put had to wait while as many bytes were put as the pool has, the most that was seen at all.
    used_before_first_wait: f64,
    /// Whether a put had to wait.
    waited: bool,
}

pub(crate) async fn bench(global: &Global, args: &FullArgs, output: Output) -> Result<Ended> {
    refuse_masters(global, "bench full fills a pool and changes its watermarks, so it starts its own")?;
    let (mut loads, mut machine) = (Vec::new(), None);
    for kind in Kind::ALL {
        let segment = ByteSize(kind.bytes().div_ceil(2).next_multiple_of(4096));
        let shape = Shape { segment, data_dir: args.data_dir.clone(), ..Shape::three_and_two(0) };
        let mut cluster = Cluster::start(&shape)?;
        cluster.wait_ready(READY_WITHIN).await?;
        let frees_from = Instant::now() + FREES_AFTER;
        if machine.is_none() {
            machine = Some(Machine::measure(cluster.dir().to_owned()).await?);
        }
        note(&format!("waiting {FREES_AFTER:?} until the leader frees evicted bytes at once"));
        tokio::time::sleep_until(frees_from).await;
        let outcome = measured(&cluster, kind, args).await;
        loads.push(outcome.map_err(|error| cluster.explain(error))?);
    }
    let machine = machine.context("no load was measured, which is a bug in this bench")?;
    let turn_seconds = args.duration.0.as_secs_f64();
    let report =
        Report { bench: "full", rounds: args.rounds, threads: args.threads, turn_seconds, loads, machine };
    output.result(&report, || report.table());
    let good = report.loads.iter().all(|load| load.room_failed + load.full_failed + load.missed == 0);
    Ok(if good { Ended::Well } else { Ended::Negative })
}

async fn measured(cluster: &Cluster, kind: Kind, args: &FullArgs) -> Result<OfLoad> {
    let client = connect::client_with_leader(&cluster.addresses(), READY_WITHIN).await?;
    let pool = Pool::of(cluster).await?;
    let load = Arc::new(Load::new(client, kind, args.threads));
    let (mut room, mut full, mut evicted) = (Vec::new(), Vec::new(), 0.0);
    for round in 1..=args.rounds {
        note(&format!("puts of {}: round {round} of {}", human_bytes(kind.size), args.rounds));
        room.push(with_room(&pool, &load, args.duration.0).await?);
        fill(&pool, &load).await?;
        let before = pool.look().await?;
        full.push(load.run(Until { time: args.duration.0, objects: u64::MAX }).await?);
        evicted += pool.look().await?.evicted - before.evicted;
    }
    ensure!(evicted > 0.0, "the full pool evicted nothing: --duration is too short to fill it");
    let (used_before_first_wait, waited) = first_wait(&pool, &load).await?;
    let rate = |counts: &Counts| counts.puts as f64 / counts.took.as_secs_f64();
    let p99 = |counts: &Counts| counts.gets.quantile_us(0.99);
    let [room_puts_s, full_puts_s] = [&room, &full].map(|turns| median(turns.iter().map(rate).collect()));
    let [room_get_p99_us, full_get_p99_us] =
        [&room, &full].map(|turns| median(turns.iter().map(p99).collect()));
    let failed = |turns: &[Counts]| turns.iter().map(|counts| counts.failed).sum();
    Ok(OfLoad {
        size_bytes: kind.size,
        batch: kind.batch,
        pool_bytes: kind.bytes(),
        room_puts_s: round(room_puts_s),
        full_puts_s: round(full_puts_s),
        full_percent: round(100.0 * full_puts_s / room_puts_s),
        room_get_p99_us,
        full_get_p99_us,
        full_get_p99_times: hundredths(full_get_p99_us / room_get_p99_us),
        evicted: evicted as u64,
        room_failed: failed(&room),
        full_failed: failed(&full),
        missed: room.iter().chain(&full).map(|counts| counts.missed).sum(),
        used_before_first_wait: hundredths(100.0 * used_before_first_wait) / 100.0,
        waited,
    })
}

/// Puts for `time`, and empties the pool in between, outside of the measured time, before it is full.
async fn with_room(pool: &Pool, load: &Arc<Load>, time: Duration) -> Result<Counts> {
    let mut counts = Counts::new();
    while counts.took < time {
        let Seen { used, .. } = pool.empty().await?;
        let objects = ((HAS_ROOM - used) * load.kind.room as f64) as u64;
        counts.add(&load.run(Until { time: time - counts.took, objects }).await?);
    }
    Ok(counts)
}

/// Puts as many objects as the pool has room for, which fills it to the high watermark.
async fn fill(pool: &Pool, load: &Arc<Load>) -> Result<()> {
    let before = pool.look().await?;
    load.run(Until { time: FILLED_WITHIN, objects: load.kind.room }).await?;
    let after = pool.look().await?;
    ensure!(after.evicted > before.evicted, "the pool is not full after {FILLED_WITHIN:?}");
    Ok(())
}

/// Fills the emptied pool with a high watermark until a put has to wait, or as many bytes were put as the pool has.
async fn first_wait(pool: &Pool, load: &Arc<Load>) -> Result<(f64, bool)> {
    let before = pool.empty().await?;
    pool.set_watermarks(HIGH).await?;
    let filling = tokio::spawn({
        let load = load.clone();
        async move { load.run(Until { time: FILLED_WITHIN, objects: load.kind.room }).await }
    });
    let mut most = 0.0_f64;
    loop {
        let done = filling.is_finished();
        let seen = pool.look().await?;
        if seen.waited > before.waited || done {
            filling.await.context("the load failed")??;
            return Ok((most, seen.waited > before.waited));
        }
        most = most.max(seen.used);
        tokio::time::sleep(LOOK).await;
    }
}

/// Rounds to two decimal places.
fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Report {
    fn table(&self) -> String {
        let mut text = format!(
            "full: {} rounds, {} callers, medians of turns of {} s\n",
            self.rounds, self.threads, self.turn_seconds
        );
        for load in &self.loads {
            text += &format!(
                "  {} a call of {}, pool of {}\n    \
                 with room {:.0} puts/s, full {:.0} puts/s: {:.0} %, {} objects evicted, {} puts failed\n    \
                 gets p99 {:.0} us with room, {:.0} us full: {:.2} times, {} missed\n    \
                 {:.1} % in use before {} put had to wait\n",
                load.batch,
                human_bytes(load.size_bytes),
                human_bytes(load.pool_bytes),
                load.room_puts_s,
                load.full_puts_s,
                load.full_percent,
                load.evicted,
                load.room_failed + load.full_failed,
                load.room_get_p99_us,
                load.full_get_p99_us,
                load.full_get_p99_times,
                load.missed,
                100.0 * load.used_before_first_wait,
                if load.waited { "the first" } else { "any" },
            );
        }
        text + &self.machine.line() + "\n"
    }
}
