//! What a snapshot of a large index costs those who use the pool: how long it takes to build, to send and install, and to
//! start from, and the longest that a leased read and a put had to wait meanwhile. Real masters on this machine.
//!
//!     cargo build --release --bin mcctl
//!     cargo run --release -p mc-tests --example snapshots 1000000

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mc_client::{Client, Put, PutOptions};
use mc_tests::{Cluster, http_get, until_within};

const BATCH: u64 = 128;
const FILLERS: u64 = 4;
/// Snapshots of the leader that are watched.
const SNAPSHOTS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(600);

/// Keys of 100 bytes, as inference engines make them.
fn key(n: u64) -> String {
    format!("{:-<100}", format!("model-8b/tp0/layer-group-0/{n:016x}"))
}

/// When something began, and how long it took.
type Spans = Arc<Mutex<Vec<(Instant, Duration)>>>;

#[tokio::main]
async fn main() {
    let objects: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    // A handful while the index is filled, and one every few seconds of single puts.
    let every = (objects / 512).max(2_000).to_string();
    let cluster = Cluster::builder().segment(&format!("{}mb", ((objects * 64) >> 20) + 256)).master_args([
        "--snapshot-log-entries",
        &every,
        "--keep-log-entries",
        "1000",
    ]);
    let mut cluster = cluster.start().await;
    let client = cluster.client().await;
    let filled = fill(&client, objects).await;
    let leader = cluster.leader().await;
    println!("{objects} objects put in {:.1} s", filled.as_secs_f64());

    // What goes on beside the snapshots: one reader, one writer.
    let over = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicU64::new(objects));
    let (reads, puts) = (Spans::default(), Spans::default());
    // A store whose heartbeats a busy machine delays is suspected for a moment, and what it holds is not offered meanwhile.
    let misses = Arc::new(AtomicU64::new(0));
    let reader = tokio::spawn(each(over.clone(), reads.clone(), {
        let (client, misses) = (client.clone(), misses.clone());
        move |n| {
            let (client, misses) = (client.clone(), misses.clone());
            async move {
                let there = client.exist(key(n * 7_919 % objects)).await.expect("a read");
                misses.fetch_add(u64::from(!there), Ordering::Relaxed);
            }
        }
    }));
    let writer = tokio::spawn(each(over.clone(), puts.clone(), {
        let client = client.clone();
        move |_| {
            let (client, n) = (client.clone(), next.fetch_add(1, Ordering::Relaxed));
            async move { assert_eq!(client.put(key(n), b"v").await.expect("a put"), Put::Stored) }
        }
    }));
    let built = watch_builds(&cluster.master_dir(leader).join("snapshots")).await;

    // A follower that lacks what was purged is sent one.
    let follower = (leader + 1) % 3;
    cluster.masters[follower].kill9();
    watch_builds(&cluster.master_dir(leader).join("snapshots")).await;
    cluster.masters[follower].start();
    let sent_from = Instant::now();
    let mut said = String::new();
    until_within(PATIENCE, "the follower takes a snapshot", async || {
        let output = cluster.masters[follower].output();
        said = output.lines().find(|line| line.contains("took a snapshot")).unwrap_or_default().to_owned();
        !said.is_empty()
    })
    .await;
    let sent = (sent_from, sent_from.elapsed());

    cluster.masters[follower].kill9();
    cluster.masters[follower].start();
    let restarted = Instant::now();
    let address = cluster.master_http(follower).to_owned();
    until_within(PATIENCE, "the follower is ready", async || {
        matches!(http_get(&address, "/readyz").await, Ok((200, _)))
    })
    .await;
    let restart = restarted.elapsed();
    over.store(true, Ordering::Relaxed);
    let _ = tokio::join!(reader, writer);

    println!("{} reads missed", misses.load(Ordering::Relaxed));
    let bytes = newest(&cluster.master_dir(leader).join("snapshots")).map_or(0, |path| len(&path));
    let mut times: Vec<Duration> = built.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    println!("a snapshot has {:.1} MB", bytes as f64 / 1e6);
    println!("built in {:.2} s (median of {})", times[times.len() / 2].as_secs_f64(), times.len());
    println!("sent and installed in {:.2} s: {}", sent.1.as_secs_f64(), field(&said));
    println!("a restart is ready after {:.2} s", restart.as_secs_f64());
    for (what, spans) in [("leased read", &reads), ("put (two commits)", &puts)] {
        let spans = spans.lock().expect("no panic");
        let during = |windows: &[(Instant, Duration)]| slowest(&spans, windows);
        println!(
            "{what}: longest {:.1} ms while the leader builds, {:.1} ms while it sends, {:.1} ms in all of {} calls, \
             p50 {:.2} ms",
            ms(during(&built)),
            ms(during(&[sent])),
            ms(spans.iter().map(|(_, took)| *took).max().unwrap_or_default()),
            spans.len(),
            ms(median(&spans)),
        );
    }
}

async fn fill(client: &Client, objects: u64) -> Duration {
    let began = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let fillers = (0..FILLERS).map(|_| {
        let (client, next) = (client.clone(), next.clone());
        tokio::spawn(async move {
            loop {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                if from >= objects {
                    return;
                }
                let keys: Vec<String> = (from..(from + BATCH).min(objects)).map(key).collect();
                let puts: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), &b"v"[..])).collect();
                for put in client.batch_put(&puts, &PutOptions::default()).await {
                    assert_eq!(put.expect("a put"), Put::Stored);
                }
            }
        })
    });
    for filler in fillers.collect::<Vec<_>>() {
        filler.await.expect("a filler ends");
    }
    began.elapsed()
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

/// When each of the next snapshots was begun, and how long it took: its file is named `.partial` until it counts.
async fn watch_builds(dir: &Path) -> Vec<(Instant, Duration)> {
    let mut built = Vec::new();
    let mut begun = None;
    until_within(PATIENCE, "snapshots are built", async || {
        let partial = files(dir).iter().any(|path| path.extension().is_some_and(|ext| ext == "partial"));
        match (partial, begun) {
            (true, None) => begun = Some(Instant::now()),
            (false, Some(at)) => {
                built.push((at, at.elapsed()));
                begun = None;
            }
            _ => {}
        }
        built.len() == SNAPSHOTS
    })
    .await;
    built
}

fn files(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn newest(dir: &Path) -> Option<PathBuf> {
    files(dir).into_iter().filter(|path| path.extension().is_some_and(|ext| ext != "partial")).max()
}

fn len(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}

fn slowest(spans: &[(Instant, Duration)], windows: &[(Instant, Duration)]) -> Duration {
    let meets = |(at, took): &(Instant, Duration)| {
        windows.iter().any(|(from, long)| *at < *from + *long && *at + *took > *from)
    };
    spans.iter().filter(|span| meets(span)).map(|(_, took)| *took).max().unwrap_or_default()
}

fn median(spans: &[(Instant, Duration)]) -> Duration {
    let mut took: Vec<Duration> = spans.iter().map(|(_, took)| *took).collect();
    took.sort_unstable();
    took.get(took.len() / 2).copied().unwrap_or_default()
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// What the follower said of it.
fn field(line: &str) -> String {
    line.split_whitespace().filter(|word| word.contains('=')).collect::<Vec<_>>().join(" ")
}
