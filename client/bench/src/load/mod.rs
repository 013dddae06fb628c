//! `mc-bench put|get|exist|lookup|mixed`: measures one kind of call under load.

mod alone;
mod compare;
mod parts;
mod pool;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use mc_client::{Client, GetInto, Put, PutOptions, RegisteredMemory};
use mc_console::{Ended, Global, Interrupted, Interrupts, Output, Progress, connect, note};
use mc_testbed::{Block, Keyspace, Shape};
use mc_types::{ByteSize, Span};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use crate::machine::Machine;
use parts::Watch;
use pool::Pool;
use report::{Counts, Report};

/// Load that a bench puts on the pool.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadArgs {
    /// Number of concurrent callers
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) threads: u32,
    /// Number of objects in each call
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) batch: u32,
    /// Size of each object
    #[arg(long, default_value = "1mb", value_name = "SIZE")]
    pub(crate) size: ByteSize,
    /// Duration of the measurement
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub(crate) duration: Span,
    /// Number of objects in the pool: benches that read use them, a put bench removes them after each round of as many puts [default: 512 MiB of objects, at most 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) keys: Option<u64>,
    /// Read buffers of each caller, used in turn
    ///
    /// The buffers of a few callers fit into the processor's cache, those of a thousand callers do not. To compare the two,
    /// give the few callers as many buffers in total as the thousand have.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) buffers: u32,
    /// Start one master and one store instead of three and two
    #[arg(long)]
    pub(crate) single: bool,
    /// Parent of the directory for data and logs, where fdatasync is measured too [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Measure pools of its own without TLS, with proofs of grants alone, and with TLS in turn, and print the ratios; needs three times
    /// the memory
    #[arg(long)]
    pub(crate) tls: bool,
}

/// Kind of calls that a load bench makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get,
    Exist,
    Lookup,
    Mixed,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Exist => "exist",
            Self::Lookup => "lookup",
            Self::Mixed => "mixed",
        }
    }

    fn moves_bytes(self) -> bool {
        !matches!(self, Self::Exist | Self::Lookup)
    }
}

/// Returns the default of `--keys`: 512 MiB of objects, at most 4,096, and at least one call's worth for each thread.
fn default_keys(args: &LoadArgs) -> u64 {
    let calls = u64::from(args.threads) * u64::from(args.batch);
    ((512 << 20) / args.size.0.max(1)).clamp(1, 4_096).max(calls)
}

pub(crate) async fn bench(
    kind: Kind,
    global: &Global,
    args: &LoadArgs,
    output: Output,
    interrupts: &mut Interrupts,
) -> Result<Ended> {
    if args.size.0 == 0 {
        bail!("--size is 0: an object has at least one byte");
    }
    let keys = args.keys.unwrap_or_else(|| default_keys(args));
    // Twice the objects in use: a mixed load puts objects beside those that it reads, and removed bytes may be held for
    // a lease.
    let mut shape = Shape::three_and_two(2 * keys * args.size.0.next_multiple_of(4096));
    shape.data_dir.clone_from(&args.data_dir);
    if args.single {
        (shape.masters, shape.stores, shape.segment) = (1, 1, ByteSize(shape.segment.0 * 2));
    }
    if args.tls {
        return compare::compare(kind, global, args, &shape, output, interrupts).await;
    }
    let begun = async {
        let pool = Pool::open(global, &shape).await?;
        let machine = Machine::measure(pool.disk(args.data_dir.as_deref())).await?;
        let client = connect::client_at(&pool.masters(), global).await?;
        anyhow::Ok((pool, machine, Load::new(kind, args.clone(), client)?))
    };
    let (pool, machine, load) = interrupts.until(begun).await??;
    let load = Arc::new(load);

    let measure = load.measure(kind, &pool);
    let measured = match &pool {
        // Its processes end with this one, and the objects with them.
        Pool::Own(_) => interrupts.until(measure).await??,
        Pool::Given(_) => interrupts.wind_down(load.leave_nothing(measure), &load.over).await??,
    };
    let (counts, took, watch) = measured;
    let mut report = Report::new(kind.name(), args, keys, &counts, took, machine, kind.moves_bytes());
    if let Some(watch) = watch {
        report.parts = measured_or_noted(interrupts.until(watch.end(&load.client, &counts.latencies)).await?);
    }
    output.result(&report, || report.table());
    Ok(if counts.failed == 0 && counts.wrong == 0 { Ended::Well } else { Ended::Negative })
}

/// Copies values into memory that stores reach, as an engine has its own.
fn allocated(client: &Client, values: Vec<Bytes>) -> Result<Vec<RegisteredMemory>> {
    let mut rest = client.allocate(values.iter().map(Bytes::len).sum())?;
    let copy = |value: Bytes| {
        let later = rest.split_off(value.len());
        let mut memory = std::mem::replace(&mut rest, later);
        memory.as_mut_slice().copy_from_slice(&value);
        memory
    };
    Ok(values.into_iter().map(copy).collect())
}

/// Turns an error into `None` with a note: masters of a given pool may not expose their metrics. The rest of the bench
/// still counts.
fn measured_or_noted<T>(outcome: Result<T>) -> Option<T> {
    outcome.inspect_err(|why| note(&format!("the parts of a put are not measured: {why:#}"))).ok()
}

struct Load {
    client: Client,
    args: LoadArgs,
    keys: u64,
    /// First part of the names of all objects.
    run: String,
    space: Keyspace,
    /// Values of the measured puts, shared by all blocks, so that generating values is not measured. Reads use only
    /// blocks that [`Load::populate`] put.
    values: Vec<RegisteredMemory>,
    /// Next block that has not been put. Blocks below `keys` are those that are read.
    next: AtomicU64,
    /// Whether a signal asked for the end: callers finish the call that they are in.
    over: AtomicBool,
}

impl Load {
    fn new(kind: Kind, args: LoadArgs, client: Client) -> Result<Self> {
        let keys = args.keys.unwrap_or_else(|| default_keys(&args));
        let run = format!("bench/{:016x}", rand::random::<u64>());
        let space = Keyspace::uniform(run.clone(), args.size.0 as usize);
        let values = if matches!(kind, Kind::Put | Kind::Mixed) { args.batch.into() } else { 0 };
        let values = allocated(&client, (0..values).map(|block| space.object(block).1).collect())?;
        let (next, over) = (AtomicU64::new(keys), AtomicBool::new(false));
        Ok(Self { client, args, keys, values, run, space, next, over })
    }

    /// Puts what is to be read, makes the calls, and removes the objects.
    async fn measure(self: &Arc<Self>, kind: Kind, pool: &Pool) -> Result<(Counts, Duration, Option<Watch>)> {
        if kind != Kind::Put {
            self.populate().await?;
        }
        let one_at_a_time = kind == Kind::Put && self.args.threads == 1 && self.args.batch == 1;
        let watch = match one_at_a_time {
            true => measured_or_noted(Watch::begin(&pool.masters(), &self.client).await),
            false => None,
        };
        let mut progress = Progress::new("measuring", self.args.duration.0.as_millis() as u64);
        let (counts, took) = self.calls(kind, &mut progress).await?;
        drop(progress);
        self.remove(0..self.next.load(Ordering::Relaxed)).await;
        Ok((counts, took, watch))
    }

    /// Makes the calls that are measured.
    async fn calls(self: &Arc<Self>, kind: Kind, progress: &mut Progress) -> Result<(Counts, Duration)> {
        match kind {
            Kind::Put => Ok(self.put_rounds(progress).await),
            _ => self.steady(kind, progress).await,
        }
    }

    /// Runs `measure`, and removes the objects if it fails.
    async fn leave_nothing<T>(&self, measure: impl Future<Output = Result<T>>) -> Result<T> {
        let measured = measure.await;
        if measured.is_err() {
            self.remove(0..self.next.load(Ordering::Relaxed)).await;
        }
        measured
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Puts the objects that the calls later read.
    async fn populate(&self) -> Result<()> {
        let mut progress = Progress::new("putting the objects to read", self.keys);
        let blocks: Vec<Block> = (0..self.keys).collect();
        for batch in self.space.batches(&blocks) {
            if self.is_over() {
                return Err(Interrupted.into());
            }
            let objects: Vec<_> = batch.iter().map(|block| self.space.object(*block)).collect();
            for result in self.client.batch_put(&objects, &PutOptions::default()).await {
                match result.context("cannot put the objects that are to be read")? {
                    Put::Stored | Put::AlreadyExists => {}
                    Put::LocalOnly => bail!("the leader was lost while the objects to be read were put"),
                }
            }
            progress.set(batch.last().map_or(0, |block| block + 1));
        }
        Ok(())
    }

    /// Puts in rounds. After each round all its keys are removed, outside the measured time, because a full pool
    /// refuses puts.
    async fn put_rounds(self: &Arc<Self>, progress: &mut Progress) -> (Counts, Duration) {
        let (mut counts, mut took) = (Counts::new(), Duration::ZERO);
        while took < self.args.duration.0 && !self.is_over() {
            let first = self.next.fetch_add(self.keys, Ordering::Relaxed);
            let cursor = Arc::new(AtomicU64::new(first));
            let left = self.args.duration.0 - took;
            let start = Instant::now();
            let caller = || {
                let (load, cursor) = (self.clone(), cursor.clone());
                async move {
                    let mut counts = Counts::new();
                    loop {
                        let from = cursor.fetch_add(load.args.batch.into(), Ordering::Relaxed);
                        let to = (from + u64::from(load.args.batch)).min(first + load.keys);
                        if from >= to || start.elapsed() >= left || load.is_over() {
                            return counts;
                        }
                        load.put(from..to, &mut counts).await;
                    }
                }
            };
            for part in self.spread(caller).await {
                counts.add(&part);
            }
            took += start.elapsed();
            self.remove(first..first + self.keys).await;
            progress.set(took.as_millis() as u64);
        }
        (counts, took)
    }

    /// Makes calls on existing objects until the time is over.
    async fn steady(self: &Arc<Self>, kind: Kind, progress: &mut Progress) -> Result<(Counts, Duration)> {
        let rooms = self.rooms(kind).await?;
        let start = Instant::now();
        let seed = AtomicU64::new(1);
        let caller = || {
            let load = self.clone();
            let mut room = rooms.lock().pop().unwrap_or_default();
            let mut rng = SmallRng::seed_from_u64(seed.fetch_add(1, Ordering::Relaxed));
            async move {
                let mut counts = Counts::new();
                while start.elapsed() < load.args.duration.0 && !load.is_over() {
                    match kind {
                        Kind::Exist => load.exist(&mut rng, &mut counts).await,
                        Kind::Lookup => load.lookup(&mut rng, &mut counts).await,
                        Kind::Mixed if rng.random_bool(0.2) => load.put_one_more(&mut counts).await,
                        _ => {
                            let batch = load.args.batch as usize;
                            room.rotate_left(batch);
                            load.get(&mut rng, &mut room[..batch], &mut counts).await;
                        }
                    }
                }
                counts
            }
        };
        let watch = async {
            loop {
                progress.set(start.elapsed().as_millis() as u64);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let parts = tokio::select! {
            parts = self.spread(caller) => parts,
            never = watch => never,
        };
        let took = start.elapsed();
        let mut counts = Counts::new();
        for part in parts {
            counts.add(&part);
        }
        Ok((counts, took))
    }

    /// Runs each caller as a separate task. A call then runs on the thread of its connection, as in a real client.
    async fn spread<F>(&self, caller: impl Fn() -> F) -> Vec<Counts>
    where
        F: Future<Output = Counts> + Send + 'static,
    {
        let callers: JoinSet<Counts> = (0..self.args.threads).map(|_| caller()).collect();
        callers.join_all().await
    }

    async fn put(&self, blocks: std::ops::Range<Block>, counts: &mut Counts) {
        let objects: Vec<_> =
            blocks.zip(&self.values).map(|(block, value)| (self.space.key(block), value)).collect();
        let start = Instant::now();
        let results = self.client.batch_put(&objects, &PutOptions::default()).await;
        counts.latencies.record(start.elapsed());
        for result in results {
            match result {
                Ok(Put::Stored) => counts.ops += 1,
                Ok(Put::AlreadyExists | Put::LocalOnly) | Err(_) => counts.failed += 1,
            }
        }
    }

    /// Puts the next blocks, and removes older ones so that there is always room.
    async fn put_one_more(&self, counts: &mut Counts) {
        let batch = u64::from(self.args.batch);
        let from = self.next.fetch_add(batch, Ordering::Relaxed);
        if let Some(old) = from.checked_sub(self.keys / 2).filter(|old| *old >= self.keys) {
            self.remove(old..old + batch).await;
        }
        self.put(from..from + batch, counts).await;
    }

    /// Allocates and touches the memory that each caller's gets read into. Untouched memory of a thousand callers would
    /// keep the runtime's threads busy for seconds, and that would be measured too.
    async fn rooms(&self, kind: Kind) -> Result<Mutex<Vec<Vec<Vec<u8>>>>> {
        let gets = matches!(kind, Kind::Get | Kind::Mixed);
        let objects = if gets { self.args.batch as usize * self.args.buffers as usize } else { 0 };
        let (callers, size) = (self.args.threads, self.args.size.0 as usize);
        let room = move |_| (0..objects).map(|_| vec![0xff; size]).collect();
        let rooms = tokio::task::spawn_blocking(move || (0..callers).map(room).collect());
        rooms.await.map(Mutex::new).context("cannot allocate the read buffers")
    }

    async fn get(&self, rng: &mut SmallRng, room: &mut [Vec<u8>], counts: &mut Counts) {
        let blocks: Vec<Block> = room.iter().map(|_| rng.random_range(0..self.keys)).collect();
        let keys: Vec<_> = blocks.iter().map(|block| self.space.key(*block)).collect();
        let items = keys.iter().zip(room.iter_mut());
        let mut items: Vec<_> = items.map(|(key, into)| GetInto::new(key.as_bytes(), vec![into])).collect();
        let start = Instant::now();
        let results = self.client.batch_get_into(&mut items).await;
        counts.latencies.record(start.elapsed());
        for ((block, bytes), result) in blocks.into_iter().zip(room).zip(results) {
            match result {
                // The client has compared every checksum. This also compares some values with the expected bytes.
                Ok(Some(len))
                    if counts.ops.is_multiple_of(64) && !self.space.is_right(block, &bytes[..len]) =>
                {
                    counts.wrong += 1;
                }
                Ok(Some(_)) => counts.ops += 1,
                Ok(None) | Err(_) => counts.failed += 1,
            }
        }
    }

    async fn exist(&self, rng: &mut SmallRng, counts: &mut Counts) {
        let keys: Vec<_> =
            (0..self.args.batch).map(|_| self.space.key(rng.random_range(0..self.keys))).collect();
        let start = Instant::now();
        let results = self.client.batch_exist(&keys).await;
        counts.latencies.record(start.elapsed());
        for result in results {
            match result {
                Ok(true) => counts.ops += 1,
                Ok(false) | Err(_) => counts.failed += 1,
            }
        }
    }

    async fn lookup(&self, rng: &mut SmallRng, counts: &mut Counts) {
        let keys: Vec<_> =
            (0..self.args.batch).map(|_| self.space.key(rng.random_range(0..self.keys))).collect();
        let start = Instant::now();
        let results = self.client.admin().batch_lookup(&keys).await;
        counts.latencies.record(start.elapsed());
        for result in results {
            match result {
                Ok(Some(found)) if !found.replicas.is_empty() => counts.ops += 1,
                Ok(_) | Err(_) => counts.failed += 1,
            }
        }
    }

    /// Removes blocks to make room, with force because some were just read. Absent blocks are no failure.
    async fn remove(&self, blocks: std::ops::Range<Block>) {
        let keys: Vec<_> = blocks.map(|block| self.space.key(block)).collect();
        let mut failed = None;
        for keys in keys.chunks(mc_types::MAX_ITEMS) {
            failed = failed.or(self.client.batch_remove(keys, true).await.into_iter().find_map(Result::err));
        }
        if let Some(why) = failed {
            let run = &self.run;
            note(&format!(
                "some objects were not removed ({why}): `mcctl rm --regex '^{run}' --force` removes them"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_working_set_is_bounded_in_bytes_and_in_keys() {
        let args = |size| LoadArgs {
            threads: 4,
            batch: 1,
            size: ByteSize(size),
            duration: "5s".parse().unwrap(),
            keys: None,
            buffers: 1,
            single: false,
            data_dir: None,
            tls: false,
        };
        assert_eq!(default_keys(&args(1 << 20)), 512);
        assert_eq!(default_keys(&args(1)), 4_096);
        assert_eq!(default_keys(&args(1 << 30)), 4, "each thread has one");
    }
}
