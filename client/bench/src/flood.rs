//! `mc-bench flood`: how much one tenant notices of others who flood the pool.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use mc_client::{Client, Put, PutOptions, Quota, TenantRules};
use mc_console::connect::{self, client_builder};
use mc_console::{Ended, Global, Output, Progress};
use mc_net::{ChannelOptions, Network, TcpNetwork, Tls, TlsNetwork};
use mc_proto::VERSIONS;
use mc_proto::v1::master_client::MasterClient;
use mc_proto::v1::{BatchExistRequest, Caller};
use mc_testbed::{Cluster, Keyspace, Security, Shape};
use mc_types::{ByteSize, Span};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::latencies::{Latencies, round};
use crate::machine::Machine;
use crate::own_pool::{READY_WITHIN, refuse_masters, start};

/// Arguments of the bench.
#[derive(Clone, Debug, Args)]
pub(crate) struct FloodArgs {
    /// Duration of each flood, and of the measurement without one
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) duration: Span,
    /// Callers that flood, each with a connection of its own
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) callers: u32,
    /// Limit on the calls of the flooding tenant in a second
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) calls: u32,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Objects of the tenant that is measured, and their size.
const OBJECTS: u64 = 256;
const SIZE: usize = 64 << 10;
/// Time between two of its gets.
const PACE: Duration = Duration::from_millis(4);
/// Goal: at most this many times the p99 without a flood.
const GOAL: f64 = 2.0;
/// Time before each turn, in which the pool works off the one before.
const SETTLE: Duration = Duration::from_secs(2);
/// Threads of the flooding callers, and their niceness. They have the processor time that is left over: those of a real flood are
/// elsewhere.
const FLOODERS: usize = 2;
const LAST: i32 = 19;
/// Pause of a flooding caller whose connection failed.
const PAUSE: Duration = Duration::from_millis(1);

/// Kind of flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flood {
    /// No flood, to compare with: before and after the others.
    Nothing,
    /// Calls of another tenant, beyond its limit.
    Calls,
    /// Calls of somebody without a certificate.
    Strangers,
    /// TLS handshakes, one after the other.
    Handshakes,
    /// Connections that begin a handshake and stay silent.
    HalfOpen,
}

impl Flood {
    const TURNS: [Self; 6] =
        [Self::Nothing, Self::Calls, Self::Strangers, Self::Handshakes, Self::HalfOpen, Self::Nothing];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Calls => "calls of another tenant",
            Self::Strangers => "calls without a certificate",
            Self::Handshakes => "handshakes",
            Self::HalfOpen => "half-open handshakes",
        }
    }
}

/// Figures of one flood.
#[derive(Debug, Serialize)]
struct Turn {
    flood: &'static str,
    /// Calls or connections of the flood in a second.
    flood_s: f64,
    /// Share of them that was refused or failed.
    refused: f64,
    gets: u64,
    failed: u64,
    p50_us: f64,
    p99_us: f64,
    /// The p99 relative to that without a flood.
    p99_ratio: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    callers: u32,
    calls_limit: u32,
    size_bytes: u64,
    turns: Vec<Turn>,
    machine: Machine,
}

/// A runtime that may be dropped by a task.
struct Aside(Option<Runtime>);

impl Aside {
    fn new(threads: usize, niceness: i32) -> std::io::Result<Self> {
        let give_way = move || {
            // On Linux it is that of the calling thread.
            let _ = rustix::process::nice(niceness);
        };
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(threads).on_thread_start(give_way).enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The flooding side.
struct Flooder {
    leader: String,
    tenant: Arc<dyn Network>,
    callers: u32,
    made: AtomicU64,
    refused: AtomicU64,
}

pub(crate) async fn bench(global: &Global, args: &FloodArgs, output: Output) -> Result<Ended> {
    refuse_masters(global, "the bench floods a pool of its own")?;
    let shape = Shape { security: Security::Tls, ..Shape::three_and_two(64 * OBJECTS * SIZE as u64) };
    let (cluster, machine) = start(shape, args.data_dir.as_ref()).await?;
    let admin = connect::admin(&cluster.addresses()).await?;
    let rules = TenantRules::default().with_calls_per_s(args.calls);
    admin.set_tenant_rules("flood", Quota::default(), rules).await?;
    // Threads of its own, so that it does not wait for the flooding callers of this process.
    let measured = Aside::new(1, 0)?;
    let flooders = Aside::new(FLOODERS, LAST)?;
    let (client, keys) = measured_client(&cluster, measured.handle()).await?;
    // Connections are made, and caches are warm.
    let warm_up = gets(client.clone(), keys.clone(), SETTLE, "warming up");
    measured.handle().spawn(warm_up).await?;
    let tls = Tls::find(Some(&cluster.tls_dir("tenant/flood/rw/flood")?))?;
    let mut turns: Vec<Turn> = Vec::new();
    for flood in Flood::TURNS {
        tokio::time::sleep(SETTLE).await;
        let leader = admin.status().await.leader.context("no master leads")?.address;
        let flooder = Arc::new(Flooder {
            leader: leader.clone(),
            tenant: TlsNetwork::shared(tls.clone()),
            callers: args.callers,
            made: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let stop = CancellationToken::new();
        let flooding = flooder.clone().start(flood, flooders.handle(), &stop);
        let gets = gets(client.clone(), keys.clone(), args.duration.0, flood.name());
        let (latencies, failed) = measured.handle().spawn(gets).await?;
        stop.cancel();
        flooding.join_all().await;
        let (made, refused) = (flooder.made.load(Ordering::Relaxed), flooder.refused.load(Ordering::Relaxed));
        let p99_us = latencies.quantile_us(0.99);
        turns.push(Turn {
            flood: flood.name(),
            flood_s: round(made as f64 / args.duration.0.as_secs_f64()),
            refused: if made == 0 { 0.0 } else { refused as f64 / made as f64 },
            gets: latencies.count(),
            failed,
            p50_us: latencies.quantile_us(0.5),
            p99_us,
            p99_ratio: p99_us / turns.first().map_or(p99_us, |alone| alone.p99_us),
        });
    }
    let is_well = turns.iter().all(|turn| turn.failed == 0);
    let report = Report {
        bench: "flood",
        callers: args.callers,
        calls_limit: args.calls,
        size_bytes: SIZE as u64,
        turns,
        machine,
    };
    output.result(&report, || report.table());
    Ok(if is_well { Ended::Well } else { Ended::Negative })
}

/// Returns a client of the tenant that is measured, with its objects.
async fn measured_client(cluster: &Cluster, runtime: &Handle) -> Result<(Client, Keyspace)> {
    let builder = client_builder(&cluster.addresses()).tls_dir(cluster.tls_dir("tenant/calm/rw/calm")?);
    let builder = builder.runtime(runtime.clone());
    // Each get asks a master and reads from a store.
    let client = builder.local_cache(ByteSize(0)).connect().await?;
    ensure!(client.connected(READY_WITHIN).await, "no leader answers");
    let keys = Keyspace::uniform(format!("flood/{:016x}", rand::random::<u64>()), SIZE);
    let objects: Vec<(String, Bytes)> = (0..OBJECTS).map(|block| keys.object(block)).collect();
    for put in client.batch_put(&objects, &PutOptions::default()).await {
        ensure!(put.context("cannot put the objects")? == Put::Stored, "an object is not stored");
    }
    Ok((client, keys))
}

/// Gets objects at a steady pace; returns the times of the gets and the number of those that failed.
async fn gets(client: Client, keys: Keyspace, span: Duration, what: &'static str) -> (Latencies, u64) {
    let (mut latencies, mut failed) = (Latencies::new(), 0);
    let mut progress = Progress::new(what, span.as_millis() as u64);
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let start = tokio::time::Instant::now();
    for block in (0..OBJECTS).cycle() {
        // The time of a get counts from the moment at which it is due.
        let due = pace.tick().await;
        if start.elapsed() >= span {
            break;
        }
        let got = client.get(keys.key(block)).await;
        latencies.record(due.elapsed());
        if !matches!(got, Ok(Some(bytes)) if keys.is_right(block, &bytes)) {
            failed += 1;
        }
        progress.set(start.elapsed().as_millis() as u64);
    }
    (latencies, failed)
}

impl Flooder {
    fn start(self: Arc<Self>, flood: Flood, on: &Handle, stop: &CancellationToken) -> JoinSet<()> {
        let callers = if flood == Flood::Nothing { 0 } else { self.callers };
        let mut flooding = JoinSet::new();
        for _ in 0..callers {
            let (flooder, stop) = (self.clone(), stop.clone());
            let caller = async move {
                match flood {
                    Flood::Nothing => {}
                    Flood::Calls => flooder.calls(flooder.tenant.as_ref()).await,
                    Flood::Strangers => flooder.calls(&TcpNetwork).await,
                    Flood::Handshakes => flooder.handshakes().await,
                    Flood::HalfOpen => flooder.half_open().await,
                }
            };
            let caller = async move {
                stop.run_until_cancelled(caller).await;
            };
            flooding.spawn_on(caller, on);
        }
        flooding
    }

    fn note(&self, is_ok: bool) {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.refused.fetch_add(u64::from(!is_ok), Ordering::Relaxed);
    }

    /// Makes one call after the other.
    async fn calls(&self, network: &dyn Network) {
        let Ok(channel) = network.channel(&self.leader, ChannelOptions::default()) else { return };
        let mut master = MasterClient::new(channel);
        let caller =
            Caller { version_min: *VERSIONS.start(), version_max: *VERSIONS.end(), ..Caller::default() };
        let request = BatchExistRequest {
            caller: Some(caller),
            keys: vec!["k".into()],
            ..BatchExistRequest::default()
        };
        loop {
            self.note(master.batch_exist(request.clone()).await.is_ok());
            // A call that fails at once must not keep a thread of this process for itself.
            tokio::task::yield_now().await;
        }
    }

    /// Connects, again and again.
    async fn handshakes(&self) {
        loop {
            let connected = self.tenant.connect(&self.leader).await;
            self.note(connected.is_ok());
            if connected.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Holds connections open that have sent the beginning of a handshake.
    async fn half_open(&self) {
        // A record of TLS that says it has 512 bytes, and the first of them.
        const BEGUN: [u8; 6] = [22, 3, 1, 2, 0, 1];
        loop {
            let begun = async {
                let mut connection = TcpNetwork.connect(&self.leader).await?;
                connection.write_all(&BEGUN).await?;
                tokio::time::sleep(Duration::from_millis(100)).await;
                std::io::Result::Ok(())
            };
            let begun = begun.await;
            self.note(begun.is_ok());
            if begun.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Report {
    fn table(&self) -> String {
        let mut text = format!(
            "gets of {} KiB, one each {PACE:?}, beside {} callers that flood the leader ({} calls/s are allowed)\n",
            self.size_bytes >> 10,
            self.callers,
            self.calls_limit
        );
        for turn in &self.turns {
            let judged = if turn.p99_ratio <= GOAL { "met" } else { "missed" };
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "  {:<28}{:>9.0}/s, {:>3.0} % refused  p50 {:.0} us  p99 {:.0} us  {:.2} of that alone ({judged})  {} failed",
                turn.flood,
                turn.flood_s,
                100.0 * turn.refused,
                turn.p50_us,
                turn.p99_us,
                turn.p99_ratio,
                turn.failed
            );
        }
        text + &self.machine.line() + "\n"
    }
}
