use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mc_process::http;
use tokio_util::task::AbortOnDropHandle;

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
    fn the_calls_of_all_kinds_add_up() {
        let text = "mc_master_rpc_seconds_count{rpc=\"hello\"} 3\nmc_master_rpc_seconds_sum{rpc=\"hello\"} 0.5\n\
                    mc_master_rpc_seconds_count{rpc=\"heartbeat\"} 39\nmc_raft_rpc_seconds_count{rpc=\"vote\"} 9\n";
        assert_eq!(total(text), 42);
    }
}
