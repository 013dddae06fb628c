//! Clients that move bytes by RDMA. They need a verbs device: see tests/rdma/run.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Cluster, until};
use rustix::process::Signal;

use crate::row::Row;
use crate::transport::{Writer, kill_stores};

/// In a guest that is emulated nothing is fast: calls may fail where a store is gone, and gets find no store to read from while queue
/// pairs break.
const EMULATED: Service = Service::interrupted(Duration::from_secs(30))
    .failed(10, "store gone")
    .unknown(10, "store gone")
    .false_misses(10, "broken queue pair");
/// Bytes that a store moved by RDMA.
const MOVED: &str = "mc_store_rdma_bytes_total";

async fn all_moved(cluster: &Cluster) -> f64 {
    cluster.store_metric_sum(0, MOVED).await + cluster.store_metric_sum(1, MOVED).await
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn kill_store() {
    kill_stores(Row::new("kill -9", "one of two stores, by RDMA", EMULATED).by_rdma(), MOVED).await;
}

/// The client stops between the start of a put and its last byte, and goes on after the store has given it up: what it still
/// asks for damages nothing.
#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn stop_client() {
    let mut writer = None;
    Row::new("SIGSTOP", "a client that writes by RDMA, then goes on", EMULATED)
        .by_rdma()
        .run(async |round| {
            // The others have 8 keys of 400,000 bytes.
            let writer = match &mut writer {
                Some(writer) => writer,
                none => none.insert(Writer::start(round.cluster, "rdma", 8 * 400_000).await),
            };
            // Others write meanwhile; the longer spells outlast its transfers.
            for spell in [3, 7, 11] {
                let before = all_moved(round.cluster).await;
                let goes_on = || async { all_moved(round.cluster).await > before + f64::from(4 << 20) };
                until("it writes", goes_on).await;
                writer.signal(Signal::STOP);
                round.running.acknowledged(spell).await;
                writer.signal(Signal::CONT);
            }
            round.struck();
        })
        .await;
}
