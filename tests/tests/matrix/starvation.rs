//! Masters that get too little of the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_tests::until;

use crate::row::Row;

const SPELL: Duration = Duration::from_secs(3);

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
                    if let Ok(connection) = tokio::net::TcpStream::connect(&address).await {
                        connections.push(connection);
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
