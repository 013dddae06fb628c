//! Helpers for the rows of the transports.

use std::process::{Child, Command, Stdio};

use mc_tests::{Cluster, mcctl_exe, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::row::Row;

/// Kills one of two stores after the other; `moved` counts the bytes that a store moves by the transport.
pub(crate) async fn kill_stores(row: Row, moved: &str) {
    row.run(async |round| {
        let store = round.number % 2;
        until("the store moves bytes", async || round.cluster.store_metric_sum(store, moved).await > 0.0)
            .await;
        let id = round.cluster.store_id(store);
        let since = round.running.recorder().now();
        round.cluster.stores[store].kill9();
        round.struck();
        round.all_served().await;
        round.cluster.stores[store].start();
        round.gone_since(id, since);
    })
    .await;
}

/// A process that writes by one transport until it is killed.
pub(crate) struct Writer(Child);

impl Writer {
    /// Starts it, and waits until the pool has more bytes than the other clients, who have at most `others`.
    pub(crate) async fn start(cluster: &Cluster, transport: &str, others: u64) -> Self {
        let mut command = Command::new(mcctl_exe());
        command
            .args(["--masters", &cluster.addresses(), "--transport", transport])
            .args(["bench", "put", "--size", "2mb", "--threads", "2", "--keys", "8", "--duration", "600s"])
            .stdout(Stdio::null());
        let writer = Self(command.spawn().expect("mcctl starts"));
        until("it writes", async || {
            cluster.metric(cluster.leader().await, "mc_pool_used_bytes").await > Some(others as f64)
        })
        .await;
        writer
    }

    pub(crate) fn signal(&self, signal: Signal) {
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
