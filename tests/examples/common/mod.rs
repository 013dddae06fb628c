//! Measurements of a busy pool that the examples share: time spent on applying, and delays of calls and of sleeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mc_tests::http_get;

/// When something began, and how long it took.
pub(crate) type Spans = Arc<Mutex<Vec<(Instant, Duration)>>>;

/// The leader's counts at one moment.
pub(crate) struct Counts {
    /// How often applying a few entries took at most so many seconds.
    applies: Vec<(f64, u64)>,
    /// Reads that it answered by its lease.
    leased: u64,
    /// Reads before which it asked a quorum.
    asked: u64,
}

impl Counts {
    pub(crate) async fn of(http: &str) -> Self {
        let (_, text) = http_get(http, "/metrics").await.expect("a master's metrics");
        let bucket = |line: &str| {
            let (le, count) = line.strip_prefix("mc_raft_apply_seconds_bucket{le=\"")?.split_once("\"} ")?;
            Some((le.parse().ok()?, count.parse().ok()?))
        };
        let checks = |by: &str| {
            let name = format!("mc_master_leader_checks_total{{by=\"{by}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&*name)?.parse().ok()).unwrap_or(0)
        };
        Self {
            applies: text.lines().filter_map(bucket).collect(),
            leased: checks("lease"),
            asked: checks("quorum"),
        }
    }

    /// The counts after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let applies = self.applies.iter().zip(&before.applies);
        Self {
            applies: applies.map(|((le, now), (_, then))| (*le, now.saturating_sub(*then))).collect(),
            leased: self.leased.saturating_sub(before.leased),
            asked: self.asked.saturating_sub(before.asked),
        }
    }

    pub(crate) fn say(&self, when: &str) {
        let all = self.applies.last().map_or(0, |(_, count)| *count);
        let longest = match self.applies.iter().find(|(_, count)| *count == all) {
            Some((seconds, _)) if all > 0 => format!("at most {} ms of {all}", seconds * 1e3),
            _ => "(none)".to_owned(),
        };
        let (leased, asked) = (self.leased, self.asked);
        println!(
            "{when}: apply longest {longest}; checks of leadership: {leased} by lease, {asked} by a quorum"
        );
    }
}

/// One call after the other.
pub(crate) async fn each<F: Future<Output = ()>>(
    over: Arc<AtomicBool>,
    spans: Spans,
    call: impl Fn(u64) -> F,
) {
    for n in 0.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let began = Instant::now();
        call(n).await;
        spans.lock().expect("no panic").push((began, began.elapsed()));
    }
}

/// Notes by how much each sleep was too long.
pub(crate) fn sleep_again_and_again(over: &AtomicBool, spans: &Spans) {
    const SLEEP: Duration = Duration::from_millis(1);
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        std::thread::sleep(SLEEP);
        spans.lock().expect("no panic").push((began, began.elapsed().saturating_sub(SLEEP)));
    }
}

pub(crate) fn median(spans: &[(Instant, Duration)]) -> Duration {
    let mut took: Vec<Duration> = spans.iter().map(|(_, took)| *took).collect();
    took.sort_unstable();
    took.get(took.len() / 2).copied().unwrap_or_default()
}

pub(crate) fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
