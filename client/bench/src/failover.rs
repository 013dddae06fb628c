//! `mc-bench failover`: ends the leader repeatedly under load.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use mc_client::{Client, Put, PutOptions};
use mc_console::{Ended, Global, Output, Progress, connect, human_bytes};
use mc_testbed::{Cluster, Ending, Keyspace, Ledger, Miss, Security, Shape, end_leader, verify};
use mc_types::ByteSize;
use serde::Serialize;

use crate::machine::Machine;
use crate::own_pool::{self, READY_WITHIN, refuse_masters};

#[derive(Clone, Debug, Args)]
pub(crate) struct FailoverArgs {
    /// Number of times that the leader is killed
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,
    /// Signal that ends the leader: kill is SIGKILL, term is SIGTERM, on which it hands over
    #[arg(long, value_enum, default_value_t = Ending::Kill, value_name = "SIGNAL")]
    pub(crate) signal: Ending,
    /// Number of concurrent writers
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// Number of objects in each put
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) batch: u32,
    /// Size of each object
    #[arg(long, default_value = "4kb", value_name = "SIZE")]
    pub(crate) size: ByteSize,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Give the processes of its own pool certificates, and require TLS
    #[arg(long)]
    pub(crate) tls: bool,
}

/// Pause of a writer between two calls, so that hours of rounds do not fill the pool.
const PAUSE: Duration = Duration::from_millis(1);
/// Number of acknowledged puts before each kill.
const PUTS_A_ROUND: u64 = 400;
/// Maximum number of objects. Beyond it writers only read, so that any number of rounds fits in the pool.
const MOST_OBJECTS: u64 = 200_000;

/// Result of the command, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    threads: u32,
    batch: u32,
    size_bytes: u64,
    rounds: usize,
    /// Signal that ended the leaders: kill or term.
    signal: &'static str,
    median_ms: f64,
    max_ms: f64,
    /// Outage of each round in milliseconds. For kill: from just before the signal until the writing client has put a
    /// new key and got an old one. For term: the longest time between two successful calls from the signal on.
    rounds_ms: Vec<f64>,
    acked: u64,
    lost: u64,
    wrong: u64,
    machine: Machine,
}

pub(crate) async fn bench(global: &Global, args: &FailoverArgs, output: Output) -> Result<Ended> {
    refuse_masters(global, "bench failover kills masters, so it runs only on a pool that it starts")?;
    if args.size.0 == 0 {
        bail!("--size is 0: an object has at least one byte");
    }
    let most = (args.size.0.max(4096) * MOST_OBJECTS).min(1 << 30);
    let objects = most / args.size.0.max(4096);
    if objects < u64::from(args.batch) {
        bail!(
            "--batch {} of {} is more than the {} that this bench puts in total: lower --batch",
            args.batch,
            args.size,
            human_bytes(most)
        );
    }
    let (mut cluster, machine) = own_pool::start(
        Shape { security: Security::tls(args.tls), ..Shape::three_and_two(most) },
        args.data_dir.as_ref(),
    )
    .await?;

    let space = Keyspace::uniform("failover".to_owned(), args.size.0 as usize);
    let ledger = Ledger::new(space);
    let client = connect::client_with_leader(&cluster.addresses(), READY_WITHIN).await?;
    let load = Load {
        client: client.clone(),
        ledger: ledger.clone(),
        batch: args.batch.into(),
        most: objects,
        next: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let rounds = async {
        let outcome = rounds(&mut cluster, &client, &ledger, args, output).await;
        load.over.store(true, Ordering::Relaxed);
        outcome
    };
    let writers = futures::future::join_all((0..args.threads).map(|_| load.run()));
    let (outcome, _) = tokio::join!(rounds, writers);
    let mut rounds_ms = outcome.map_err(|error| cluster.explain(error))?;

    let reader = connect::client_with_leader(&cluster.addresses(), READY_WITHIN).await?;
    let verdict = verify(&reader, &ledger, Miss::Loss, |_| ()).await;
    let report = Report {
        bench: "failover",
        threads: args.threads,
        batch: args.batch,
        size_bytes: args.size.0,
        rounds: rounds_ms.len(),
        signal: if args.signal == Ending::Kill { "kill" } else { "term" },
        median_ms: median(&mut rounds_ms.clone()),
        max_ms: rounds_ms.iter().copied().fold(0.0, f64::max),
        rounds_ms: std::mem::take(&mut rounds_ms),
        acked: ledger.acknowledged(),
        lost: verdict.lost,
        wrong: verdict.wrong + load.wrong.load(Ordering::Relaxed),
        machine,
    };
    output.result(&report, || report.table());
    Ok(if report.lost == 0 && report.wrong == 0 { Ended::Well } else { Ended::Negative })
}

async fn rounds(
    cluster: &mut Cluster,
    client: &Client,
    ledger: &Ledger,
    args: &FailoverArgs,
    output: Output,
) -> Result<Vec<f64>> {
    let probes = AtomicU64::new(0);
    let mut progress = Progress::new("rounds", args.rounds.into());
    let mut rounds_ms = Vec::new();
    for round in 1..=args.rounds {
        // Wait until the load is at its pace again, and has written something in this round that the kill could lose.
        let enough = ledger.acknowledged() + PUTS_A_ROUND;
        let start = Instant::now();
        while ledger.acknowledged() < enough.min(MOST_OBJECTS) && start.elapsed() < Duration::from_secs(5) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let failover = end_leader(cluster, client, ledger, args.signal, &probes)
            .await
            .with_context(|| format!("round {round}"))?;
        let ms = (failover.outage.as_secs_f64() * 1e4).round() / 10.0;
        rounds_ms.push(ms);
        cluster.master_at(&failover.leader_before)?.process.restart()?;
        cluster.wait_ready(READY_WITHIN).await?;
        if !output.is_json() {
            let (before, after) = (&failover.leader_before, &failover.leader_after);
            progress.say(
                output,
                &format!("round {round}: {ms} ms, {before} (pid {}) to {after}", failover.killed_pid),
            );
        }
        progress.set(round.into());
    }
    Ok(rounds_ms)
}

impl Report {
    fn table(&self) -> String {
        format!(
            "failover by {}: {} rounds, median {} ms, max {} ms\n  {} acknowledged puts, {} lost, {} wrong\n{}\n",
            self.signal,
            self.rounds,
            self.median_ms,
            self.max_ms,
            self.acked,
            self.lost,
            self.wrong,
            self.machine.line()
        )
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n.is_multiple_of(2) => (values[n / 2 - 1] + values[n / 2]) / 2.0,
        n => values[n / 2],
    }
}

/// Puts and gets that run through every failover.
struct Load {
    client: Client,
    ledger: Ledger,
    /// Objects in each put.
    batch: u64,
    most: u64,
    next: AtomicU64,
    wrong: AtomicU64,
    over: AtomicBool,
}

impl Load {
    async fn run(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(self.batch, Ordering::Relaxed);
            if first + self.batch <= self.most {
                let objects: Vec<_> =
                    (first..first + self.batch).map(|block| self.ledger.keys.object(block)).collect();
                let results = self.client.batch_put(&objects, &PutOptions::default()).await;
                for (block, result) in (first..).zip(results) {
                    // A failed put is not acknowledged; its block may or may not be in the pool.
                    if matches!(result, Ok(Put::Stored | Put::AlreadyExists)) {
                        self.ledger.acknowledge(block);
                    }
                }
            }
            if let Some(block) = self.ledger.old(first as usize) {
                let got = self.client.get(self.ledger.keys.key(block)).await;
                if let Ok(Some(bytes)) = got
                    && !self.ledger.keys.is_right(block, &bytes)
                {
                    self.wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_few_rounds() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
