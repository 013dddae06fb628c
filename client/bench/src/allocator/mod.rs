//! `mc-bench allocator`: how much of the pool's memory objects can use, and how fast they are placed.

mod index;
mod sizes;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use mc_console::{Ended, Global, Output, Progress, human_bytes};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use self::index::Index;
use self::sizes::{AllocatorWorkload, Sizes};
use crate::own_pool::refuse_masters;

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

/// Number of times that a pool is full in the bench.
const FULL: u64 = 40;
/// The same for each size of the uniform workload.
const FULL_UNIFORM: u64 = 10;

/// Result of the command, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    workload: AllocatorWorkload,
    segments: u32,
    replicas: u8,
    /// Bytes of each segment; of the largest one, where sizes have a pool each.
    segment_bytes: u64,
    /// Share of the capacity that live bytes take when an object finds no room: the mean of all such moments.
    utilization_avg: f64,
    /// The lowest of them.
    utilization_min: f64,
    /// Number of such moments. After each, a twentieth of the objects is evicted at random.
    full: u64,
    /// Objects placed in a second of processor time, by applying entries that start puts.
    allocs_per_s: f64,
    /// Median time of such an entry, by the wall clock, for each object in it.
    alloc_p50_ns: u64,
    /// Number of objects placed.
    objects: u64,
    /// Number of objects in the pool when it was full last; absent where sizes have a pool each.
    #[serde(skip_serializing_if = "Option::is_none")]
    live_objects: Option<u64>,
    /// Each size of the uniform workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sizes: Vec<OfSize>,
}

/// Result of one size of the uniform workload.
#[derive(Debug, Serialize)]
struct OfSize {
    size_bytes: u64,
    segment_bytes: u64,
    utilization_avg: f64,
    utilization_min: f64,
}

/// Counts of one run.
struct Run {
    segment: u64,
    utilization: Vec<f64>,
    placed: u64,
    /// Processor time of applying the entries that placed them.
    cpu: Duration,
    live: u64,
}

pub(crate) async fn bench(global: &Global, args: &AllocatorArgs, output: Output) -> Result<Ended> {
    refuse_masters(global, "bench allocator drives an index in this process")?;
    if u32::from(args.replicas) > args.segments {
        bail!(
            "--replicas {} is more than --segments {}: each replica lies on another store, which has one segment",
            args.replicas,
            args.segments
        );
    }
    let args = args.clone();
    let report =
        tokio::task::spawn_blocking(move || measured(&args)).await.context("the bench panicked")??;
    output.result(&report, || report.table());
    Ok(Ended::Well)
}

fn measured(args: &AllocatorArgs) -> Result<Report> {
    let runs = Sizes::of(args.workload);
    let full = if runs.len() > 1 { FULL_UNIFORM } else { FULL };
    let mut progress = Progress::new("filling", full * runs.len() as u64);
    let mut calls = Vec::new();
    let mut done = Vec::new();
    for (sizes, number) in runs.into_iter().zip(0..) {
        let segment = sizes.segment(args.workload, args.segments.into());
        let seen = |times| progress.set(number * full + times);
        done.push((sizes, run(sizes, segment, full, args, &mut calls, seen)?));
    }
    Ok(Report::new(args, &done, calls))
}

/// Fills a pool until it was full so many times.
fn run(
    sizes: Sizes,
    segment: u64,
    full: u64,
    args: &AllocatorArgs,
    calls: &mut Vec<Duration>,
    mut seen: impl FnMut(u64),
) -> Result<Run> {
    let mut index = Index::new(args.segments.into(), segment, args.replicas)?;
    let capacity = index.capacity() as f64;
    let mut rng = SmallRng::seed_from_u64(1);
    let mut run = Run { segment, utilization: Vec::new(), placed: 0, cpu: Duration::ZERO, live: 0 };
    let mut wanted = Vec::new();
    while (run.utilization.len() as u64) < full {
        if wanted.is_empty() {
            wanted = sizes.call(&mut rng);
        }
        let called = index.put(&wanted);
        run.placed += called.placed;
        run.cpu += called.cpu;
        calls.push(called.took / u32::try_from(wanted.len())?);
        if let Some(bytes) = called.full_at {
            run.utilization.push(bytes as f64 / capacity);
            run.live = index.objects();
            seen(run.utilization.len() as u64);
            index.evict(&mut rng);
        }
        wanted = called.left;
    }
    Ok(run)
}

impl Run {
    fn average(&self) -> f64 {
        self.utilization.iter().sum::<f64>() / self.utilization.len().max(1) as f64
    }

    fn lowest(&self) -> f64 {
        self.utilization.iter().copied().fold(1.0, f64::min)
    }
}

impl Report {
    fn new(args: &AllocatorArgs, runs: &[(Sizes, Run)], mut calls: Vec<Duration>) -> Self {
        let of_size = |(sizes, run): &(Sizes, Run)| match sizes {
            Sizes::One(size_bytes) if runs.len() > 1 => Some(OfSize {
                size_bytes: *size_bytes,
                segment_bytes: run.segment,
                utilization_avg: rounded(run.average()),
                utilization_min: rounded(run.lowest()),
            }),
            _ => None,
        };
        let all = || runs.iter().map(|(_, run)| run);
        let objects: u64 = all().map(|run| run.placed).sum();
        calls.sort_unstable();
        let cpu: Duration = all().map(|run| run.cpu).sum();
        Self {
            bench: "allocator",
            workload: args.workload,
            segments: args.segments,
            replicas: args.replicas,
            segment_bytes: all().map(|run| run.segment).max().unwrap_or_default(),
            utilization_avg: rounded(all().map(Run::average).sum::<f64>() / runs.len().max(1) as f64),
            utilization_min: rounded(all().map(Run::lowest).fold(1.0, f64::min)),
            full: all().map(|run| run.utilization.len() as u64).sum(),
            allocs_per_s: (objects as f64 / cpu.as_secs_f64().max(1e-9)).round(),
            alloc_p50_ns: calls.get(calls.len() / 2).map_or(0, Duration::as_nanos) as u64,
            objects,
            live_objects: (runs.len() == 1).then(|| all().map(|run| run.live).sum()),
            sizes: runs.iter().filter_map(of_size).collect(),
        }
    }

    fn table(&self) -> String {
        let mut text = format!(
            "allocator, workload {}: {} segments of {}, {} a key\n  \
             used when full {:.2} % on average, {:.2} % at worst, of {} times\n  \
             {:.0} objects placed in a second of processor time, {} in all; p50 {} ns an object\n",
            self.workload.name(),
            self.segments,
            human_bytes(self.segment_bytes),
            replicas(self.replicas),
            100.0 * self.utilization_avg,
            100.0 * self.utilization_min,
            self.full,
            self.allocs_per_s,
            self.objects,
            self.alloc_p50_ns,
        );
        for size in &self.sizes {
            text += &format!(
                "  {:>12} B in segments of {}: {:.2} %, {:.2} % at worst\n",
                size.size_bytes,
                human_bytes(size.segment_bytes),
                100.0 * size.utilization_avg,
                100.0 * size.utilization_min
            );
        }
        text
    }
}

fn replicas(count: u8) -> String {
    if count == 1 { "1 replica".to_owned() } else { format!("{count} replicas") }
}

/// Rounds to five decimal places.
fn rounded(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}
