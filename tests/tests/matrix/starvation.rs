//! Masters that get too little of the machine.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Cluster, ClusterBuilder, Process, http_get, until, until_within};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::round::Round;
use crate::row::{HANDOVER, Row, Who};
use crate::witness::Direct;

const SPELL: Duration = Duration::from_secs(3);
/// Nobody gets the processor when it is needed.
const STARVED: Service = Service::interrupted(Duration::from_millis(1_000));
const FLOODED: Service = Service::interrupted(Duration::from_millis(1_000));
/// Message of the allocator when the kernel refuses it memory.
const REFUSED: &str = "unable to allocate memory";
/// Less than any master has: it gets no more.
const MEMORY: u64 = 1 << 20;
/// Calls at a time that need memory, and how much each.
const CALLS: usize = 8;
const CALL_BYTES: usize = 8 << 20;

/// Threads that use all the processor time that they get, until dropped.
struct Busy {
    over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn new(threads: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let spin = |over: Arc<AtomicBool>| {
            move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let threads = (0..threads).map(|_| std::thread::spawn(spin(over.clone()))).collect();
        Self { over, threads }
    }
}

/// Time that the processors of this machine have been idle, all together.
fn idle_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").expect("this machine's figures");
    let all =
        stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).expect("a line for all processors");
    // The fourth is idle, the fifth waits for a disk.
    let ticks = all.split_whitespace().skip(3).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64(ticks.sum::<u64>() as f64 / per_second as f64)
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[tokio::test]
async fn no_processor() {
    Row::new("processors taken by 4 busy threads each", "all masters", STARVED)
        .run(async |round| {
            let cores = std::thread::available_parallelism().map_or(2, usize::from);
            let (began, idle_before) = (Instant::now(), idle_time());
            let busy = Busy::new(4 * cores);
            round.spell(SPELL).await;
            // Hardly any processor was idle, so a master that needed one had to wait. The time of the busy threads is no measure: a host
            // that runs other machines takes some of it.
            if idle_time() - idle_before < began.elapsed() * cores as u32 / 10 {
                round.struck();
            }
            drop(busy);
        })
        .await;
}

/// Descriptors of a leader that is flooded.
const FEW: u64 = 64;

/// Connections that are open to `address` all the time, `number` of them, until dropped.
struct Flood {
    /// Connections that the other end has closed.
    closed: Arc<AtomicUsize>,
    _connections: JoinSet<()>,
}

impl Flood {
    /// Sends each connection `first`, and then a byte of no meaning a second.
    fn of(number: usize, address: &str, first: &'static [u8]) -> Self {
        let closed = Arc::new(AtomicUsize::new(0));
        let connections = (0..number).map(|_| {
            let (address, closed) = (address.to_owned(), closed.clone());
            async move {
                loop {
                    // Where the queue of those that are not accepted is full, the kernel would try for two minutes.
                    let connect = timeout(Duration::from_millis(500), TcpStream::connect(&address));
                    if let Ok(Ok(connection)) = connect.await {
                        hold(connection, first).await;
                        closed.fetch_add(1, Ordering::Relaxed);
                    }
                    // A peer of the master has to speak before so many newcomers have come that its place is taken.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
        Self { closed: closed.clone(), _connections: connections.collect() }
    }

    async fn closed(&self, at_least: usize) {
        until("the master closes them", async || self.closed.load(Ordering::Relaxed) >= at_least).await;
    }
}

/// Keeps a connection until the other end closes it.
async fn hold(mut connection: TcpStream, first: &[u8]) {
    let (mut from, mut to) = connection.split();
    let trickle = async {
        let mut next = first;
        while to.write_all(next).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            next = if first.is_empty() { b"" } else { b"x" };
        }
    };
    let closed = async { while from.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        () = closed => {}
        () = trickle => {}
    }
}

/// Silent connections to each port of the leader, more than it has descriptors. All its ports answer, and puts go on.
#[tokio::test]
async fn idle_connections() {
    Row::new("200 silent connections to each port, 64 descriptors", "leader", FLOODED)
        .run_at(Who::Leader, async |round, leader| {
            let limit = round.cluster.masters[leader].limit_descriptors(FEW);
            let ports = [
                round.cluster.master_address(leader).to_owned(),
                round.cluster.master_raft(leader).to_owned(),
                round.cluster.master_http(leader).to_owned(),
            ];
            let floods = ports.map(|port| Flood::of(200, &port, b""));
            for flood in &floods {
                flood.closed(200).await;
            }
            round.hit().await;
            round.struck();
            round.spell(SPELL).await;
            until("the leader's HTTP port answers", async || {
                let answer = http_get(round.cluster.master_http(leader), "/livez").await;
                answer.is_ok_and(|(code, _)| code == 200)
            })
            .await;
            until("the leader's client port answers", async || round.cluster.status(leader).await.is_some())
                .await;
            drop(floods);
            round.cluster.masters[leader].limit_descriptors(limit);
        })
        .await;
}

/// Headers of HTTP requests that come byte by byte.
#[tokio::test]
async fn trickling_headers() {
    Row::new("300 HTTP requests at a byte a second, 64 descriptors", "leader, which leads on", FLOODED)
        .run_at(Who::Leader, async |round, leader| {
            let limit = round.cluster.masters[leader].limit_descriptors(FEW);
            let flood = Flood::of(300, round.cluster.master_http(leader), b"GET /livez HTTP/1.1\r\nx: ");
            flood.closed(300).await;
            round.hit().await;
            round.struck();
            round.spell(SPELL).await;
            let leads = round.cluster.status(leader).await.is_some_and(|status| status.role == "leader");
            round.claim(leads, "the leader leads on");
            drop(flood);
            round.cluster.masters[leader].limit_descriptors(limit);
        })
        .await;
}

/// A leader that can open nothing more hands over to a master that can. In a later round that takes up to a minute from
/// the hand-over before.
#[tokio::test]
async fn no_descriptors() {
    Row::new("no more descriptors", "leader, which hands over", HANDOVER)
        .run_at(Who::Leader, async |round, leader| {
            // A closed connection leaves a descriptor free, so the limit follows.
            let no_more = |process: &Process| process.limit_descriptors(process.first_free_descriptor());
            let limit = no_more(&round.cluster.masters[leader]);
            round.hit().await;
            round.struck();
            until_within(Duration::from_secs(150), "another master leads", async || {
                no_more(&round.cluster.masters[leader]);
                round.cluster.find_leader().await.is_some_and(|now| now != leader)
            })
            .await;
            round.all_served().await;
            round.cluster.masters[leader].limit_descriptors(limit);
        })
        .await;
}

/// Processes whose allocator asks the kernel for memory as it needs some, and says when it is refused. Left alone it
/// asks for a gigabyte at the start, and meets no limit before that is used up.
fn asking_as_needed(cluster: ClusterBuilder) -> ClusterBuilder {
    cluster
        .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
        .env("MIMALLOC_SHOW_ERRORS", "1")
        .env("MIMALLOC_MAX_ERRORS", "-1")
}

/// The kernel gives a master no more memory while its calls need some.
///
/// The process is expected to end: an allocation that is refused aborts it, and the words of that are in its log. One
/// that fails elsewhere (a thread's stack, say) may be survived, or end it with an error. Either way the others go on,
/// and with memory again, after a restart if it ended, it is as good as before.
async fn no_memory(who: Who) {
    Row::new("no more memory than it has, under calls of 8 MiB", who.role(), who.lost())
        .cluster(asking_as_needed)
        .run_at(who, async |round, master| {
            let limit = starve(round, master).await;
            round.hit().await;
            round.struck();
            let ends = until("it ends", async || !round.cluster.masters[master].is_running());
            let _ = timeout(SPELL, ends).await;
            round.all_served().await;
            if round.cluster.masters[master].is_running() {
                round.cluster.masters[master].limit_memory(limit);
            } else {
                let status = round.cluster.masters[master].ended().await;
                let aborted = status.signal() == Some(Signal::ABORT.as_raw());
                assert!(aborted || status.code() == Some(1), "it ends with an error: {status}");
                round.cluster.masters[master].start();
            }
        })
        .await;
}

/// Limits its memory, and makes calls that need some until it has been refused it. Returns the limit before.
async fn starve(round: &Round<'_>, master: usize) -> u64 {
    let direct = Direct::to(round.cluster, master);
    let refusals = |cluster: &Cluster| cluster.masters[master].output().matches(REFUSED).count();
    let before = refusals(round.cluster);
    let limit = round.cluster.masters[master].limit_memory(MEMORY);
    let mut calls = JoinSet::new();
    until("it is refused memory", async || {
        while calls.try_join_next().is_some() {}
        if calls.len() < CALLS {
            calls.spawn(direct.clone().take_memory(CALL_BYTES));
        }
        refusals(round.cluster) > before
    })
    .await;
    limit
}

rows! {
    no_memory_leader => no_memory(Who::Leader);
    no_memory_follower => no_memory(Who::Follower);
}
