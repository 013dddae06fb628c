//! `mcctl playground`: starts a pool of real processes that is too small for its workload, kills the leader, and checks
//! every byte.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use mc_client::Client;
use mc_console::{Ended, Interrupts, Output, Progress, Tone, connect, human_bytes, note, ratio};
use mc_testbed::{
    Capacity, Cluster, Driver, Ending, Failover, Generator, Keyspace, Ledger, Miss, Requests, Security,
    Shape, Verdict, baseline, end_leader, read_trace, value, verify,
};
use mc_types::ALLOCATION_ALIGN;
use parking_lot::Mutex;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct PlaygroundArgs {
    /// Exit after the check instead of staying up
    #[arg(long)]
    pub(crate) once: bool,
    /// Replay a recorded workload instead of a generated one: JSON lines with `timestamp` and `hash_ids`, plain or
    /// gzipped, with at least --puts different blocks
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Seed of the generated workload
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "trace")]
    pub(crate) seed: u64,
    /// Number of different blocks to put; the leader is killed half-way, and the pool has room for about half of them
    #[arg(long, default_value_t = 3_600, value_name = "N", value_parser = clap::value_parser!(u64).range(2_000..=100_000))]
    pub(crate) puts: u64,
    /// Parent of the directory for data and logs [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Give the processes certificates, and require TLS
    #[arg(long)]
    pub(crate) tls: bool,
}

/// Number of conversations served at the same time.
const WORKERS: usize = 4;
/// Divisor of the trace's pauses. Without it a run of some hundred requests would see no second turns.
const PAUSE_DIVISOR: f64 = 20.0;
/// Share of the blocks for which the pool has room.
const ROOM: f64 = 0.5;
/// Bytes of a record.
const RECORD: usize = 1 << 10;
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Result of the command, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    /// Milliseconds from just before the kill until the writing client has put a new key and got an old one.
    failover_ms: f64,
    /// Acknowledged puts: blocks of the workload, and a hard-pinned record of each.
    acked: u64,
    /// Acknowledged records that are gone, and blocks that the masters know and no store has.
    lost: u64,
    wrong: u64,
    /// Acknowledged blocks that were evicted.
    evicted: u64,
    /// Records read that are older than the kill.
    old_keys_read: u64,
    /// Share of the requested blocks that the pool had: those of the longest prefix of each request.
    hit_ratio: f64,
    /// The same for a cache that has as many bytes and evicts the least recently used block.
    lru: f64,
    /// Bytes of objects at which the pool starts to evict.
    capacity_bytes: u64,
    put_mib_s: f64,
    get_mib_s: f64,
    leader_before: String,
    leader_after: String,
    killed_pid: u32,
    /// `generated` or `trace`.
    workload: &'static str,
    /// Requests of the workload that were served.
    requests: u64,
}

impl Report {
    fn is_good(&self) -> bool {
        self.lost == 0 && self.wrong == 0
    }
}

pub(crate) async fn playground(args: &PlaygroundArgs, output: Output) -> Result<Ended> {
    let mut interrupts = Interrupts::catch().context("cannot catch signals")?;
    let (workload, requests) = requests(args)?;
    let mut shape = Shape::three_and_two_full_of(capacity(args.puts));
    shape.data_dir.clone_from(&args.data_dir);
    shape.security = Security::tls(args.tls);
    let mut cluster = Cluster::start(&shape)?;
    tell_start(&mut cluster, &shape, output);

    let outcome = interrupts.until(show(&mut cluster, args, workload, requests, output)).await?;
    let report = outcome.map_err(|error| cluster.explain(error))?;
    if !report.is_good() {
        cluster.keep_logs();
        output.say(&format!("data and logs are kept in {}", cluster.dir().display()));
    }
    output.result(&report, || summary(&report, output));
    if !args.once
        && let Err(error) = stay_up(&mut cluster, &mut interrupts, output).await
    {
        // The result is already printed, and `-o json` prints one document.
        note(&format!("error: {error:#}"));
        return Ok(Ended::Down);
    }
    Ok(if report.is_good() { Ended::Well } else { Ended::Negative })
}

/// Returns the bytes at which the pool starts to evict.
fn capacity(puts: u64) -> u64 {
    ((puts * value::MEAN) as f64 * ROOM) as u64
}

/// Returns the requests to serve, enough for the wanted number of puts; generated requests never end.
fn requests(args: &PlaygroundArgs) -> Result<(&'static str, Requests)> {
    Ok(match &args.trace {
        Some(path) => {
            let requests = read_trace(path)?;
            let blocks =
                requests.iter().flat_map(|request| &request.blocks).collect::<HashSet<_>>().len() as u64;
            if blocks < args.puts {
                bail!(
                    "the trace {} has {blocks} different blocks, fewer than the {} puts to reach: take a longer one, \
                     or lower --puts (2000 at least)",
                    path.display(),
                    args.puts
                );
            }
            ("trace", Box::new(requests.into_iter().map(|request| request.blocks)))
        }
        None => ("generated", Box::new(Generator::new(args.seed, PAUSE_DIVISOR))),
    })
}

/// Runs the show: waits for the pool, writes, kills the leader, and checks every byte.
async fn show(
    cluster: &mut Cluster,
    args: &PlaygroundArgs,
    workload: &'static str,
    requests: Requests,
    output: Output,
) -> Result<Report> {
    let start = Instant::now();
    let view = cluster.wait_ready(READY_WITHIN).await?;
    let leader = view.leader.context("a ready pool has a leader")?;
    let leader_name = cluster.master_at(&leader)?.process.name().to_owned();
    output.say(&format!("ready after {:.1} s: {leader_name} leads", start.elapsed().as_secs_f64()));

    let writer = connect::client_with_leader(&cluster.addresses(), READY_WITHIN).await?;
    let blocks = Ledger::new(Keyspace::mixed(format!("playground/{workload}")));
    let records = format!("playground/{workload}-records");
    let records = Ledger::new(Keyspace::uniform(records, RECORD).hard_pinned());
    let driver = Driver::new(writer.clone(), blocks.clone(), records.clone(), args.puts, requests);
    let (failover, writing) = write_and_kill(cluster, &writer, &driver, &records, args.puts, output).await?;

    let counted = driver.counted();
    let capacity_bytes = capacity(args.puts);
    output.say(&format!(
        "{} blocks put, {} in {} {workload} requests, into a pool with room for {}; {} failed calls",
        blocks.acknowledged(),
        human_bytes(blocks.bytes()),
        counted.requests.len(),
        human_bytes(capacity_bytes),
        counted.failed
    ));
    let requested: usize = counted.requests.iter().map(Vec::len).sum();
    let of_block = |block| (blocks.keys.size(block) as u64).next_multiple_of(ALLOCATION_ALIGN);
    let lru = baseline::lru(&counted.requests, Capacity { total: capacity_bytes, of_block: &of_block });
    let (hit_ratio, lru) = (ratio(counted.hits, requested as u64), ratio(lru, requested as u64));
    output.say(&format!(
        "hit ratio {hit_ratio:.3}: {} of {requested} requested blocks were in the pool; LRU with as many bytes: {lru:.3}",
        counted.hits
    ));
    let put_mib_s = mib_s(blocks.bytes(), writing);
    // Close the writer, so that its connections do not slow the reader.
    writer.close();

    let (of_blocks, of_records) = read_everything(&cluster.addresses(), &blocks, &records, output).await?;
    Ok(Report {
        failover_ms: (failover.outage.as_secs_f64() * 1e4).round() / 10.0,
        acked: blocks.acknowledged() + records.acknowledged(),
        lost: of_blocks.lost + of_records.lost,
        wrong: of_blocks.wrong + of_records.wrong + counted.wrong,
        evicted: of_blocks.evicted,
        old_keys_read: of_records.old_right,
        hit_ratio,
        lru,
        capacity_bytes,
        put_mib_s,
        get_mib_s: mib_s(of_blocks.bytes, of_blocks.took),
        leader_before: failover.leader_before,
        leader_after: failover.leader_after,
        killed_pid: failover.killed_pid,
        workload,
        requests: counted.requests.len() as u64,
    })
}

/// Runs the workload and kills the leader half-way; returns the failover, and the time of writing including it.
async fn write_and_kill(
    cluster: &mut Cluster,
    writer: &Client,
    driver: &Driver,
    records: &Ledger,
    puts: u64,
    output: Output,
) -> Result<(Failover, Duration)> {
    let start = Instant::now();
    let progress = Mutex::new(Progress::new("putting", puts));
    let watch = async {
        loop {
            progress.lock().set(records.acknowledged());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let kill = async {
        while records.acknowledged() < puts / 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let say = |line: &str| progress.lock().say(output, line);
        say(&format!("{} blocks put; kill -9 of the leader, while the puts go on", records.acknowledged()));
        let failover = end_leader(cluster, writer, records, Ending::Kill, &AtomicU64::new(0)).await?;
        let dead = cluster.master_at(&failover.leader_before)?.process.name().to_owned();
        let next = cluster.master_at(&failover.leader_after)?.process.name().to_owned();
        say(&format!(
            "{dead} (pid {}) is dead; {next} leads; after {} ms the same client had put a new key and got an old one",
            failover.killed_pid,
            failover.outage.as_millis()
        ));
        Ok(failover)
    };
    let run = async {
        driver.run(WORKERS).await?;
        Ok(start.elapsed())
    };
    tokio::select! {
        done = async { tokio::try_join!(kill, run) } => done,
        never = watch => never,
    }
}

/// Reads every acknowledged block and record with a fresh client that has no earlier state.
async fn read_everything(
    masters: &str,
    blocks: &Ledger,
    records: &Ledger,
    output: Output,
) -> Result<(Verdict, Verdict)> {
    let reader = connect::client_with_leader(masters, READY_WITHIN).await?;
    let total = blocks.acknowledged() + records.acknowledged();
    let progress = Mutex::new(Progress::new("reading back", total));
    let of_blocks = verify(&reader, blocks, Miss::Eviction, |done| progress.lock().set(done)).await;
    let before = blocks.acknowledged();
    let of_records = verify(&reader, records, Miss::Loss, |done| progress.lock().set(before + done)).await;
    drop(progress);
    output.say("a fresh client read everything back and compared each byte:");
    output.say(&format!(
        "  blocks:   {} right, {} evicted, {} lost, {} wrong",
        of_blocks.right, of_blocks.evicted, of_blocks.lost, of_blocks.wrong
    ));
    output.say(&format!(
        "  records:  {} right ({} of them older than the kill), {} lost, {} wrong",
        of_records.right, of_records.old_right, of_records.lost, of_records.wrong
    ));
    output.say("  (each block has a record: a small object put after it, hard-pinned, so that its absence is a loss)");
    Ok((of_blocks, of_records))
}

fn mib_s(bytes: u64, took: Duration) -> f64 {
    (bytes as f64 / (1 << 20) as f64 / took.as_secs_f64() * 10.0).round() / 10.0
}

fn tell_start(cluster: &mut Cluster, shape: &Shape, output: Output) {
    output.say("a pool of real processes on this machine, --log-sync fdatasync:");
    for master in &cluster.masters {
        let process = &master.process;
        output.say(&format!("  {}  {:<15}  pid {}", process.name(), master.client_address, process.pid()));
    }
    for store in &cluster.stores {
        let process = &store.process;
        let segment = human_bytes(shape.segment.0);
        output.say(&format!(
            "  {}   {:<15}  pid {}, lends {segment}",
            process.name(),
            store.address,
            process.pid()
        ));
    }
}

fn summary(report: &Report, output: Output) -> String {
    let verdict = match report.is_good() {
        true => output.paint(Tone::Good, "nothing lost, nothing wrong"),
        false => output.paint(Tone::Bad, &format!("{} lost, {} wrong", report.lost, report.wrong)),
    };
    format!(
        "failover {:.0} ms; {} acknowledged puts; {verdict}; hit ratio {:.3} (LRU {:.3}); put {:.0} MiB/s, get {:.0} MiB/s",
        report.failover_ms, report.acked, report.hit_ratio, report.lru, report.put_mib_s, report.get_mib_s
    )
}

/// Keeps the pool running until Ctrl-C. It restarts the killed leader at once, and later any process that ends, after 5
/// s.
async fn stay_up(cluster: &mut Cluster, interrupts: &mut Interrupts, output: Output) -> Result<()> {
    let keep = async {
        restart_dead(cluster, output, Duration::ZERO).await?;
        tell_how_to_use(cluster, output);
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            restart_dead(cluster, output, Duration::from_secs(5)).await?;
        }
    };
    // An interrupt is the normal end.
    interrupts.until(keep).await.unwrap_or(Ok(()))
}

async fn restart_dead(cluster: &mut Cluster, output: Output, after: Duration) -> Result<()> {
    let mut restarted = false;
    for process in cluster.processes() {
        if process.check_running().is_err() {
            if !after.is_zero() {
                output.say(&format!("{} ended; it starts again in {after:?}", process.name()));
                tokio::time::sleep(after).await;
            }
            process.restart()?;
            output.say(&format!("{} is back, pid {}", process.name(), process.pid()));
            restarted = true;
        }
    }
    if restarted {
        cluster.wait_ready(READY_WITHIN).await?;
        output.say("the pool is healthy");
    }
    Ok(())
}

fn tell_how_to_use(cluster: &Cluster, output: Output) {
    let pages = |at: &str| format!("http://{at}/status  http://{at}/metrics");
    output.say("\nthe pool stays up until Ctrl-C; in another terminal:");
    output.say(&format!("  export MC_MASTERS={}", cluster.addresses()));
    for line in [
        "mcctl status",
        "mcctl put greeting README.md && mcctl get greeting -",
        "mcctl bench get --masters $MC_MASTERS",
        "kill -9 <a master's pid>     # then mcctl status; it is started again after 5 s",
    ] {
        output.say(&format!("  {line}"));
    }
    for master in &cluster.masters {
        let process = &master.process;
        output.say(&format!("{}: pid {}, {}", process.name(), process.pid(), pages(&master.http_address)));
    }
    for store in &cluster.stores {
        let process = &store.process;
        output.say(&format!(
            "{}: pid {}, http://{}/metrics",
            process.name(),
            process.pid(),
            store.http_address
        ));
    }
    output.say(&format!("logs: {}", cluster.dir().display()));
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use mc_testbed::Block;

    #[test]
    fn the_json_has_the_documented_keys() {
        let report = Report {
            failover_ms: 312.5,
            acked: 3_600,
            lost: 0,
            wrong: 0,
            evicted: 2_100,
            old_keys_read: 1_800,
            hit_ratio: 0.35,
            lru: 0.33,
            capacity_bytes: 1 << 29,
            put_mib_s: 200.0,
            get_mib_s: 400.0,
            leader_before: "127.0.0.1:1".into(),
            leader_after: "127.0.0.1:2".into(),
            killed_pid: 7,
            requests: 9,
            workload: "generated",
        };
        let json = serde_json::to_value(&report).unwrap();
        let mut keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let documented = "acked capacity_bytes evicted failover_ms get_mib_s hit_ratio killed_pid leader_after leader_before lost \
             lru old_keys_read put_mib_s requests workload wrong";
        assert_eq!(keys.join(" "), documented);
        assert!(report.is_good());
        assert!(!Report { lost: 1, ..report }.is_good());
    }

    #[test]
    fn the_blocks_do_not_fit_into_the_pool_and_those_that_are_reused_do() {
        let puts = 3_600;
        let keys = Keyspace::mixed("playground/generated".into());
        let mut uses: HashMap<Block, u64> = HashMap::new();
        for request in Generator::new(1, PAUSE_DIVISOR) {
            if uses.len() >= puts {
                break;
            }
            request.iter().for_each(|block| *uses.entry(*block).or_default() += 1);
        }
        let used = |least| {
            let blocks = uses.iter().filter(|(_, uses)| **uses >= least);
            blocks.map(|(block, _)| keys.size(*block) as u64).sum::<u64>()
        };
        let (all, reused, room) = (used(1), used(2), capacity(puts as u64));
        assert!(all > 900 << 20 && all < 1_150 << 20, "about 1 GiB: {}", human_bytes(all));
        assert!(room < all / 2, "{} for {}", human_bytes(room), human_bytes(all));
        // Read leases, which outlast a run, keep reused blocks in the pool. The others need room beside them.
        assert!(reused < room * 3 / 4, "{} of {}", human_bytes(reused), human_bytes(room));
    }
}
