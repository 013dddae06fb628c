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
            round.struck();
            tokio::time::sleep(SPELL).await;
            drop(busy);
        })
        .await;
}

/// As many connections as the leader has descriptors, and more: its Raft connections are open already, and stay.
#[tokio::test]
async fn no_descriptors() {
    const LIMIT: u64 = 256;
    Row::new("descriptors used up by idle connections", "leader")
        .run(async |round| {
            let leader = round.cluster.leader().await;
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
            round.struck();
            tokio::time::sleep(SPELL).await;
            drop(connections);
            round.cluster.masters[leader].limit_descriptors(limit);
        })
        .await;
}
