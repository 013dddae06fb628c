//! Limits of this machine, measured beside a transport.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mc_transfer::Transports;

use super::args::{Direction, TransferArgs};
use super::store::{CHUNK, Child, PLAIN_REGION};

/// Duration of one measurement.
const EACH: Duration = Duration::from_millis(250);
/// Numbers of plain streams that are tried.
const STREAMS: [usize; 3] = [1, 2, 4];
/// Bytes that perftest moves.
const PERFTEST_BYTES: u64 = 96 << 20;

/// The limit of one transport.
pub(super) enum Limit {
    Streams { address: String, direction: Direction, best: usize },
    Memcpy { from: Vec<u8>, to: Vec<u8> },
    Perftest { program: &'static str, device: String, size: u64 },
    Unknown(String),
}

impl Limit {
    pub(super) fn new(
        transports: Transports,
        args: &TransferArgs,
        child: &Child,
        device: Option<&str>,
    ) -> Result<Self> {
        Ok(match transports {
            Transports::Auto | Transports::Tcp => {
                Self::Streams { address: child.raw.clone(), direction: args.direction, best: 0 }
            }
            Transports::Shm => {
                let len = usize::try_from(args.region.0)?;
                Self::Memcpy { from: vec![1; len], to: vec![2; len] }
            }
            Transports::Rdma => {
                let program = match args.direction {
                    Direction::Get => "ib_write_bw",
                    Direction::Put => "ib_read_bw",
                };
                let device = device.unwrap_or_default().to_owned();
                match Command::new(program)
                    .arg("--version")
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status()
                {
                    Ok(_) => Self::Perftest { program, device, size: args.size.0 },
                    Err(error) => Self::Unknown(format!("{program} of perftest can't be run: {error}")),
                }
            }
        })
    }

    /// The limit in words, or the reason why it is not measured.
    pub(super) fn description(&self) -> String {
        match self {
            Self::Streams { best, .. } => format!("plain streams, {best} at once in the best round"),
            Self::Memcpy { from, .. } => {
                format!("memcpy between two regions of {} MiB, 1 MiB at a time", from.len() >> 20)
            }
            Self::Perftest { program, size, .. } => format!("{program}, {size} bytes a request"),
            Self::Unknown(why) => why.clone(),
        }
    }

    /// Measures it once, in MiB/s.
    pub(super) fn measure(&mut self) -> Result<Option<f64>> {
        match self {
            Self::Streams { address, direction, best } => {
                let mut fastest = 0.0;
                for count in STREAMS {
                    let rate = streams(address, *direction, count)?;
                    if rate > fastest {
                        (fastest, *best) = (rate, count);
                    }
                }
                Ok(Some(fastest.round()))
            }
            Self::Memcpy { from, to } => Ok(Some(memcpy(from, to).round())),
            Self::Perftest { program, device, size } => perftest(program, device, *size).map(Some),
            Self::Unknown(_) => Ok(None),
        }
    }
}

/// Bytes a second over so many plain streams to or from the store's process.
fn streams(address: &str, direction: Direction, count: usize) -> Result<f64> {
    let (stop, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let connected: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(if direction == Direction::Get { b"g" } else { b"p" })?;
            Ok(stream)
        })
        .collect::<std::io::Result<_>>()
        .context("cannot measure a plain stream to the bench's store")?;
    let begun = Instant::now();
    thread::scope(|scope| {
        for mut stream in connected {
            let (stop, bytes) = (&stop, &bytes);
            scope.spawn(move || {
                let mut chunk = vec![1; CHUNK];
                while !stop.load(Ordering::Relaxed) {
                    let moved = match direction {
                        Direction::Get => stream.read(&mut chunk),
                        Direction::Put => stream.write_all(&chunk).map(|()| CHUNK),
                    };
                    match moved {
                        Ok(n @ 1..) => bytes.fetch_add(n as u64, Ordering::Relaxed),
                        Ok(0) | Err(_) => break,
                    };
                }
            });
        }
        thread::sleep(EACH);
        stop.store(true, Ordering::Relaxed);
    });
    Ok(bytes.into_inner() as f64 / (1 << 20) as f64 / begun.elapsed().as_secs_f64())
}

/// Bytes a second of one plain request and answer after the other, `len` bytes of the two together, over one stream.
pub(super) fn serial(address: &str, direction: Direction, len: u64) -> Result<f64> {
    let len = usize::try_from(len)?.min(PLAIN_REGION);
    let run = || -> std::io::Result<f64> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.write_all(if direction == Direction::Get { b"s" } else { b"t" })?;
        stream.write_all(&(len as u64).to_be_bytes())?;
        let (mut bytes, mut one, mut moved) = (vec![1; len], [0], 0);
        let begun = Instant::now();
        while begun.elapsed() < EACH {
            match direction {
                Direction::Get => stream.write_all(&one).and_then(|()| stream.read_exact(&mut bytes))?,
                Direction::Put => stream.write_all(&bytes).and_then(|()| stream.read_exact(&mut one))?,
            }
            moved += len;
        }
        Ok(moved as f64 / (1 << 20) as f64 / begun.elapsed().as_secs_f64())
    };
    run().context("the plain stream to the bench's store failed")
}

fn memcpy(from: &[u8], to: &mut [u8]) -> f64 {
    let (begun, mut bytes) = (Instant::now(), 0);
    loop {
        for (from, to) in from.chunks(CHUNK).zip(to.chunks_mut(CHUNK)) {
            to[..from.len()].copy_from_slice(black_box(from));
            black_box(&mut *to);
            bytes += from.len();
            if begun.elapsed() >= EACH {
                return bytes as f64 / (1 << 20) as f64 / begun.elapsed().as_secs_f64();
            }
        }
    }
}

/// The average rate that perftest finds between two processes on one device.
fn perftest(program: &str, device: &str, size: u64) -> Result<f64> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let count = (PERFTEST_BYTES / size).clamp(64, 20_000).to_string();
    let size = size.to_string();
    let command = || {
        let mut command = Command::new(program);
        command.args(["-d", device, "-p", &port, "-s", &size, "-n", &count, "-F", "--output=bandwidth"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut server =
        command().stdout(Stdio::null()).spawn().with_context(|| format!("cannot run {program}"))?;
    let begun = Instant::now();
    let rate = loop {
        let client = command().arg("127.0.0.1").output().with_context(|| format!("cannot run {program}"))?;
        let text = String::from_utf8_lossy(&client.stdout).into_owned();
        if let Some(rate) = text.lines().rev().find_map(|line| line.trim().parse::<f64>().ok()) {
            break Ok(rate);
        }
        // The server may not listen yet.
        if begun.elapsed() > Duration::from_secs(5) {
            break Err(anyhow::anyhow!("{program} printed no rate within 5 s; its output: {text}"));
        }
        thread::sleep(Duration::from_millis(50));
    };
    // It ends by itself after a run.
    if rate.is_err() {
        let _ = server.kill();
    }
    server.wait()?;
    let rate = rate?;
    ensure!(rate > 0.0, "{program} measured a rate of 0");
    Ok(rate.round())
}
