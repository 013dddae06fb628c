//! Clients that share memory with the stores.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Cluster, until};
use rustix::process::Signal;

use crate::row::Row;
use crate::transport::{Writer, kill_stores};

/// Bytes that clients wrote to a store through shared memory.
const WRITTEN: &str = "mc_store_shm_written_bytes_total";

async fn all_written(cluster: &Cluster) -> f64 {
    cluster.store_metric_sum(0, WRITTEN).await + cluster.store_metric_sum(1, WRITTEN).await
}

/// Its memory can still be read by those who have mapped it, and means nothing any more.
#[tokio::test]
async fn kill_store() {
    let row = Row::new(
        "kill -9",
        "one of two stores, through shared memory",
        Service::interrupted(Duration::from_secs(2)).failed(20, "store gone"),
    );
    let row = row.cluster(|cluster| cluster.stores(2)).shared_memory();
    kill_stores(row, WRITTEN).await;
}

/// The client stops between the start of a put and its end. Its late requests damage no value of others.
#[tokio::test]
async fn stop_client() {
    let mut writer = None;
    Row::new("SIGSTOP", "a client that writes through shared memory, then goes on", Service::unaffected())
        .cluster(|cluster| cluster.stores(2).segment("64mb"))
        .shared_memory()
        .run(async |round| {
            // The others have 64 keys of 200,000 bytes.
            let writer = match &mut writer {
                Some(writer) => writer,
                none => none.insert(Writer::start(round.cluster, "shm", 64 * 200_000).await),
            };
            let before = all_written(round.cluster).await;
            let goes_on = || async { all_written(round.cluster).await > before + f64::from(8 << 20) };
            until("it writes", goes_on).await;
            writer.signal(Signal::STOP);
            round.struck();
            round.spell(Duration::ZERO).await;
            round.running.acknowledged(50).await;
            writer.signal(Signal::CONT);
        })
        .await;
}
