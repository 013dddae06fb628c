use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mc_process::http;
use tokio_util::task::AbortOnDropHandle;

/// CPU time and memory of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// Per cent of one core.
    pub(super) cpu_percent: f64,
    pub(super) rss_mib: f64,
}

impl Usage {
    /// Measures the CPU time over `span`, and the resident memory at its end.
    pub(super) async fn over(pid: u32, span: Duration) -> Result<Self> {
        let (before, began) = (cpu_seconds(pid)?, Instant::now());
        tokio::time::sleep(span).await;
        let cpu = (cpu_seconds(pid)? - before) / began.elapsed().as_secs_f64();
        Ok(Self { cpu_percent: tenths(cpu * 100.0), rss_mib: tenths(rss_mib(pid)?) })
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn cpu_seconds(pid: u32) -> Result<f64> {
    let text = read(pid, "stat")?;
    let ticks = cpu_ticks(&text).with_context(|| format!("/proc/{pid}/stat is not as expected: {text}"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Reads user and system time from a `/proc/PID/stat`, fields 14 and 15. The name, field 2, may contain spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn rss_mib(pid: u32) -> Result<f64> {
    let text = read(pid, "status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.context("/proc/PID/status of a measured process has no VmRSS: it has probably ended")? / 1024.0)
}

fn read(pid: u32, what: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{what}");
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

/// Background counter of the calls to masters, read from their metrics.
pub(super) struct Calls {
    peak: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

/// Time between two reads of the masters' metrics. Rates are averages over it.
const EACH: Duration = Duration::from_secs(1);
/// Time limit for a master's metrics. A slower master is left out of that read.
const PATIENCE: Duration = Duration::from_millis(500);

impl Calls {
    pub(super) fn count(masters: Vec<String>) -> Self {
        let peak = Arc::new(AtomicU64::new(0));
        let highest = peak.clone();
        let task = tokio::spawn(async move {
            let mut seen: Vec<Option<(u64, Instant)>> = vec![None; masters.len()];
            loop {
                let mut rate = 0.0;
                for (master, seen) in masters.iter().zip(&mut seen) {
                    let Some(calls) = calls(master).await else { continue };
                    let now = Instant::now();
                    let (before, at) = seen.replace((calls, now)).unwrap_or((calls, now));
                    // A restarted master counts from zero, so it adds nothing this time.
                    let fresh = calls.saturating_sub(before) as f64;
                    rate += fresh / now.duration_since(at).max(EACH).as_secs_f64();
                }
                highest.fetch_max(rate as u64, Ordering::Relaxed);
                tokio::time::sleep(EACH).await;
            }
        });
        Self { peak, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) async fn peak(self) -> u64 {
        // Include the last second.
        tokio::time::sleep(EACH + PATIENCE).await;
        self.peak.load(Ordering::Relaxed)
    }
}

async fn calls(master: &str) -> Option<u64> {
    let answer = tokio::time::timeout(PATIENCE, http::request("GET", master, "/metrics")).await;
    let (_, text) = answer.ok()?.ok()?;
    Some(total(&text))
}

/// Sums the calls of all kinds in a master's metrics.
fn total(text: &str) -> u64 {
    let counts = text.lines().filter_map(|line| {
        line.strip_prefix("mc_master_rpc_seconds_count{")?.rsplit_once(' ')?.1.parse::<u64>().ok()
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_brackets_does_not_shift_the_fields() {
        let stat = "12 (mc (a) b) S 1 12 12 0 -1 4194560 900 0 0 0 37 5 0 0 20 0 4 0 100 1000 50";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("12 (cut"), None);
    }

    #[test]
    fn the_calls_of_all_kinds_add_up() {
        let text = "mc_master_rpc_seconds_count{rpc=\"hello\"} 3\nmc_master_rpc_seconds_sum{rpc=\"hello\"} 0.5\n\
                    mc_master_rpc_seconds_count{rpc=\"heartbeat\"} 39\nmc_raft_rpc_seconds_count{rpc=\"vote\"} 9\n";
        assert_eq!(total(text), 42);
    }
}
