//! Measurements of a busy pool that the examples share: time spent on applying, and delays of calls and of sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mc_client::{Client, Put};
use mc_tests::{bulk_key, http_get};
use tokio::task::JoinHandle;

/// When something began, and how long it took.
type Spans = Arc<Mutex<Vec<(Instant, Duration)>>>;

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

/// Load on a pool: one reader, one writer, and a thread that only sleeps.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    spans: [Spans; 3],
    misses: Arc<AtomicU64>,
    callers: [JoinHandle<()>; 2],
    sleeper: std::thread::JoinHandle<()>,
}

/// Spans of a load that is over.
pub(crate) struct Loaded {
    pub(crate) reads: Vec<(Instant, Duration)>,
    pub(crate) puts: Vec<(Instant, Duration)>,
    /// By how much each sleep of 1 ms was too long.
    pub(crate) wakes: Vec<(Instant, Duration)>,
    /// Reads that found nothing.
    pub(crate) misses: u64,
}

impl Load {
    /// Begins a load on a pool of `objects`. The nth read is of the object `read(n)`; puts add further objects.
    pub(crate) fn begin(client: &Client, objects: u64, read: impl Fn(u64) -> u64 + Send + 'static) -> Self {
        let (over, spans, misses) =
            (Arc::new(AtomicBool::new(false)), <[Spans; 3]>::default(), Arc::new(AtomicU64::new(0)));
        let [reads, puts, wakes] = spans.clone();
        let reader = tokio::spawn(each(over.clone(), reads, {
            let (client, misses) = (client.clone(), misses.clone());
            move |n| {
                let (client, misses, n) = (client.clone(), misses.clone(), read(n));
                async move {
                    let there = client.exist(bulk_key(n)).await.expect("a read");
                    misses.fetch_add(u64::from(!there), Ordering::Relaxed);
                }
            }
        }));
        let writer = tokio::spawn(each(over.clone(), puts, {
            let client = client.clone();
            move |n| {
                let client = client.clone();
                async move {
                    assert_eq!(client.put(bulk_key(objects + n), b"v").await.expect("a put"), Put::Stored);
                }
            }
        }));
        let sleeper = std::thread::spawn({
            let over = over.clone();
            move || sleep_again_and_again(&over, &wakes)
        });
        Self { over, spans, misses, callers: [reader, writer], sleeper }
    }

    /// Returns the number of reads so far.
    #[allow(dead_code, reason = "not all examples need it")]
    pub(crate) fn reads(&self) -> usize {
        self.spans[0].lock().expect("no panic").len()
    }

    pub(crate) async fn end(self) -> Loaded {
        self.over.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.expect("no panic");
        }
        self.sleeper.join().expect("no panic");
        let [reads, puts, wakes] =
            self.spans.map(|spans| std::mem::take(&mut *spans.lock().expect("no panic")));
        Loaded { reads, puts, wakes, misses: self.misses.load(Ordering::Relaxed) }
    }
}

/// One call after the other.
async fn each<F: Future<Output = ()>>(over: Arc<AtomicBool>, spans: Spans, call: impl Fn(u64) -> F) {
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
fn sleep_again_and_again(over: &AtomicBool, spans: &Spans) {
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
