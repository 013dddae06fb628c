//! Many stores and clients in one process, through the loss of the leader and of all masters.

use std::time::Duration;

use mc_client::{Client, Put};
use mc_store::Store;
use mc_tests::{Cluster, Faults, until};
use mc_types::ByteSize;
use tokio::runtime::Handle;

use crate::local_only::start_embedded;

const STORES: usize = 50;
const CLIENTS: usize = 50;
/// Lines of a master's log about changes of stores, at one a second: far fewer than stores that come and go.
const LINES: usize = 20;

/// All stores are mounted, and heard by a leader of a later term than `term`.
async fn until_all_are_heard(stores: &[Store], term: u64) -> u64 {
    until("a leader hears all stores", async || {
        stores.iter().all(|store| store.ready() && store.mounted_in_term().is_some_and(|now| now > term))
    })
    .await;
    stores.iter().filter_map(Store::mounted_in_term).max().unwrap()
}

/// Every client puts a key of this round and gets one of the first round.
async fn until_all_clients_work(clients: &[Client], round: &str) {
    for (n, client) in clients.iter().enumerate() {
        let key = format!("{round}/{n}");
        until("a client's put is acknowledged", async || {
            matches!(client.put(&key, key.as_bytes()).await, Ok(Put::Stored | Put::AlreadyExists))
        })
        .await;
        let old = format!("first/{n}");
        until(
            "a client gets its old key",
            async || matches!(client.get(&old).await, Ok(Some(bytes)) if bytes == old.as_bytes()),
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_comes_back_by_itself_from_a_killed_leader_and_from_a_restart_of_all_masters() {
    let mut cluster = Cluster::builder().stores(0).start().await;
    let mut faults = Faults::new();
    let killed = faults.plan("the leader is killed");
    let restarted = faults.plan_times("a master is killed and started again", 3);
    let dirs: Vec<_> = (0..STORES).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut stores = Vec::new();
    for dir in &dirs {
        let link = Some(Handle::current());
        stores.push(start_embedded(&cluster, dir.path(), ByteSize(1 << 20), link).await);
    }
    let term = until_all_are_heard(&stores, 0).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        // Nothing that a client keeps itself counts: a get is one of the pool.
        clients.push(cluster.client_builder().local_cache(ByteSize(0)).connect().await.unwrap());
    }
    until_all_clients_work(&clients, "first").await;

    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    killed.happened();
    until_all_clients_work(&clients, "second").await;
    let term = until_all_are_heard(&stores, term).await;
    cluster.masters[leader].start();
    cluster.ready().await;

    for master in &mut cluster.masters {
        master.kill9();
    }
    // Everybody looks for a leader, and has for a while, when the masters come back.
    until("the stores notice", async || stores.iter().all(|store| !store.ready())).await;
    for master in &mut cluster.masters {
        master.start();
        restarted.happened();
    }
    until_all_are_heard(&stores, term).await;
    until_all_clients_work(&clients, "third").await;

    let leader = cluster.leader().await;
    until("no store is suspect", async || {
        cluster.metric(leader, "mc_stores{state=\"suspect\"}").await == Some(0.0)
    })
    .await;
    for master in &cluster.masters {
        let said = master.output().lines().filter(|line| line.contains("stores changed")).count();
        assert!(said <= LINES, "{} logged {said} changes of stores", master.name());
    }
    for store in stores {
        store.stop(Duration::from_secs(2)).await;
    }
}
