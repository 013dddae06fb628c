//! Bytes that the Raft log makes durable a second, beside a plain file with `fdatasync` on the same disk: alternated
//! rounds in one run, medians, and the ratio. The file is written by a thread of its own, as the log is: with the
//! caller syncing by itself the two wait for a CPU differently, and on a busy machine the file came out ten times
//! slower than the log that does strictly more. For the same reason each block prints how long tasks were waiting for a
//! CPU while it ran: above a few percent the throughput says more of the machine's other work than of the log, and the
//! p10 of the latencies, the batches that met no wait, is what can be compared. Also sled with large segments and
//! values, for the choice in docs/adr/0003-log-on-sled.md, and the cost of noting the committed index with every batch.
//!
//! ```text
//! cargo run --release -p mc-log --example throughput [DIRECTORY]
//! ```

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_log::{
    BatchTimes, Entry, LogId, LogObserver, LogOptions, LogStore, Proposal, SledOptions, TypeConfig, Vote,
    encode_payload,
};
use mc_types::NodeId;
use openraft::EntryPayload;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;

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
    println!(
        "{:>7} {:>5}  {:<36} {:>10} {:>6} {:>9} {:>9} {:>6}",
        "entry", "batch", "log", "entries/s", "ratio", "p10", "p50", "p10 r."
    );
    for bytes in [256, 20_000] {
        for batch in [1, 16, 256] {
            compare(dir.path(), bytes, batch).await?;
        }
    }
    Ok(())
}

/// One run over all contenders, for one size of entries and of batches.
async fn compare(dir: &Path, bytes: usize, batch: u64) -> anyhow::Result<()> {
    let mut file = PlainFile::create(&dir.join(format!("file-{bytes}-{batch}")))?;
    let stalled = CpuStall::now();
    let mut logs = Vec::new();
    let small = SledOptions { segment_size: 512 << 10, value_cap: 7 << 10, ..SledOptions::default() };
    let ours = SledOptions::default();
    let wide = SledOptions { value_cap: 28 << 10, ..SledOptions::default() };
    let large = SledOptions { segment_size: 8 << 20, value_cap: 112 << 10, ..SledOptions::default() };
    for (name, sled, commits) in [
        ("sled, 512 KiB segments, 7 KiB", small, false),
        ("sled, 2 MiB segments, 7 KiB (ours)", ours.clone(), false),
        ("  the same, committed noted too", ours, true),
        ("sled, 2 MiB segments, 28 KiB", wide, false),
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
                    None => file.append(bytes, batch).await?,
                    Some(log) => log.append(bytes, batch).await?,
                }
                latencies[at].push(one.elapsed());
                entries += batch;
            }
            rates[at].push(entries as f64 / begun.elapsed().as_secs_f64());
        }
    }
    let file_rate = median(&mut rates[0]);
    let file_p10 = percentile(&mut latencies[0], 10);
    let line = |name: &str, rate: f64, times: &mut Vec<Duration>| {
        let (p10, p50) = (percentile(times, 10), percentile(times, 50));
        println!(
            "{bytes:>5} B {batch:>5}  {name:<36} {rate:>10.0} {:>6.2} {:>6} us {:>6} us {:>6.2}",
            rate / file_rate,
            p10.as_micros(),
            p50.as_micros(),
            file_p10.as_secs_f64() / p10.as_secs_f64()
        );
    };
    println!("{:>15}tasks waited for a CPU {} of the time", "", stalled.since());
    line("plain file + fdatasync", file_rate, &mut latencies[0]);
    for (at, log) in (1..).zip(logs) {
        line(log.name, median(&mut rates[at]), &mut latencies[at]);
        let (entries, times) = (log.next, log.times.lock().summary());
        log.store.close().await;
        println!("{:>15}{times}, {} B on disk an entry", "", disk_bytes(&log.dir)? / entries);
        std::fs::remove_dir_all(&log.dir)?;
    }
    Ok(())
}

/// Baseline of the benchmark: the minimal work of a durable log, on a thread of its own. For each batch it encodes,
/// writes once and syncs once.
struct PlainFile {
    batches: mpsc::Sender<(Vec<Entry>, oneshot::Sender<std::io::Result<()>>)>,
    next: u64,
}

impl PlainFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::create(path)?;
        let (batches, queued) = mpsc::channel::<(Vec<Entry>, oneshot::Sender<std::io::Result<()>>)>();
        std::thread::spawn(move || {
            while let Ok((entries, done)) = queued.recv() {
                let mut out = Vec::new();
                for entry in &entries {
                    let payload = encode_payload(entry);
                    out.extend_from_slice(&crc32c::crc32c(&payload).to_be_bytes());
                    out.extend_from_slice(&payload);
                }
                drop(done.send(file.write_all(&out).and_then(|()| file.sync_data())));
            }
        });
        Ok(Self { batches, next: 0 })
    }

    async fn append(&mut self, bytes: usize, batch: u64) -> anyhow::Result<()> {
        let entries = (self.next..self.next + batch).map(|index| entry(index, bytes)).collect();
        self.next += batch;
        let (done, durable) = oneshot::channel();
        self.batches.send((entries, done))?;
        Ok(durable.await??)
    }
}

/// The kernel's account of the time in which some task waited for a CPU.
struct CpuStall {
    begun: Instant,
    micros: Option<u64>,
}

impl CpuStall {
    fn now() -> Self {
        Self { begun: Instant::now(), micros: Self::total() }
    }

    fn total() -> Option<u64> {
        let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
        text.lines().next()?.rsplit_once("total=")?.1.trim().parse().ok()
    }

    fn since(&self) -> String {
        let stalled = self.micros.zip(Self::total()).map(|(before, after)| after - before);
        match stalled {
            Some(micros) => {
                format!("{:.0} %", micros as f64 / self.begun.elapsed().as_micros() as f64 * 100.0)
            }
            None => "(unknown here)".to_owned(),
        }
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
    // Bytes that do not compress well and differ between entries.
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
        let p50 = |times: &mut Vec<Duration>| percentile(times, 50).as_micros();
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

fn percentile(values: &mut [Duration], percent: usize) -> Duration {
    values.sort();
    values.get(values.len() * percent / 100).copied().unwrap_or_default()
}

fn disk_bytes(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        bytes += if file.file_type()?.is_dir() { disk_bytes(&file.path())? } else { file.metadata()?.len() };
    }
    Ok(bytes)
}
