//! Limits of this machine, measured in the same run as the pool for comparison.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

/// Duration of each measurement.
const EACH: Duration = Duration::from_millis(400);
const CHUNK: usize = 1 << 20;

/// Measured limits of this machine.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Machine {
    /// Throughput of one TCP stream over loopback, written and read in chunks of 1 MiB.
    pub(crate) loopback_mib_s: f64,
    /// Throughput of copying memory on one core, 64 MiB at a time.
    pub(crate) memcpy_mib_s: f64,
    /// Median time to append 4 KiB to a file and fdatasync it, on the disk of the masters' data.
    pub(crate) fdatasync_p50_us: f64,
}

impl Machine {
    /// Measures all three limits, with fdatasync in `dir`, for about a second.
    pub(crate) async fn measure(dir: PathBuf) -> Result<Self> {
        let measured = tokio::task::spawn_blocking(move || Self::measure_now(&dir)).await?;
        measured.context("cannot measure this machine")
    }

    fn measure_now(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            loopback_mib_s: loopback()?,
            memcpy_mib_s: memcpy(),
            fdatasync_p50_us: fdatasync(dir)?.as_secs_f64() * 1e6,
        })
    }

    /// Returns the line below a table.
    pub(crate) fn line(&self) -> String {
        format!(
            "this machine: loopback stream {:.0} MiB/s, memcpy {:.0} MiB/s, fdatasync p50 {:.0} us",
            self.loopback_mib_s, self.memcpy_mib_s, self.fdatasync_p50_us
        )
    }
}

fn loopback() -> io::Result<f64> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut out = TcpStream::connect(listener.local_addr()?)?;
    let (mut from, _) = listener.accept()?;
    let writer = std::thread::spawn(move || {
        let chunk = vec![1; CHUNK];
        // The loop ends when the reader hangs up.
        while out.write_all(&chunk).is_ok() {}
    });
    let mut chunk = vec![0; CHUNK];
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < EACH {
        bytes += from.read(&mut chunk)?;
    }
    let rate = mib_s(bytes, start.elapsed());
    drop(from);
    // The writer wrote until the connection was gone; it has no result.
    let _ = writer.join();
    Ok(rate)
}

fn memcpy() -> f64 {
    const LEN: usize = 64 << 20;
    let from = vec![1_u8; LEN];
    let mut to = vec![0_u8; LEN];
    let mut bytes = 0;
    let start = Instant::now();
    while start.elapsed() < EACH {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        bytes += LEN;
    }
    mib_s(bytes, start.elapsed())
}

fn fdatasync(dir: &Path) -> io::Result<Duration> {
    let mut file: File = tempfile::tempfile_in(dir)?;
    let block = [1; 4096];
    let mut took = Vec::new();
    let start = Instant::now();
    while took.len() < 10 || (start.elapsed() < EACH && took.len() < 1_000) {
        let one = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        took.push(one.elapsed());
    }
    took.sort_unstable();
    Ok(took[took.len() / 2])
}

pub(crate) fn mib_s(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / (1 << 20) as f64 / took.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_measured() {
        let machine = Machine::measure_now(&std::env::temp_dir()).unwrap();
        assert!(machine.loopback_mib_s > 0.0 && machine.memcpy_mib_s > 0.0 && machine.fdatasync_p50_us > 0.0);
    }
}
