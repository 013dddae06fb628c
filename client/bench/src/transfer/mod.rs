//! `mc-bench transfer`: one transport alone, beside the machine's limit.

pub(super) mod args;
mod limits;
pub(super) mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mc_console::{Ended, Global, Output};
use mc_transfer::{
    HostMemory, LentMemory, Rdma, ReadOp, RegisteredMemory, Seal, ShmAccess, ShmTransport, Sums, TcpOptions,
    TcpTransport, Transport, Transports, WriteOp,
};
use mc_types::ByteSize;
use serde::Serialize;

use self::args::{Direction, Memory, OnOff, TransferArgs};
use self::store::{Child, Target};
use crate::latencies::{median, round};

const ROUNDS: usize = 5;
/// Duration of each measurement of the transport.
const EACH: Duration = Duration::from_millis(500);
/// Longest time for one call.
const PATIENCE: Duration = Duration::from_secs(10);

/// Result of the command, as `-o json` prints it. Rates are medians of the rounds.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    transport: String,
    direction: Direction,
    size_bytes: u64,
    batch: u32,
    callers: u32,
    checksum: OnOff,
    memory: Memory,
    mib_s: f64,
    /// Limit of this machine; `None` where it could not be measured.
    limit_mib_s: Option<f64>,
    /// The first in the second.
    ratio: Option<f64>,
    /// The limit in words, or the reason why it was not measured.
    limit: String,
    /// TCP only: one plain request and answer of a call's bytes after the other, over one stream. A call waits for its answer, as
    /// these do, and streams wait for nothing.
    serial_mib_s: Option<f64>,
    /// Medians, over the rounds, of the time of a call.
    call_p50_us: f64,
    call_p99_us: f64,
    /// With `--beside`: both beside the streams, and how many times longer the second one is.
    beside_p50_us: Option<f64>,
    beside_p99_us: Option<f64>,
    beside_ratio: Option<f64>,
    /// Time to seal a grant of 64 ranges and to open it: what a batch costs its master and a store.
    grant_us: f64,
    rounds_mib_s: Vec<f64>,
    limit_rounds_mib_s: Vec<f64>,
}

/// Figures of each round.
#[derive(Default)]
struct Rounds {
    rates: Vec<f64>,
    limits: Vec<f64>,
    serial: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    beside_p50: Vec<f64>,
    beside_p99: Vec<f64>,
}

pub(super) async fn bench(global: &Global, args: &TransferArgs, output: Output) -> Result<Ended> {
    let transports = match global.transport {
        Transports::Auto => Transports::Tcp,
        named => named,
    };
    let call_bytes = args.size.0.saturating_mul(u64::from(args.batch));
    ensure!(
        args.size.0 > 0 && call_bytes <= args.region.0 / u64::from(args.callers),
        "--size times --batch times --callers must be between 1 byte and --region"
    );
    let beside = args.beside.map_or(0, |size| size.0);
    ensure!(args.beside != Some(ByteSize(0)), "--beside must be at least 1 byte");
    let child = Child::start(global, ByteSize(args.region.0.saturating_add(beside))).await?;
    let mut client = Client::new(global, args, transports, child.target.clone())?;
    let mut limit = limits::Limit::new(transports, args, &child, client.device.as_deref())?;
    let mut rounds = Rounds::default();
    // Connections, pages and registrations.
    client.measure(Duration::from_millis(100)).await?;
    for _ in 0..ROUNDS {
        rounds.limits.extend(tokio::task::block_in_place(|| limit.measure())?);
        if transports == Transports::Tcp {
            let one = || limits::serial(&child.raw, args.direction, call_bytes);
            rounds.serial.push(tokio::task::block_in_place(one)?);
        }
        rounds.measure(&mut client, args).await?;
    }
    client.check_way()?;
    let report = Report::new(args, transports, limit.description(), rounds);
    output.result(&report, || report.table(args));
    Ok(Ended::Well)
}

impl Rounds {
    /// Measures the transport once.
    async fn measure(&mut self, client: &mut Client, args: &TransferArgs) -> Result<()> {
        let (rate, took) = client.measure(EACH).await?;
        self.rates.push(round(rate));
        self.p50.push(quantile(&took, 0.5));
        self.p99.push(quantile(&took, 0.99));
        if let Some(size) = args.beside {
            let took = client.measure_beside(size, args.streams).await?;
            self.beside_p50.push(quantile(&took, 0.5));
            self.beside_p99.push(quantile(&took, 0.99));
        }
        Ok(())
    }
}

impl Report {
    fn new(args: &TransferArgs, transports: Transports, limit: String, rounds: Rounds) -> Self {
        let of = |values: &[f64]| (!values.is_empty()).then(|| median(values.to_vec()));
        let (mib_s, limit_mib_s) = (median(rounds.rates.clone()), of(&rounds.limits));
        let (p99, beside_p99) = (median(rounds.p99), of(&rounds.beside_p99));
        Self {
            bench: "transfer",
            transport: transports.to_string(),
            direction: args.direction,
            size_bytes: args.size.0,
            batch: args.batch,
            callers: args.callers,
            checksum: args.checksum,
            memory: args.memory,
            mib_s,
            limit_mib_s,
            ratio: limit_mib_s.map(|limit| (mib_s / limit * 1000.0).round() / 1000.0),
            limit,
            serial_mib_s: of(&rounds.serial).map(round),
            call_p50_us: round(median(rounds.p50)),
            call_p99_us: round(p99),
            beside_p50_us: of(&rounds.beside_p50).map(round),
            beside_p99_us: beside_p99.map(round),
            beside_ratio: beside_p99.map(|beside| round(beside / p99)),
            grant_us: round(store::grant_us()),
            rounds_mib_s: rounds.rates,
            limit_rounds_mib_s: rounds.limits,
        }
    }

    fn table(&self, args: &TransferArgs) -> String {
        let Self { transport, direction, batch, mib_s, limit, call_p50_us, call_p99_us, .. } = self;
        let limit = match (self.limit_mib_s, self.ratio) {
            (Some(rate), Some(ratio)) => format!("{:.0} % of {rate:.0} MiB/s ({limit})", ratio * 100.0),
            _ => limit.clone(),
        };
        let callers = match args.callers {
            1 => String::new(),
            callers => format!(", {callers} callers"),
        };
        let serial = self.serial_mib_s.map_or_else(String::new, |serial| {
            let percent = mib_s / serial * 100.0;
            format!("; {percent:.0} % of one plain request after the other ({serial:.0} MiB/s)")
        });
        let beside = match (args.beside, self.beside_p99_us, self.beside_ratio) {
            (Some(size), Some(p99), Some(ratio)) => {
                let streams = args.streams;
                format!("; p99 beside {streams} streams of {size}: {p99:.0} us, {ratio:.1} times as long")
            }
            _ => String::new(),
        };
        format!(
            "{transport} {direction:?} of {batch} x {}{callers}: {mib_s:.0} MiB/s, {limit}{serial}; a call takes \
             {call_p50_us:.0} us (p50), {call_p99_us:.0} us (p99){beside}",
            args.size
        )
    }
}

/// Memory that puts come from, or gets go to.
enum Buffers {
    Put(Vec<RegisteredMemory>),
    Get(Vec<LentMemory>),
}

/// Client side of the bench.
struct Client {
    transport: Arc<dyn Transport>,
    transports: Transports,
    target: Arc<Target>,
    callers: Vec<Caller>,
    /// Bytes of the store that the callers go through.
    region: u64,
    /// Bytes that went by the transport that is measured, if it is not TCP.
    by_way: Arc<AtomicU64>,
    /// Name of the RDMA device.
    device: Option<String>,
}

/// Makes one call after the other.
struct Caller {
    transport: Arc<dyn Transport>,
    target: Arc<Target>,
    buffers: Buffers,
    /// Bytes of an operation, and number of operations in a call.
    size: u64,
    batch: u64,
    /// First byte of its part of the store's memory, and number of operations that fit there.
    from: u64,
    places: u64,
    next: u64,
}

/// Totals of some calls.
#[derive(Default)]
struct Done {
    bytes: u64,
    /// Duration of each call.
    took: Vec<Duration>,
}

impl Client {
    fn new(
        global: &Global,
        args: &TransferArgs,
        transports: Transports,
        target: Arc<Target>,
    ) -> Result<Self> {
        let sums = if args.checksum == OnOff::On { Sums::All } else { Sums::None };
        let options = TcpOptions { sums, ..TcpOptions::default() };
        let by_way = Arc::new(AtomicU64::new(0));
        let (shm_count, rdma_count) = (by_way.clone(), by_way.clone());
        let mut device = None;
        let tcp = match Rdma::for_process(transports, &global.rdma_devices, &global.rdma_options)? {
            Ok(rdma) => {
                device = rdma.names().next().map(str::to_owned);
                let on_moved = move |_, bytes| {
                    rdma_count.fetch_add(bytes, Ordering::Relaxed);
                };
                TcpTransport::with_rdma(options, &HostMemory::new(), rdma, true, Box::new(on_moved))
            }
            Err(_) => TcpTransport::new(options),
        };
        let access = if transports.shm() { ShmAccess::SameUid } else { ShmAccess::Off };
        let on_shared = move |_, bytes| {
            shm_count.fetch_add(bytes, Ordering::Relaxed);
        };
        let transport: Arc<dyn Transport> = Arc::new(ShmTransport::new(tcp, access, Box::new(on_shared)));
        let (size, batch) = (args.size.0, u64::from(args.batch));
        let buffer = |nth| {
            let len = size as usize;
            let mut buffer = match args.memory {
                Memory::Allocated => transport.allocate(len)?,
                Memory::Other => RegisteredMemory::from_vec(vec![0; len]),
            };
            buffer.as_mut_slice().fill(nth as u8);
            Ok(buffer)
        };
        let places = args.region.0 / u64::from(args.callers) / size;
        let caller = |nth: u64| {
            let buffers = (0..batch).map(buffer).collect::<Result<Vec<_>>>()?;
            let buffers = match args.direction {
                Direction::Get => Buffers::Get(buffers.into_iter().map(RegisteredMemory::lend).collect()),
                Direction::Put => Buffers::Put(buffers),
            };
            let (transport, target) = (transport.clone(), target.clone());
            Ok(Caller { transport, target, buffers, size, batch, from: nth * places * size, places, next: 0 })
        };
        let callers = (0..u64::from(args.callers)).map(caller).collect::<Result<_>>()?;
        Ok(Self { transport, transports, target, callers, region: args.region.0, by_way, device })
    }

    /// Moves bytes for so long; returns MiB/s, and the time of each call.
    async fn measure(&mut self, each: Duration) -> Result<(f64, Vec<Duration>)> {
        let begun = Instant::now();
        let calling: Vec<_> = self.callers.drain(..).map(|caller| tokio::spawn(caller.run(each))).collect();
        let mut all = Done::default();
        for caller in calling {
            let (caller, done) = caller.await??;
            self.callers.push(caller);
            all.bytes += done.bytes;
            all.took.extend(done.took);
        }
        Ok((all.bytes as f64 / (1 << 20) as f64 / begun.elapsed().as_secs_f64(), all.took))
    }

    /// [`Self::measure`] beside streams of gets of `size`; returns the time of each call.
    async fn measure_beside(&mut self, size: ByteSize, streams: u32) -> Result<Vec<Duration>> {
        let (transport, target) = (self.transport.clone(), self.target.clone());
        // After the memory that the callers go through.
        let offset = self.region;
        let stream = move || {
            let (transport, target) = (transport.clone(), target.clone());
            async move {
                let mut bytes = vec![0; size.0 as usize];
                loop {
                    let deadline = tokio::time::Instant::now() + PATIENCE;
                    let mut ops = [ReadOp { range: 0, offset, into: vec![(&mut bytes).into()] }];
                    let answers = transport.read(&target.peer, &target.read, &mut ops, deadline).await;
                    if let Some(Err(error)) = answers.into_iter().next() {
                        break error;
                    }
                }
            }
        };
        let mut running = tokio::task::JoinSet::new();
        (0..streams).for_each(|_| drop(running.spawn(stream())));
        let measured = tokio::select! {
            measured = self.measure(EACH) => measured,
            Some(error) = running.join_next() => Err(error?).context("a stream of --beside failed"),
        };
        Ok(measured?.1)
    }

    /// Fails if the bytes did not go the way that was asked for.
    fn check_way(&self) -> Result<()> {
        let by_way = self.by_way.load(Ordering::Relaxed);
        ensure!(
            self.transports == Transports::Tcp || by_way > 0,
            "no byte went by {}: calls of so few bytes go over TCP, or it can't be used here",
            self.transports
        );
        Ok(())
    }
}

impl Caller {
    async fn run(mut self, each: Duration) -> Result<(Self, Done)> {
        let (begun, mut done) = (Instant::now(), Done::default());
        while begun.elapsed() < each {
            let one = Instant::now();
            self.call().await?;
            done.bytes += self.size * self.batch;
            done.took.push(one.elapsed());
        }
        Ok((self, done))
    }

    async fn call(&mut self) -> Result<()> {
        let &mut Self { size, batch, places, from, next: first, .. } = self;
        self.next += batch;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let offset = |nth: u64| from + (first + nth) % places * size;
        let target = &self.target;
        let answers = match &mut self.buffers {
            Buffers::Get(buffers) => {
                let mut ops: Vec<ReadOp<'_>> = (0..)
                    .zip(buffers)
                    .map(|(nth, buffer)| ReadOp {
                        range: 0,
                        offset: offset(nth),
                        into: vec![buffer.buffer()],
                    })
                    .collect();
                let answers = self.transport.read(&target.peer, &target.read, &mut ops, deadline).await;
                answers.into_iter().try_for_each(|answer| answer.map(drop))
            }
            Buffers::Put(buffers) => {
                // Each call is a separate put: it gets a later allocation of the same memory, and seals it.
                let ranges = (0..batch).map(|nth| (offset(nth), size));
                let grant = target.write_grant(self.next, ranges);
                let ops: Vec<WriteOp<'_>> = (0..)
                    .zip(buffers)
                    .map(|(range, buffer)| WriteOp { range, offset: 0, from: vec![buffer.as_slice().into()] })
                    .collect();
                let answers = self.transport.write(&target.peer, &grant, &ops, Seal::Yes, deadline).await;
                answers.into_iter().try_for_each(|answer| answer.map(drop))
            }
        };
        answers.context("a call to the bench's store failed")
    }
}

/// A quantile of times, in microseconds.
fn quantile(times: &[Duration], part: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default().as_secs_f64() * 1e6
}
