//! How fast objects move between one client and one store on this machine's loopback, next to what the machine itself
//! can do: a plain socket, memcpy and the checksum, alternated in one process.
//!
//! `cargo run --release -p mc-transfer --example loopback [seconds per measurement]`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_transfer::{
    Authority, Checksum, DataServer, DataServerConfig, Peer, PeerEndpoint, ReadOp, Seal, Segment, Start,
    TcpTransport, Transport, WriteOp,
};
use mc_types::{
    Access, Clock, ClusterId, ClusterTime, Grant, GrantKey, GrantedRange, SealedGrant, SegmentEpoch, StoreId,
};
use socket2::SockRef;
use tokio_util::sync::CancellationToken;

const OBJECT: usize = 1 << 20;
const BATCH: usize = 16;
const ROUNDS: usize = 5;
/// Most bytes of one call on the plain socket: near its best on every machine tried.
const RAW_CHUNK: usize = 256 << 10;
/// Send buffer that the transport sets between ends on one host; it helps the plain socket too.
const SEND_BUFFER: usize = 96 << 10;

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.5);
    let spell = Duration::from_secs_f64(seconds);
    // A thread for each side, as the plain socket has.
    let mut store_side = tokio::runtime::Builder::new_multi_thread();
    let store_side = store_side.worker_threads(1).enable_all().build().expect("a runtime");
    let client_side = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let store = store_side.block_on(Store::start());
    let transport = TcpTransport::default();
    let mut buffers: Vec<Vec<u8>> = (0..BATCH).map(|i| vec![i as u8; OBJECT]).collect();

    let mut rows: Vec<(&str, Vec<Figures>)> = Vec::new();
    let mut note = |name: &'static str, figures| match rows.iter_mut().find(|(known, _)| *known == name) {
        Some((_, row)) => row.push(figures),
        None => rows.push((name, vec![figures])),
    };
    for _ in 0..ROUNDS {
        note("memcpy", memcpy(spell));
        note("crc64", crc(spell));
        note("raw, 1 MiB", raw_stream(spell, 1, None));
        note("raw, 1 MiB, send buffer set", raw_stream(spell, 1, Some(SEND_BUFFER)));
        note("raw, 16 MiB", raw_stream(spell, BATCH, None));
        note("raw, 16 MiB, send buffer set", raw_stream(spell, BATCH, Some(SEND_BUFFER)));
        let mut one_by_one = |access, batch: usize| {
            let (store, transport, buffers) = (&store, &transport, &mut buffers);
            client_side.block_on(async move {
                let stretch = Stretch::start();
                let mut moved = 0;
                while stretch.elapsed() < spell {
                    match access {
                        Access::Read => store.read(transport, &mut buffers[..batch]).await,
                        Access::Write => store.write(transport, &buffers[..batch]).await,
                    }
                    moved += batch * OBJECT;
                }
                stretch.end(moved)
            })
        };
        note("read, 1 MiB a call", one_by_one(Access::Read, 1));
        note("write, 1 MiB a call", one_by_one(Access::Write, 1));
        note("read, 16 x 1 MiB a call", one_by_one(Access::Read, BATCH));
        note("write, 16 x 1 MiB a call", one_by_one(Access::Write, BATCH));
    }

    println!("{:<28} {:>9} {:>8} {:>12}   all rounds, MiB/s", "", "median", "of raw", "CPU ms/GiB");
    let speed = |row: &[Figures]| median(row.iter().map(|figures| figures.mib_s));
    for (name, row) in &rows {
        // Against the better of the two plain sockets that move as many bytes in turn.
        let raws = match *name {
            "read, 1 MiB a call" | "write, 1 MiB a call" => "raw, 1 MiB",
            "read, 16 x 1 MiB a call" | "write, 16 x 1 MiB a call" => "raw, 16 MiB",
            _ => "none",
        };
        let raw = rows.iter().filter(|(name, _)| name.starts_with(raws)).map(|(_, row)| speed(row));
        let ratio = raw.reduce(f64::max).map(|raw| format!("{:.0} %", speed(row) / raw * 100.0));
        let ratio = ratio.unwrap_or_default();
        let cpu = median(row.iter().map(|figures| figures.cpu_ms_gib));
        let all = row.iter().map(|figures| format!("{:.0}", figures.mib_s)).collect::<Vec<_>>().join(" ");
        println!("{name:<28} {:>9.0} {ratio:>8} {cpu:>12.0}   {all}", speed(row));
    }
}

/// Result of one measurement.
struct Figures {
    mib_s: f64,
    /// Processor time of both ends, for each GiB: less at the mercy of whatever else runs on the machine.
    cpu_ms_gib: f64,
}

struct Stretch {
    started: Instant,
    cpu_ms: f64,
}

impl Stretch {
    fn start() -> Self {
        Self { started: Instant::now(), cpu_ms: cpu_ms() }
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn end(&self, bytes: usize) -> Figures {
        let mib = bytes as f64 / (1 << 20) as f64;
        Figures {
            mib_s: mib / self.elapsed().as_secs_f64(),
            cpu_ms_gib: (cpu_ms() - self.cpu_ms) / (mib / 1024.0),
        }
    }
}

/// Processor time that this process has used, from its 14th and 15th field of /proc/self/stat (in ticks of 10 ms).
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() * 10.0
}

struct Store {
    peer: Peer,
    read: SealedGrant,
    write: SealedGrant,
}

impl Store {
    async fn start() -> Self {
        let (cluster, store, epoch, key) =
            (ClusterId::random(), StoreId::random(), SegmentEpoch::random(), GrantKey::random());
        let authority = Arc::new(Authority::new(Clock::monotonic()));
        authority.learn(cluster, ClusterTime(0));
        let segment = Segment::allocate(0, (BATCH * OBJECT) as u64, &mut |_| {}).expect("memory");
        let grant_lifetime = Duration::from_secs(3600);
        let config = DataServerConfig {
            store,
            epoch,
            key,
            segments: vec![segment],
            authority,
            grant_lifetime,
            fence_bytes: 512 << 20,
            max_connections: 1_000,
            rdma: None,
            max_pairs: 0,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::spawn(Arc::new(DataServer::new(config)).serve(listener, CancellationToken::new()));
        let range =
            |i: usize| GrantedRange { segment: 0, offset: (i * OBJECT) as u64, len: OBJECT as u64, index: 1 };
        let ranges: Vec<_> = (0..BATCH).map(range).collect();
        let grant = |access, ranges| Grant {
            cluster,
            store,
            epoch,
            access,
            expires: ClusterTime(0).after(grant_lifetime),
            ranges,
        };
        let endpoint = PeerEndpoint { transport: "tcp".to_owned(), address, attributes: Vec::new() };
        Self {
            peer: Peer { cluster, store, epoch, endpoints: vec![endpoint] },
            read: grant(Access::Read, ranges.clone()).seal(&key),
            write: grant(Access::Write, ranges).seal(&key),
        }
    }

    async fn read(&self, transport: &TcpTransport, buffers: &mut [Vec<u8>]) {
        let op =
            |(i, buffer)| ReadOp { range: i as u32, start: Start::default(), offset: 0, into: vec![buffer] };
        let mut ops: Vec<ReadOp<'_>> =
            buffers.iter_mut().map(Vec::as_mut_slice).enumerate().map(op).collect();
        good(transport.read(&self.peer, &self.read, &mut ops, deadline()).await);
    }

    async fn write(&self, transport: &TcpTransport, buffers: &[Vec<u8>]) {
        let op = |(i, buffer)| WriteOp { range: i as u32, offset: 0, from: vec![buffer] };
        let ops: Vec<WriteOp<'_>> = buffers.iter().map(Vec::as_slice).enumerate().map(op).collect();
        good(transport.write(&self.peer, &self.write, &ops, Seal::No, deadline()).await);
    }
}

fn deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(10)
}

fn good<E: std::error::Error>(answers: Vec<Result<Checksum, E>>) {
    for answer in answers {
        if let Err(error) = answer {
            panic!("{error}");
        }
    }
}

/// One thread sends, the other receives, through a plain socket with plain calls, each side in turn from or to as many
/// buffers as the transport is given: what stays in the caches is as much on both. Loopback is the same both ways.
fn raw_stream(spell: Duration, buffers: usize, send_buffer: Option<usize>) -> Figures {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let connecting = std::thread::spawn(move || TcpStream::connect(address).expect("a connection"));
    let (mut from, _) = listener.accept().expect("a connection");
    let mut to = connecting.join().expect("a connection");
    if let Some(bytes) = send_buffer {
        SockRef::from(&from).set_send_buffer_size(bytes).expect("an option");
    }
    let receiving = std::thread::spawn(move || {
        let mut buffer = vec![1u8; buffers * OBJECT];
        let mut received = 0;
        let stretch = Stretch::start();
        loop {
            let at = received % buffer.len();
            let end = buffer.len().min(at + RAW_CHUNK);
            match to.read(&mut buffer[at..end]).expect("bytes") {
                0 => return stretch.end(received),
                n => received += n,
            }
        }
    });
    let bytes = vec![7; buffers * OBJECT];
    let started = Instant::now();
    for part in bytes.chunks(RAW_CHUNK).cycle() {
        from.write_all(part).expect("an open connection");
        if started.elapsed() >= spell {
            break;
        }
    }
    drop(from);
    receiving.join().expect("a figure")
}

fn memcpy(spell: Duration) -> Figures {
    let (from, mut to) = (vec![1u8; 64 << 20], vec![0u8; 64 << 20]);
    let stretch = Stretch::start();
    let mut copied = 0;
    while stretch.elapsed() < spell {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        copied += from.len();
    }
    stretch.end(copied)
}

fn crc(spell: Duration) -> Figures {
    let bytes = vec![1u8; OBJECT];
    let stretch = Stretch::start();
    let mut summed = 0;
    while stretch.elapsed() < spell {
        std::hint::black_box(Checksum::of(std::hint::black_box(&bytes)));
        summed += bytes.len();
    }
    stretch.end(summed)
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
