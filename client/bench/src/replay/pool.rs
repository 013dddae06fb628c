//! The workload through real processes: every block is written, read and compared.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mc_client::{Client, Code, Put};
use mc_console::{Output, Progress, connect, ratio, rounded};
use mc_testbed::{Block, Cluster, Keyspace, Request, Shape, put_until_decided};
use mc_types::ByteSize;
use rustix::process::Signal;
use serde::Serialize;

use super::ReplayArgs;
use crate::latencies::Latencies;
use crate::machine::Machine;
use crate::own_pool::{self, READY_WITHIN};

/// Result of the part with processes.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    block_bytes: u64,
    /// Share of the blocks that were read: those of the longest prefix of each request. The requests come as fast as
    /// the pool takes them, so leases last for more of them than in the trace.
    hit_ratio: f64,
    /// The same for the requests after the loss of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    hit_ratio_after_the_loss: Option<f64>,
    seconds: f64,
    /// Bytes read and written, in 10^9 a second of the whole run.
    gb_s: f64,
    /// Bytes read, in 10^9 a second of the gets.
    get_gb_s: f64,
    /// Bytes written, in 10^9 a second of the puts.
    put_gb_s: f64,
    get_p50_us: f64,
    get_p99_us: f64,
    put_p50_us: f64,
    put_p99_us: f64,
    /// Puts that found no space.
    refused: u64,
    /// Calls that failed for another reason, and were tried again or counted as a miss.
    failed: u64,
    /// Blocks that were read with other bytes than were written.
    pub(super) wrong: u64,
    machine: Machine,
}

impl Report {
    pub(super) fn table(&self) -> String {
        format!(
            "with blocks of {}: hit ratio {:.4}, {:.1} s, {:.2} GB/s (gets {:.2}, puts {:.2})\n  \
             get p50 {:.0} us, p99 {:.0} us; put p50 {:.0} us, p99 {:.0} us\n  \
             {} puts refused, {} failed, {} blocks wrong\n{}\n",
            ByteSize(self.block_bytes),
            self.hit_ratio,
            self.seconds,
            self.gb_s,
            self.get_gb_s,
            self.put_gb_s,
            self.get_p50_us,
            self.get_p99_us,
            self.put_p50_us,
            self.put_p99_us,
            self.refused,
            self.failed,
            self.wrong,
            self.machine.line()
        )
    }
}

/// Calls of one kind.
struct Calls {
    latencies: Latencies,
    bytes: u64,
    time: Duration,
}

impl Calls {
    fn new() -> Self {
        Self { latencies: Latencies::new(), bytes: 0, time: Duration::ZERO }
    }

    fn record(&mut self, took: Duration, bytes: u64) {
        self.latencies.record(took);
        self.time += took;
        self.bytes += bytes;
    }

    fn gb_s(&self) -> f64 {
        gb_s(self.bytes, self.time)
    }
}

fn gb_s(bytes: u64, time: Duration) -> f64 {
    rounded(bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9)
}

/// Serves requests one after the other, and counts.
struct Server {
    client: Client,
    keys: Keyspace,
    gets: Calls,
    puts: Calls,
    hits: u64,
    blocks: u64,
    refused: u64,
    failed: u64,
    wrong: u64,
}

/// Starts a pool and replays the requests through it.
pub(super) async fn replay(
    requests: &[Request],
    args: &ReplayArgs,
    size: ByteSize,
    output: Output,
) -> Result<Report> {
    ensure!(size.0 > 0, "--bytes must be at least 1");
    let capacity = args.capacity_blocks.checked_mul(size.0.next_multiple_of(mc_types::ALLOCATION_ALIGN));
    let Some(capacity) = capacity.filter(|bytes| bytes.checked_mul(2).is_some()) else {
        bail!("{} blocks of {size} are more bytes than a pool can have", args.capacity_blocks);
    };
    let shape = Shape::three_and_two_full_of(capacity);
    let (mut cluster, machine) = own_pool::start(shape, args.data_dir.as_ref()).await?;
    let outcome = served(&mut cluster, requests, args, size, output).await;
    let (server, before, seconds) = outcome.map_err(|error| cluster.explain(error))?;
    let after = before.map(|(hits, blocks)| ratio(server.hits - hits, server.blocks - blocks));
    let Server { gets, puts, .. } = &server;
    Ok(Report {
        block_bytes: size.0,
        hit_ratio: ratio(server.hits, server.blocks),
        hit_ratio_after_the_loss: after,
        seconds: rounded(seconds.as_secs_f64()),
        gb_s: gb_s(gets.bytes + puts.bytes, seconds),
        get_gb_s: gets.gb_s(),
        put_gb_s: puts.gb_s(),
        get_p50_us: gets.latencies.quantile_us(0.5),
        get_p99_us: gets.latencies.quantile_us(0.99),
        put_p50_us: puts.latencies.quantile_us(0.5),
        put_p99_us: puts.latencies.quantile_us(0.99),
        refused: server.refused,
        failed: server.failed,
        wrong: server.wrong,
        machine,
    })
}

/// Replays the requests. Returns the counts, the hits and blocks before the loss of the leader, and the time it took.
async fn served(
    cluster: &mut Cluster,
    requests: &[Request],
    args: &ReplayArgs,
    size: ByteSize,
    output: Output,
) -> Result<(Server, Option<(u64, u64)>, Duration)> {
    let client = connect::client_with_leader(&cluster.addresses(), READY_WITHIN).await?;
    let keys = Keyspace::uniform("replay".to_owned(), usize::try_from(size.0)?);
    let mut server = Server {
        client,
        keys,
        gets: Calls::new(),
        puts: Calls::new(),
        hits: 0,
        blocks: 0,
        refused: 0,
        failed: 0,
        wrong: 0,
    };
    let cut = args.kill_leader_at.map(|share| (requests.len() as f64 * share) as usize);
    let mut before = None;
    let mut progress = Progress::new("requests", requests.len() as u64);
    let begun = Instant::now();
    for (number, request) in requests.iter().enumerate() {
        if cut == Some(number) {
            before = Some((server.hits, server.blocks));
            let leader = kill_leader(cluster).await?;
            if !output.is_json() {
                progress.say(output, &format!("killed the leader {leader}"));
            }
        }
        server.serve(&request.blocks).await?;
        progress.set(number as u64);
    }
    Ok((server, before, begun.elapsed()))
}

async fn kill_leader(cluster: &mut Cluster) -> Result<String> {
    let admin = connect::admin(&cluster.addresses()).await?;
    let leader = admin.status().await.leader.context("no master leads: there is none to kill")?;
    let master = cluster.master_at(&leader.address)?;
    master.process.signal(Signal::KILL)?;
    Ok(leader.address)
}

impl Server {
    /// Looks the prefix up, reads it, and writes the rest, as an inference engine does.
    async fn serve(&mut self, blocks: &[Block]) -> Result<()> {
        self.blocks += blocks.len() as u64;
        let keys: Vec<_> = blocks.iter().map(|block| self.keys.key(*block)).collect();
        let found: Vec<_> = self.client.batch_exist(&keys).await;
        let found: Vec<_> = found.into_iter().map(|found| found.unwrap_or(false)).collect();
        let prefix = found.iter().take_while(|found| **found).count();
        for batch in self.keys.batches(&blocks[..prefix]) {
            if !self.read(&batch).await {
                break;
            }
        }
        let missing: Vec<_> =
            blocks.iter().zip(&found).filter(|(_, found)| !**found).map(|(block, _)| *block).collect();
        for batch in self.keys.batches(&missing) {
            self.write(batch).await?;
        }
        Ok(())
    }

    /// Reads blocks; returns whether all were there.
    async fn read(&mut self, blocks: &[Block]) -> bool {
        let keys: Vec<_> = blocks.iter().map(|block| self.keys.key(*block)).collect();
        let start = Instant::now();
        let got = self.client.batch_get(&keys).await;
        let took = start.elapsed();
        let mut bytes = 0;
        let mut all = true;
        for (block, got) in blocks.iter().zip(got) {
            match got {
                Ok(Some(value)) => {
                    bytes += value.len() as u64;
                    self.hits += u64::from(all);
                    self.wrong += u64::from(!self.keys.is_right(*block, &value));
                }
                Ok(None) => all = false,
                Err(_) => {
                    self.failed += 1;
                    all = false;
                }
            }
        }
        self.gets.record(took, bytes);
        all
    }

    /// Writes blocks until each is stored or finds no space.
    async fn write(&mut self, blocks: Vec<Block>) -> Result<()> {
        let Self { client, keys, puts, refused, failed, .. } = self;
        put_until_decided(client, keys, blocks, |attempt| {
            let (mut bytes, mut left) = (0, Vec::new());
            for (object, result) in attempt.objects.iter().zip(attempt.results) {
                match result {
                    Ok(Put::Stored) => bytes += object.value.len() as u64,
                    Ok(Put::AlreadyExists) => {}
                    Err(error) if error.code == Code::NoAvailableHandle => *refused += 1,
                    Ok(Put::LocalOnly) | Err(_) => left.push(object.block),
                }
            }
            puts.record(attempt.took, bytes);
            *failed += left.len() as u64;
            left
        })
        .await
    }
}
