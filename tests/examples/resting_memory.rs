//! Memory of a master for each object: one real master, objects with keys of 100 bytes, its resident memory as
//! the kernel tells it, once nothing is in flight any more.
//!
//!     cargo build --release --bin mcctl
//!     cargo run --release -p mc-tests --example resting_memory 1000000 3000000 10000000

use std::time::Duration;

use mc_tests::{Cluster, fill};

/// Puts are remembered until their deadline; then it takes some ticks of a second each to free what they took up.
const TO_REST: Duration = Duration::from_secs(90);

/// Resident bytes of a process.
fn resident(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the master runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its resident memory");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number of kB") * 1024.0
}

#[tokio::main]
async fn main() {
    let mut steps: Vec<u64> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    steps.sort_unstable();
    let Some(most) = steps.last() else {
        eprintln!("name how many objects, for instance 1000000 3000000");
        std::process::exit(2);
    };
    let cluster =
        Cluster::builder().masters(1).segment(&format!("{}mb", ((most * 64) >> 20) + 256)).start().await;
    let client = cluster.client().await;
    let master = cluster.masters[0].pid();
    let mut before = (0, resident(master));
    println!("0 objects: {:.1} MB", before.1 / 1e6);
    let (empty, mut slope) = (before.1, 0.0);
    for objects in steps {
        let took = fill(&client, before.0..objects).await;
        tokio::time::sleep(TO_REST).await;
        let now = resident(master);
        slope = (now - before.1) / (objects - before.0) as f64;
        println!(
            "{objects} objects: {:.1} MB, {:.0} B an object, {slope:.0} B each since the line before; put in {:.0} s",
            now / 1e6,
            (now - empty) / objects as f64,
            took.as_secs_f64(),
        );
        before = (objects, now);
    }
    let more = 50e6 - before.0 as f64;
    println!("on this slope, 50 M objects: {:.1} GB", slope.mul_add(more, before.1) / 1e9);
}
