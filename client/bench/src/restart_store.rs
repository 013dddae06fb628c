//! `mc-bench restart-store`: kills a store that keeps its memory, and restarts it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use mc_client::{Client, Put, PutOptions};
use mc_console::{Ended, Global, Output, Progress, connect, human_bytes, note};
use mc_testbed::{Cluster, Keyspace, Ledger, Miss, Security, Shape, verify};
use mc_types::ByteSize;
use rustix::process::Signal;
use serde::Serialize;

use crate::latencies::round;
use crate::machine::Machine;
use crate::own_pool::{self, READY_WITHIN, refuse_masters};

#[derive(Clone, Debug, Args)]
pub(crate) struct RestartStoreArgs {
    /// Memory of the store, on the tmpfs /dev/shm; objects fill 85 % of it
    #[arg(long, default_value = "4gb", value_name = "SIZE")]
    pub(crate) segment: ByteSize,
    /// Number of times that the store is killed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Bytes of an object.
const OBJECT: u64 = 4 << 20;
/// Number of objects in a put.
const BATCH: u64 = 8;
/// Pause between two gets while the store is gone.
const PAUSE: Duration = Duration::from_millis(2);
/// Time limit after which a restart counts as failed.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// Result of the command, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    segment_bytes: u64,
    objects: u64,
    median_ms: f64,
    max_ms: f64,
    /// Milliseconds of each round, from just before the kill until a client has got an object that was there before.
    rounds_ms: Vec<f64>,
    /// Gets in that time that missed, and that failed.
    missed: u64,
    failed: u64,
    lost: u64,
    wrong: u64,
    machine: Machine,
}

pub(crate) async fn bench(global: &Global, args: &RestartStoreArgs, output: Output) -> Result<Ended> {
    refuse_masters(global, "bench restart-store kills a store, so it runs only on a pool that it starts")?;
    let objects = args.segment.0 / 100 * 85 / OBJECT;
    ensure!(
        objects >= BATCH,
        "--segment {} is too small: {} or more",
        args.segment,
        ByteSize(2 * BATCH * OBJECT)
    );
    let shape = Shape {
        masters: 3,
        stores: 1,
        segment: args.segment,
        data_dir: None,
        security: Security::Plain,
        keeps_memory: true,
    };
    let (mut cluster, machine) = own_pool::start(shape, args.data_dir.as_ref()).await?;
    let outcome = rounds(&mut cluster, args, objects, machine).await;
    let report = outcome.map_err(|error| cluster.explain(error))?;
    output.result(&report, || report.table());
    Ok(if report.lost + report.wrong + report.failed == 0 { Ended::Well } else { Ended::Negative })
}

async fn rounds(
    cluster: &mut Cluster,
    args: &RestartStoreArgs,
    objects: u64,
    machine: Machine,
) -> Result<Report> {
    let ledger = Ledger::new(Keyspace::uniform("restart-store".to_owned(), OBJECT as usize));
    let client = connect::client_with_leader(&cluster.addresses(), READY_WITHIN).await?;
    fill(&client, &ledger, objects).await?;
    let (mut rounds_ms, mut missed, mut failed) = (Vec::new(), 0, 0);
    let mut progress = Progress::new("rounds", args.rounds.into());
    for number in 1..=args.rounds {
        let begun = Instant::now();
        let store = &mut cluster.stores[0].process;
        store.signal(Signal::KILL)?;
        store.wait_dead(READY_WITHIN).await?;
        store.restart()?;
        let mut next = rand::random_range(0..objects);
        loop {
            let (key, value) = ledger.keys.object(next);
            match client.get(key).await {
                Ok(Some(got)) if got == value => break,
                Ok(Some(_)) => bail!("a get returned other bytes"),
                Ok(None) => missed += 1,
                Err(_) => failed += 1,
            }
            ensure!(begun.elapsed() < BACK_WITHIN, "no object is served after {BACK_WITHIN:?}");
            next = (next + 1) % objects;
            tokio::time::sleep(PAUSE).await;
        }
        rounds_ms.push(round(begun.elapsed().as_secs_f64() * 1e3));
        progress.set(number.into());
    }
    let verdict = verify(&client, &ledger, Miss::Loss, |_| ()).await;
    let mut sorted = rounds_ms.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(Report {
        bench: "restart-store",
        segment_bytes: args.segment.0,
        objects,
        median_ms: sorted[sorted.len() / 2],
        max_ms: sorted.last().copied().unwrap_or_default(),
        rounds_ms,
        missed,
        failed,
        lost: verdict.lost,
        wrong: verdict.wrong,
        machine,
    })
}

async fn fill(client: &Client, ledger: &Ledger, objects: u64) -> Result<()> {
    note(&format!("putting {} of objects", human_bytes(objects * OBJECT)));
    let mut progress = Progress::new("putting", objects);
    for from in (0..objects).step_by(BATCH as usize) {
        let batch: Vec<_> =
            (from..(from + BATCH).min(objects)).map(|block| ledger.keys.object(block)).collect();
        let results = client.batch_put(&batch, &PutOptions::default()).await;
        for (block, result) in (from..).zip(results) {
            match result.context("cannot fill the pool")? {
                Put::Stored | Put::AlreadyExists => ledger.acknowledge(block),
                Put::LocalOnly => bail!("the leader was lost while the pool was filled"),
            }
        }
        progress.set(from);
    }
    Ok(())
}

impl Report {
    fn table(&self) -> String {
        format!(
            "restart of a store with {} in {} objects: an object is served {} ms after the kill (median; {} at most)\n  \
             meanwhile {} gets missed and {} failed; at the end {} objects are lost and {} wrong\n{}\n",
            human_bytes(self.segment_bytes),
            self.objects,
            self.median_ms,
            self.max_ms,
            self.missed,
            self.failed,
            self.lost,
            self.wrong,
            self.machine.line()
        )
    }
}
