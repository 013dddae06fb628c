//! Result of a bench, as JSON and as a table.

use std::time::Duration;

use mc_console::human_bytes;
use serde::Serialize;

use super::LoadArgs;
use super::parts::Parts;
use crate::latencies::{Latencies, round};
use crate::machine::Machine;

/// Result of a load bench.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) threads: u32,
    pub(crate) batch: u32,
    pub(crate) size_bytes: u64,
    pub(crate) keys: u64,
    pub(crate) seconds: f64,
    /// Number of objects whose operation succeeded.
    pub(crate) ops: u64,
    /// Number of objects that failed, missed or were refused; not counted in `ops`.
    pub(crate) failed: u64,
    /// Number of objects with wrong bytes. Every 64th read is compared, after its call was timed.
    pub(crate) wrong: u64,
    pub(crate) ops_s: f64,
    /// Throughput of values; absent where no values move.
    pub(crate) mib_s: Option<f64>,
    /// Median time of a call with `batch` objects.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    pub(crate) machine: Machine,
    /// Throughput relative to the loopback stream, in per cent.
    pub(crate) loopback_percent: Option<f64>,
    /// Breakdown of a put's time, if the bench puts one key at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<Parts>,
}

/// Counters of a bench, before the report.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub(crate) ops: u64,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
    pub(crate) latencies: Latencies,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self { ops: 0, failed: 0, wrong: 0, latencies: Latencies::new() }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.failed += other.failed;
        self.wrong += other.wrong;
        self.latencies.add(&other.latencies);
    }
}

impl Report {
    /// Computes the figures from counts; `moves_bytes` is false for exist and lookup.
    pub(crate) fn new(
        bench: &'static str,
        args: &LoadArgs,
        keys: u64,
        counts: &Counts,
        took: Duration,
        machine: Machine,
        moves_bytes: bool,
    ) -> Self {
        let seconds = took.as_secs_f64();
        let moved = || (counts.ops * args.size.0) as f64 / (1 << 20) as f64 / seconds;
        let mib_s = moves_bytes.then(moved);
        Self {
            bench,
            threads: args.threads,
            batch: args.batch,
            size_bytes: args.size.0,
            keys,
            seconds: round(seconds),
            ops: counts.ops,
            failed: counts.failed,
            wrong: counts.wrong,
            ops_s: round(counts.ops as f64 / seconds),
            mib_s: mib_s.map(round),
            p50_us: counts.latencies.quantile_us(0.5),
            p99_us: counts.latencies.quantile_us(0.99),
            max_us: counts.latencies.max_us(),
            machine,
            loopback_percent: mib_s.map(|mib_s| round(100.0 * mib_s / machine.loopback_mib_s)),
            parts: None,
        }
    }

    /// Formats the figures for people.
    pub(crate) fn table(&self) -> String {
        let moved = match (self.mib_s, self.loopback_percent) {
            (Some(mib_s), Some(percent)) => {
                format!("  {mib_s:.0} MiB/s ({percent:.0} % of a loopback stream)")
            }
            _ => String::new(),
        };
        let mut text = format!(
            "{}: {} threads, {} a call, {} each, {:.1} s\n  {:.0} ops/s{moved}\n  \
             a call: p50 {:.0} us  p99 {:.0} us  max {:.0} us\n  {} objects, {} failed, {} wrong\n{}\n",
            self.bench,
            self.threads,
            self.batch,
            human_bytes(self.size_bytes),
            self.seconds,
            self.ops_s,
            self.p50_us,
            self.p99_us,
            self.max_us,
            self.ops,
            self.failed,
            self.wrong,
            self.machine.line(),
        );
        if let Some(parts) = &self.parts {
            text.push_str(&parts.table());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Bench, Cli};
    use clap::Parser;

    fn report() -> Report {
        let cli = Cli::parse_from(["mc-bench", "put", "--size", "1mb"]);
        let Bench::Put(args) = cli.bench else { panic!("put") };
        let mut counts = Counts::new();
        counts.ops = 1_000;
        for ms in 1..=100 {
            counts.latencies.record(Duration::from_millis(ms));
        }
        let machine = Machine { loopback_mib_s: 2_000.0, memcpy_mib_s: 9_000.0, fdatasync_p50_us: 900.0 };
        Report::new("put", &args, 512, &counts, Duration::from_secs(2), machine, true)
    }

    #[test]
    fn percentiles_and_rates_are_those_of_the_counts() {
        let report = report();
        assert_eq!((report.ops_s, report.mib_s, report.loopback_percent), (500.0, Some(500.0), Some(25.0)));
        let near = |got: f64, ms: f64| (got / 1e3 - ms).abs() < ms * 0.002;
        assert!(
            near(report.p50_us, 50.0) && near(report.p99_us, 99.0) && near(report.max_us, 100.0),
            "{report:?}"
        );
        let table = report.table();
        assert!(table.contains("500 ops/s") && table.contains("fdatasync p50 900 us"), "{table}");
    }

    #[test]
    fn the_json_names_every_figure_and_its_unit() {
        let json = serde_json::to_value(report()).unwrap();
        for key in [
            "ops_s",
            "mib_s",
            "p50_us",
            "p99_us",
            "max_us",
            "failed",
            "machine",
            "threads",
            "batch",
            "size_bytes",
        ] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(json["machine"]["loopback_mib_s"], 2_000.0);
        assert!(json.get("parts").is_none(), "only where they were measured");
    }
}
