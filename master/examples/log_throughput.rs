//! What the Raft log makes durable a second, beside a plain file with `fdatasync` on the same disk: alternated rounds
//! in one run, medians, and the ratio. Also sled with large segments and values, for the choice in
//! docs/adr/0003-log-on-sled.md, and the cost of noting the committed index with every batch.
//!
//! ```text
//! cargo run --release -p mc-master --example log_throughput [DIRECTORY]
//! ```

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_base::NodeId;
use mc_master::log::{BatchTimes, LogObserver, LogOptions, LogStore, SledOptions, encode_payload};
use mc_master::raft::{Entry, LogId, Proposal, TypeConfig, Vote};
use openraft::EntryPayload;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use parking_lot::Mutex;

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(200);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let base = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(base)?;
    println!(
        "log throughput on {}: {ROUNDS} alternated rounds of {ROUND:?} each, medians",
        dir.path().display()
    );
    println!("{:>7} {:>5}  {:<34} {:>11} {:>9} {:>6}", "entry", "batch", "log", "entries/s", "p50", "ratio");
    for bytes in [256, 20_000] {
        for batch in [1, 16, 256] {
            compare(dir.path(), bytes, batch).await?;
        }
    }
    Ok(())
}

/// One run over all contenders, for one size of entries and of batches.
async fn compare(dir: &Path, bytes: usize, batch: u64) -> anyhow::Result<()> {
    let mut file = PlainFile { file: File::create(dir.join(format!("file-{bytes}-{batch}")))?, next: 0 };
    let mut logs = Vec::new();
    let small = SledOptions { segment_size: 512 << 10, value_cap: 7 << 10, ..SledOptions::default() };
    let middle = SledOptions::default();
    let large = SledOptions { segment_size: 8 << 20, value_cap: 112 << 10, ..SledOptions::default() };
    for (name, sled, commits) in [
        ("sled, 512 KiB segments, 7 KiB", small, false),
        ("sled, 2 MiB segments, 28 KiB (ours)", middle.clone(), false),
        ("  the same, committed noted too", middle, true),
        ("sled, 8 MiB segments, 112 KiB", large, false),
    ] {
        let at = dir.join(format!("{}-{bytes}-{batch}", logs.len()));
        logs.push(Log::open(name, &at, sled, commits).await?);
    }
    let mut rates = vec![Vec::new(); logs.len() + 1];
    let mut latencies = vec![Vec::new(); logs.len() + 1];
    for turn in 0..ROUNDS {
        // Each begins a round in its turn: what one leaves to the disk to do then slows every other alike.
        for place in 0..=logs.len() {
            let at = (turn + place) % rates.len();
            let begun = Instant::now();
            let mut entries = 0;
            while begun.elapsed() < ROUND {
                let one = Instant::now();
                match at.checked_sub(1).and_then(|at| logs.get_mut(at)) {
                    None => file.append(bytes, batch)?,
                    Some(log) => log.append(bytes, batch).await?,
                }
                latencies[at].push(one.elapsed());
                entries += batch;
            }
            rates[at].push(entries as f64 / begun.elapsed().as_secs_f64());
        }
    }
    let file_rate = median(&mut rates[0]);
    let line = |name: &str, rate: f64, p50: Duration| {
        let ratio = rate / file_rate;
        println!("{bytes:>5} B {batch:>5}  {name:<34} {rate:>11.0} {:>6} us {ratio:>6.2}", p50.as_micros());
    };
    line("plain file + fdatasync", file_rate, median_time(&mut latencies[0]));
    for (at, log) in (1..).zip(logs) {
        line(log.name, median(&mut rates[at]), median_time(&mut latencies[at]));
        let (entries, times) = (log.next, log.times.lock().summary());
        log.store.close().await;
        println!("{:>15}{times}, {} B on disk an entry", "", disk_bytes(&log.dir)? / entries);
        std::fs::remove_dir_all(&log.dir)?;
    }
    Ok(())
}

/// The least that a durable log can do: encode, one write, one sync, for each batch.
struct PlainFile {
    file: File,
    next: u64,
}

impl PlainFile {
    fn append(&mut self, bytes: usize, batch: u64) -> anyhow::Result<()> {
        let mut out = Vec::with_capacity(batch as usize * (bytes + 32));
        for index in self.next..self.next + batch {
            let payload = encode_payload(&entry(index, bytes));
            out.extend_from_slice(&crc32c::crc32c(&payload).to_be_bytes());
            out.extend_from_slice(&payload);
        }
        self.next += batch;
        self.file.write_all(&out)?;
        self.file.sync_data()?;
        Ok(())
    }
}

/// The log as openraft uses it: one append, one callback.
struct Log {
    name: &'static str,
    store: LogStore,
    next: u64,
    commits: bool,
    times: Arc<Mutex<Times>>,
    dir: PathBuf,
}

impl Log {
    async fn open(name: &'static str, dir: &Path, sled: SledOptions, commits: bool) -> anyhow::Result<Self> {
        let times = Arc::new(Mutex::new(Times::default()));
        let observer = Arc::new(Observer(Arc::clone(&times)));
        let options = LogOptions { observer, ..LogOptions::default() };
        let (mut store, _) = LogStore::open_sled(dir, sled, options).await?;
        store.save_vote(&Vote::new(1, NodeId(1))).await?;
        Ok(Self { name, store, next: 0, commits, times, dir: dir.to_owned() })
    }

    async fn append(&mut self, bytes: usize, batch: u64) -> anyhow::Result<()> {
        let entries: Vec<Entry> = (self.next..self.next + batch).map(|index| entry(index, bytes)).collect();
        self.next += batch;
        let (sender, done) = TypeConfig::oneshot();
        self.store.append(entries, IOFlushed::signal(sender)).await?;
        if self.commits
            && let Some(last) = self.next.checked_sub(batch + 1)
        {
            self.store.save_committed(Some(LogId::new_term_index(1, last))).await?;
        }
        done.await??;
        Ok(())
    }
}

fn entry(index: u64, bytes: usize) -> Entry {
    // Not compressible to nothing, and different from entry to entry.
    let mut body = vec![0; bytes];
    let mut word = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in body.chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    Entry {
        log_id: LogId::new_term_index(1, index),
        payload: EntryPayload::Normal(Proposal(Bytes::from(body))),
    }
}

#[derive(Default)]
struct Times {
    insert: Vec<Duration>,
    flush: Vec<Duration>,
    sync: Vec<Duration>,
}

impl Times {
    fn summary(&mut self) -> String {
        let p50 = |times: &mut Vec<Duration>| median_time(times).as_micros();
        let (insert, flush, sync) = (p50(&mut self.insert), p50(&mut self.flush), p50(&mut self.sync));
        format!("p50 of its parts: insert {insert} us, flush {flush} us, fdatasync {sync} us")
    }
}

struct Observer(Arc<Mutex<Times>>);

impl LogObserver for Observer {
    fn batch(&self, times: &BatchTimes) {
        let mut all = self.0.lock();
        if times.entries > 0 {
            all.insert.push(times.insert);
            all.flush.push(times.flush);
            all.sync.push(times.sync);
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn median_time(values: &mut [Duration]) -> Duration {
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn disk_bytes(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        bytes += if file.file_type()?.is_dir() { disk_bytes(&file.path())? } else { file.metadata()?.len() };
    }
    Ok(bytes)
}
