//! A client that is a process of its own.

use std::process::{Child, Command, Stdio};

use mc_tests::{Cluster, http_get, mcctl_exe};
use rustix::process::{Pid, Signal, kill_process};

/// A process that writes by one transport until it is killed.
pub(crate) struct Writer(Child);

impl Writer {
    pub(crate) fn start(cluster: &Cluster, transport: &str) -> Self {
        let mut command = Command::new(mcctl_exe());
        command
            .args(["--masters", &cluster.addresses(), "--transport", transport])
            .args(["bench", "put", "--size", "2mb", "--threads", "2", "--keys", "8", "--duration", "600s"])
            .stdout(Stdio::null());
        Self(command.spawn().expect("mcctl starts"))
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

/// Sum of a store's metric over its labels; 0 while the store does not answer.
pub(crate) async fn counted(cluster: &Cluster, store: usize, metric: &str) -> f64 {
    let (_, metrics) = http_get(cluster.store_http(store), "/metrics").await.unwrap_or_default();
    let is_it = |line: &&str| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let values =
        metrics.lines().filter(is_it).filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok());
    values.sum()
}
