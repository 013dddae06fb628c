//! Clients that share memory with the stores.

use std::process::{Child, Command, Stdio};

use mc_tests::{Cluster, http_get, mcctl_exe, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::row::{Row, SHORT_OF_A_STORE};

/// Bytes that clients wrote to a store through shared memory; 0 while it does not answer.
async fn written(cluster: &Cluster, store: usize) -> f64 {
    let (_, metrics) = http_get(cluster.store_http(store), "/metrics").await.unwrap_or_default();
    let line = metrics.lines().find(|line| line.starts_with("mc_store_shm_written_bytes_total"));
    line.and_then(|line| line.split_whitespace().last()?.parse().ok()).unwrap_or(0.0)
}

async fn all_written(cluster: &Cluster) -> f64 {
    written(cluster, 0).await + written(cluster, 1).await
}

/// Its memory can still be read by those who have mapped it, and means nothing any more.
#[tokio::test]
async fn kill_store() {
    Row::new("kill -9", "one of two stores, through shared memory")
        .cluster(|cluster| cluster.stores(2))
        .shared_memory()
        .live_within(SHORT_OF_A_STORE)
        .run(async |round| {
            let store = round.number % 2;
            until("the store copies puts", async || written(round.cluster, store).await > 0.0).await;
            let since = round.running.recorder().now();
            round.cluster.stores[store].kill9();
            round.struck();
            round.running.acknowledged(10).await;
            round.cluster.stores[store].start();
            round.gone_since(since);
        })
        .await;
}

/// A process that writes through shared memory until it is killed.
struct Writer(Child);

impl Writer {
    fn start(cluster: &Cluster) -> Self {
        let mut command = Command::new(mcctl_exe());
        command
            .args(["--masters", &cluster.addresses(), "bench", "put", "--size", "2mb", "--threads", "2"])
            .args(["--keys", "8", "--duration", "600s"])
            .stdout(Stdio::null());
        Self(command.spawn().expect("mcctl starts"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The client stops between the start of a put and its end. Its late requests damage no value of others.
#[tokio::test]
async fn stop_client() {
    let mut writer = None;
    Row::new("SIGSTOP", "a client that writes through shared memory, then goes on")
        .cluster(|cluster| cluster.stores(2).segment("64mb"))
        .shared_memory()
        .run(async |round| {
            let writer = writer.get_or_insert_with(|| Writer::start(round.cluster));
            let before = all_written(round.cluster).await;
            let goes_on = || async { all_written(round.cluster).await > before + f64::from(8 << 20) };
            until("it writes", goes_on).await;
            writer.signal(Signal::STOP);
            round.struck();
            round.running.acknowledged(50).await;
            writer.signal(Signal::CONT);
        })
        .await;
}
