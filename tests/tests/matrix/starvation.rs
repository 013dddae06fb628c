//! Masters that get too little of the machine.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_tests::{Cluster, ClusterBuilder, until};
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::row::{Round, Row};
use crate::witness::Direct;

const SPELL: Duration = Duration::from_secs(3);
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
    threads: Vec<std::thread::JoinHandle<Duration>>,
}

impl Busy {
    fn new(threads: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let spin = |over: Arc<AtomicBool>| {
            move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                processor_time()
            }
        };
        let threads = (0..threads).map(|_| std::thread::spawn(spin(over.clone()))).collect();
        Self { over, threads }
    }

    /// Ends them, and returns the processor time that they had in all.
    fn end(mut self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(|thread| thread.join().expect("it only spins")).sum()
    }
}

/// Processor time that this thread has had.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("this thread's figures");
    // The name in brackets may hold anything; the 12th and 13th after it are ticks in user and in system mode.
    let (_, figures) = stat.rsplit_once(')').expect("a name in brackets");
    let ticks = figures.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
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
    Row::new("processors taken by 4 busy threads each", "all masters")
        .run(async |round| {
            let cores = std::thread::available_parallelism().map_or(2, usize::from);
            let busy = Busy::new(4 * cores);
            tokio::time::sleep(SPELL).await;
            // The masters had less than the other half, together with all else on this machine.
            if busy.end() > SPELL * cores as u32 / 2 {
                round.struck();
            }
        })
        .await;
}

/// As many connections as the leader has descriptors, and more: its Raft connections are open already, and stay.
#[tokio::test]
async fn no_descriptors() {
    const LIMIT: u64 = 256;
    Row::new("descriptors used up by idle connections", "leader")
        .run(async |round| {
            let leader = round.leader().await;
            let limit = round.cluster.masters[leader].limit_descriptors(LIMIT);
            let address = round.cluster.master_address(leader).to_owned();
            let mut connections = Vec::new();
            until("it accepts no more", async || {
                for _ in 0..64 {
                    // Where the queue of those that are not accepted is full, the kernel would try for two minutes.
                    let connect = tokio::net::TcpStream::connect(&address);
                    match timeout(Duration::from_millis(100), connect).await {
                        Ok(Ok(connection)) => connections.push(connection),
                        _ => break,
                    }
                }
                round.cluster.masters[leader].descriptors() as u64 >= LIMIT
            })
            .await;
            round.hit().await;
            round.struck();
            tokio::time::sleep(SPELL).await;
            drop(connections);
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
async fn no_memory(role: &'static str, leads: bool) {
    Row::new("no more memory than it has, under calls of 8 MiB", role)
        .cluster(asking_as_needed)
        .run(async |round| {
            let master = if leads { round.leader().await } else { round.cluster.follower().await };
            let limit = starve(round, master).await;
            round.hit().await;
            round.struck();
            let ends = until("it ends", async || !round.cluster.masters[master].is_running());
            let _ = timeout(SPELL, ends).await;
            round.running.acknowledged(50).await;
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

#[tokio::test]
async fn no_memory_leader() {
    no_memory("leader", true).await;
}

#[tokio::test]
async fn no_memory_follower() {
    no_memory("follower", false).await;
}
