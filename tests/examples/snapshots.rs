//! Cost of a snapshot of a large index for those who use the pool: how long it takes to build, to send and install, and
//! to start from, and the longest that applying took, and that a leased read and a put had to wait meanwhile. Real
//! masters on this machine, and beside them a thread that only sleeps: how late it wakes is what the machine itself
//! makes callers wait.
//!
//!     cargo build --release --bin mcctl
//!     cargo run --release -p mc-tests --example snapshots 1000000

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mc_tests::{Cluster, fill, is_ready, until_within};

use common::{Counts, Load, Loaded, median, ms};

/// Snapshots of the leader that are watched.
const SNAPSHOTS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(600);

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
    let filled = fill(&client, 0..objects).await;
    let leader = cluster.leader().await;
    println!("{objects} objects put in {:.1} s", filled.as_secs_f64());

    // A store whose heartbeats a busy machine delays is suspected for a moment, and reads of its objects miss meanwhile.
    let load = Load::begin(&client, objects, move |n| n * 7_919 % objects);
    let leader_http = cluster.master_http(leader).to_owned();
    let idle = Counts::of(&leader_http).await;
    let built = watch_builds(&cluster.master_dir(leader).join("snapshots")).await;
    let while_built = Counts::of(&leader_http).await.since(&idle);

    // A follower that lacks what was purged is sent one.
    let follower = (leader + 1) % 3;
    let mut events = vec![("it is killed", Instant::now())];
    cluster.masters[follower].kill9();
    watch_builds(&cluster.master_dir(leader).join("snapshots")).await;
    cluster.masters[follower].start();
    let before = Counts::of(&leader_http).await;
    let sent_from = Instant::now();
    let mut said = String::new();
    until_within(PATIENCE, "the follower takes a snapshot", async || {
        let output = cluster.masters[follower].output();
        said = output.lines().find(|line| line.contains("took a snapshot")).unwrap_or_default().to_owned();
        !said.is_empty()
    })
    .await;
    let sent = (sent_from, sent_from.elapsed());
    let while_sent = Counts::of(&leader_http).await.since(&before);
    events.extend([("it starts again and is sent a snapshot", sent_from), ("it has that", Instant::now())]);

    cluster.masters[follower].kill9();
    cluster.masters[follower].start();
    let restarted = Instant::now();
    let address = cluster.master_http(follower).to_owned();
    until_within(PATIENCE, "the follower is ready", async || is_ready(&address).await).await;
    let restart = restarted.elapsed();
    let disk = cluster.master_dir(follower).join("log");
    let log_bytes = files(&disk).iter().map(|path| len(path)).sum::<u64>() as f64;
    events.extend([("it is killed and starts again", restarted), ("it is ready", Instant::now())]);
    let Loaded { reads, puts, wakes, misses } = load.end().await;
    let in_all = Counts::of(&leader_http).await.since(&idle);

    println!("{misses} reads missed");
    let bytes = newest(&cluster.master_dir(leader).join("snapshots")).map_or(0, |path| len(&path));
    let mut times: Vec<Duration> = built.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    println!("a snapshot has {:.1} MB", bytes as f64 / 1e6);
    println!("built in {:.2} s (median of {})", times[times.len() / 2].as_secs_f64(), times.len());
    println!("sent and installed in {:.2} s: {}", sent.1.as_secs_f64(), field(&said));
    println!(
        "a restart is ready after {:.2} s; the log has {:.0} MB",
        restart.as_secs_f64(),
        log_bytes / 1e6
    );
    while_built.say("while the leader builds");
    while_sent.say("while it sends");
    in_all.say("in all");
    for (what, spans) in
        [("read", &reads), ("put (two commits)", &puts), ("a sleep of 1 ms, too long by", &wakes)]
    {
        let during = |windows: &[(Instant, Duration)]| slowest(spans, windows);
        println!(
            "{what}: longest {:.1} ms while the leader builds, {:.1} ms while it sends, {:.1} ms in all of {} calls, \
             p50 {:.2} ms",
            ms(during(&built)),
            ms(during(&[sent])),
            ms(spans.iter().map(|(_, took)| *took).max().unwrap_or_default()),
            spans.len(),
            ms(median(spans)),
        );
        let longest = spans.iter().max_by_key(|(_, took)| *took);
        if let Some((at, _)) = longest {
            println!("    the longest began {}", among(*at, &events));
        }
    }
}

/// When something was, by what happened to the follower before.
fn among(at: Instant, events: &[(&str, Instant)]) -> String {
    match events.iter().rev().find(|(_, event)| *event <= at) {
        Some((what, event)) => format!("{:.0} ms after: {what}", ms(at - *event)),
        None => "before anything happened to the follower".to_owned(),
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

/// Reads a field of the follower's log line.
fn field(line: &str) -> String {
    line.split_whitespace().filter(|word| word.contains('=')).collect::<Vec<_>>().join(" ")
}
