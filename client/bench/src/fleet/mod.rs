//! `mc-bench fleet`: measures three masters with hundreds of stores and thousands of clients.

mod calls;
mod clients;
mod stores;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use mc_console::{Ended, Global, Output, View, connect, note};
use mc_testbed::{Cluster, Security, Shape};
use mc_types::{ByteSize, Span};
use rustix::process::Signal;
use serde::Serialize;

use self::calls::Calls;
use self::clients::{Clients, Prober};
use self::stores::Stores;
use crate::machine::Machine;
use crate::own_pool::refuse_masters;
use crate::process::Usage;

#[derive(Clone, Debug, Args)]
pub(crate) struct FleetArgs {
    /// Number of stores
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) stores: u32,
    /// Number of clients, each with its own connections
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=50_000))]
    pub(crate) clients: u32,
    /// Duration of each measurement of the leader's CPU time: at rest, then under the clients' gets
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub(crate) rest: Span,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Give the processes of its own pool certificates, and require TLS
    #[arg(long)]
    pub(crate) tls: bool,
}

/// Time limit of each stage.
const LIMIT: Duration = Duration::from_secs(120);
/// Pause before a measurement at rest.
const SETTLE: Duration = Duration::from_secs(3);
/// Maximum number of descriptors of one store, of one client, and of the rest of this process.
const DESCRIPTORS: (u64, u64, u64) = (12, 4, 4_000);

/// Result of the command, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    stores: u32,
    clients: u32,
    /// Milliseconds from the start of the first store until all of them are mounted at a leader.
    mounted_ms: u64,
    /// The leader's CPU in per cent of a core, with all stores mounted and no client.
    leader_cpu_percent: f64,
    leader_rss_mib: f64,
    /// Milliseconds from the start of the first client until all of them know the leader.
    connected_ms: u64,
    /// The leader's CPU in per cent of a core, with each client getting one object a second.
    leader_loaded_cpu_percent: f64,
    leader_loaded_rss_mib: f64,
    /// Milliseconds from just before SIGKILL of the leader until a put and a get that began after its death have
    /// succeeded.
    failover_ms: u64,
    /// Milliseconds from the same moment until the next leader has answered a heartbeat of 99 % of the stores.
    stores_99_ms: u64,
    /// The same as `failover_ms`, after SIGKILL of all masters and their restart.
    restart_ms: u64,
    restart_stores_99_ms: u64,
    /// Highest rate of calls per second to all masters together.
    peak_calls_s: u64,
    gets: u64,
    gets_missed: u64,
    gets_failed: u64,
    machine: Machine,
}

pub(crate) async fn bench(global: &Global, args: &FleetArgs, output: Output) -> Result<Ended> {
    refuse_masters(global, "bench fleet kills masters, so it runs only on a pool that it starts")?;
    make_room(args)?;
    let shape = Shape {
        masters: 3,
        stores: 0,
        segment: ByteSize(0),
        data_dir: args.data_dir.clone(),
        security: Security::tls(args.tls),
        keeps_memory: false,
    };
    let mut cluster = Cluster::start(&shape)?;
    let outcome = run(args, &mut cluster).await;
    let report = outcome.map_err(|error| cluster.explain(error))?;
    output.result(&report, || report.table());
    Ok(Ended::Well)
}

/// Fails early if descriptors would run out later. The masters inherit the raised limit.
fn make_room(args: &FleetArgs) -> Result<()> {
    let (store, client, rest) = DESCRIPTORS;
    let needed = u64::from(args.stores) * store + u64::from(args.clients) * client + rest;
    let limit = mc_process::raise_descriptor_limit().context("cannot raise the limit on open files")?;
    ensure!(
        limit.is_none_or(|limit| limit >= needed),
        "{} stores and {} clients take up to {needed} descriptors, and this process may have {}: raise the hard limit \
         (ulimit -Hn {needed}, as root) or ask for fewer",
        args.stores,
        args.clients,
        limit.unwrap_or_default()
    );
    Ok(())
}

async fn run(args: &FleetArgs, cluster: &mut Cluster) -> Result<Report> {
    let machine = Machine::measure(cluster.dir().to_owned()).await?;
    let calls = Calls::count(cluster.masters.iter().map(|master| master.http_address.clone()).collect());
    leader(cluster).await?;

    note(&format!("starting {} stores", args.stores));
    let began = Instant::now();
    let tls_dir = cluster.tls_dir("store/store")?;
    let stores = Stores::start(args.stores, &cluster.addresses(), cluster.dir(), &tls_dir).await?;
    let mounted_ms = ms(within("all stores are mounted", stores.until_all(0), began).await?);
    note(&format!("all mounted after {mounted_ms} ms"));
    let rest = at_rest(cluster, args.rest.0).await?;

    let prober = Prober::start(&cluster.addresses(), &cluster.tls_dir("admin/bench")?, args.stores).await?;
    let began = Instant::now();
    let clients = Clients::start(args.clients, &cluster.addresses(), &prober).await?;
    let connected_ms = ms(began.elapsed());
    note(&format!("{} clients connected after {connected_ms} ms", args.clients));
    let loaded = at_rest(cluster, args.rest.0).await?;

    let address = leader(cluster).await?;
    let before = stores.newest_term();
    let process = &mut cluster.master_at(&address)?.process;
    note(&format!("killing the leader {address}"));
    let began = Instant::now();
    process.signal(Signal::KILL)?;
    process.wait_dead(LIMIT).await?;
    let (failover, heard) = tokio::try_join!(
        within("a put and a get work again", prober.until_good(), began),
        within("99 % of the stores are heard by the next leader", stores.until_99(before), began),
    )?;
    let (failover_ms, stores_99_ms) = (ms(failover), ms(heard));
    note(&format!("failover {failover_ms} ms, 99 % of the stores {stores_99_ms} ms"));
    cluster.master_at(&address)?.process.restart()?;
    tokio::time::sleep(SETTLE).await;

    let before = stores.newest_term();
    note("killing and restarting all masters");
    let began = Instant::now();
    for master in &cluster.masters {
        master.process.signal(Signal::KILL)?;
    }
    for master in &mut cluster.masters {
        master.process.wait_dead(LIMIT).await?;
        master.process.restart()?;
    }
    let (restart, heard) = tokio::try_join!(
        within("a put and a get work after the restart", prober.until_good(), began),
        within("99 % of the stores are heard after the restart", stores.until_99(before), began),
    )?;
    let (restart_ms, restart_stores_99_ms) = (ms(restart), ms(heard));
    note(&format!("restart {restart_ms} ms, 99 % of the stores {restart_stores_99_ms} ms"));

    let gets = clients.stop();
    stores.stop();
    Ok(Report {
        bench: "fleet",
        stores: args.stores,
        clients: args.clients,
        mounted_ms,
        leader_cpu_percent: rest.cpu_percent,
        leader_rss_mib: rest.rss_mib,
        connected_ms,
        leader_loaded_cpu_percent: loaded.cpu_percent,
        leader_loaded_rss_mib: loaded.rss_mib,
        failover_ms,
        stores_99_ms,
        restart_ms,
        restart_stores_99_ms,
        peak_calls_s: calls.peak().await,
        gets: gets.good,
        gets_missed: gets.missed,
        gets_failed: gets.failed,
        machine,
    })
}

/// Returns the client address of the leader, once there is one.
async fn leader(cluster: &Cluster) -> Result<String> {
    let admin = connect::admin(&cluster.addresses()).await?;
    let start = Instant::now();
    loop {
        if let Some(leader) = View::of(&admin.status().await).leader {
            return Ok(leader);
        }
        ensure!(start.elapsed() < LIMIT, "no master led within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Measures CPU time and memory of the leader after a pause.
async fn at_rest(cluster: &mut Cluster, span: Duration) -> Result<Usage> {
    tokio::time::sleep(SETTLE).await;
    let address = leader(cluster).await?;
    let pid = cluster.master_at(&address)?.process.pid();
    let usage = Usage::over(pid, span).await?;
    note(&format!("the leader takes {} % of a core and {} MiB", usage.cpu_percent, usage.rss_mib));
    Ok(usage)
}

/// Waits until `done` ends, up to the time limit; returns the time since `began`.
async fn within(what: &str, done: impl Future<Output = ()>, began: Instant) -> Result<Duration> {
    let waited = tokio::time::timeout(LIMIT, done).await;
    waited.with_context(|| format!("waited {LIMIT:?} until {what}"))?;
    Ok(began.elapsed())
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Report {
    fn table(&self) -> String {
        format!(
            "fleet of {} stores and {} clients\n  all stores mounted in {} ms; the leader takes {} % of a core and {} MiB at \
             rest\n  all clients connected in {} ms; {} % of a core and {} MiB with a get a second each\n  leader killed: a \
             put and a get after {} ms, 99 % of the stores after {} ms\n  all masters killed: {} ms and {} ms\n  at most {} \
             calls/s; {} gets, {} missed, {} failed\n{}\n",
            self.stores,
            self.clients,
            self.mounted_ms,
            self.leader_cpu_percent,
            self.leader_rss_mib,
            self.connected_ms,
            self.leader_loaded_cpu_percent,
            self.leader_loaded_rss_mib,
            self.failover_ms,
            self.stores_99_ms,
            self.restart_ms,
            self.restart_stores_99_ms,
            self.peak_calls_s,
            self.gets,
            self.gets_missed,
            self.gets_failed,
            self.machine.line()
        )
    }
}
