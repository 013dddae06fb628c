//! `mc-bench restart`: kills all masters at once and restarts them from their disks.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::Args;
use mc_client::{Client, Put, PutOptions};
use mc_console::{Ended, Global, Health, Output, Progress, View, connect, human_bytes, note};
use mc_testbed::{Cluster, Keyspace, Shape};
use rustix::process::Signal;
use serde::Serialize;

use crate::latencies::round;
use crate::machine::Machine;
use crate::own_pool::{self, READY_WITHIN, refuse_masters};
use crate::process::cpu_seconds;

#[derive(Clone, Debug, Args)]
pub(crate) struct RestartArgs {
    /// Number of objects to put before the restart; the last 200,000 stay in the pool
    #[arg(long, default_value_t = 2_200_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) puts: u64,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Time limit after which a restart counts as failed.
const UP_WITHIN: Duration = Duration::from_secs(120);
/// Number of callers that fill the log, and of objects in each call: the fastest combination (docs/results/puts.md).
const CALLERS: u64 = 16;
const BATCH: u64 = 128;
/// Bytes of an object. The masters' data does not depend on it.
const OBJECT: u64 = 256;
/// Number of objects kept in the pool; older ones are removed.
const OBJECTS: u64 = 200_000;
/// Pause between two looks at the masters.
const LOOK: Duration = Duration::from_millis(10);

/// Result of the command, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    puts: u64,
    /// Size of the largest data directory of a master.
    directory_bytes: u64,
    /// Milliseconds from the start of the masters until a leader answers.
    leader_ms: f64,
    /// Milliseconds from the start of the masters until every voter and store serves.
    all_ms: f64,
    /// Processor time of all masters in that period.
    cpu_ms: f64,
    /// Milliseconds to read all data directories once, one after the other, after the restart.
    read_ms: f64,
    machine: Machine,
}

pub(crate) async fn bench(global: &Global, args: &RestartArgs, output: Output) -> Result<Ended> {
    refuse_masters(global, "bench restart kills masters, so it runs only on a pool that it starts")?;
    let shape = Shape::three_and_two(2 * OBJECTS * 4096);
    let (mut cluster, machine) = own_pool::start(shape, args.data_dir.as_ref()).await?;
    let outcome = restart(&mut cluster, args, machine).await;
    let report = outcome.map_err(|error| cluster.explain(error))?;
    output.result(&report, || report.table());
    Ok(Ended::Well)
}

async fn restart(cluster: &mut Cluster, args: &RestartArgs, machine: Machine) -> Result<Report> {
    let client = connect::client_with_leader(&cluster.addresses(), READY_WITHIN).await?;
    fill(&client, args.puts).await?;
    drop(client);

    for master in &cluster.masters {
        master.process.signal(Signal::KILL)?;
    }
    for master in &mut cluster.masters {
        master.process.wait_dead(READY_WITHIN).await?;
    }
    let dirs: Vec<_> =
        (1..=cluster.masters.len()).map(|at| cluster.dir().join(format!("master-{at}"))).collect();
    let mut sizes = dirs.iter().map(|dir| bytes_below(dir)).collect::<Result<Vec<_>>>()?;
    sizes.sort_unstable();

    let begun = Instant::now();
    for master in &mut cluster.masters {
        master.process.restart()?;
    }
    let admin = connect::admin(&cluster.addresses()).await?;
    let mut leader = None;
    let all = loop {
        for process in cluster.processes() {
            process.check_running()?;
        }
        let view = View::of(&admin.status().await);
        if view.health != Health::Down {
            leader.get_or_insert_with(|| begun.elapsed());
        }
        if view.health == Health::Healthy {
            break begun.elapsed();
        }
        ensure!(begun.elapsed() < UP_WITHIN, "not up after {UP_WITHIN:?}: {}", view.problems.join("; "));
        tokio::time::sleep(LOOK).await;
    };
    let cpu = cluster.masters.iter().map(|master| cpu_seconds(master.process.pid())).sum::<Result<f64>>()?;

    let reading = Instant::now();
    for dir in &dirs {
        read_below(dir)?;
    }
    let ms = |took: Duration| round(took.as_secs_f64() * 1e3);
    Ok(Report {
        bench: "restart",
        puts: args.puts,
        directory_bytes: sizes.last().copied().unwrap_or_default(),
        leader_ms: ms(leader.unwrap_or(all)),
        all_ms: ms(all),
        cpu_ms: round(cpu * 1e3),
        read_ms: ms(reading.elapsed()),
        machine,
    })
}

/// Puts objects, and removes each one `OBJECTS` puts later.
async fn fill(client: &Client, puts: u64) -> Result<()> {
    note(&format!("putting {puts} objects"));
    let space = Keyspace::uniform(format!("restart/{:016x}", rand::random::<u64>()), OBJECT as usize);
    let value = space.object(0).1;
    let next = AtomicU64::new(0);
    let stored = AtomicU64::new(0);
    let progress = parking_lot::Mutex::new(Progress::new("putting", puts));
    let caller = || async {
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= puts {
                return Ok::<_, anyhow::Error>(());
            }
            let objects: Vec<(String, Bytes)> =
                (from..(from + BATCH).min(puts)).map(|block| (space.key(block), value.clone())).collect();
            for result in client.batch_put(&objects, &PutOptions::default()).await {
                match result.context("cannot fill the pool")? {
                    Put::Stored | Put::AlreadyExists => drop(stored.fetch_add(1, Ordering::Relaxed)),
                    Put::LocalOnly => bail!("the leader was lost while the pool was filled"),
                }
            }
            if let Some(old) = from.checked_sub(OBJECTS) {
                let keys: Vec<_> = (old..old + BATCH).map(|block| space.key(block)).collect();
                client.batch_remove(&keys, true).await;
            }
            progress.lock().set(stored.load(Ordering::Relaxed));
        }
    };
    futures::future::try_join_all((0..CALLERS).map(|_| caller())).await?;
    Ok(())
}

fn files(dir: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => found.extend(files(&entry.path())?),
            _ => found.push(entry.path()),
        }
    }
    Ok(found)
}

fn bytes_below(dir: &Path) -> Result<u64> {
    files(dir)?.iter().map(|file| Ok(file.metadata()?.len())).sum()
}

fn read_below(dir: &Path) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    for path in files(dir)? {
        let mut file =
            std::fs::File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}

impl Report {
    fn table(&self) -> String {
        format!(
            "restart of all masters after {} puts, {} a directory: a leader after {} ms, all serve after {} ms\n  \
             {} ms of processor time; reading the directories takes {} ms\n{}\n",
            self.puts,
            human_bytes(self.directory_bytes),
            self.leader_ms,
            self.all_ms,
            self.cpu_ms,
            self.read_ms,
            self.machine.line()
        )
    }
}
