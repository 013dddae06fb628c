use std::time::Duration;

use mc_client::Put;
use mc_process::http::request;
use mc_tests::{Cluster, Faults, Workload, http_get, until};

/// Whether every one of `masters` shows each master's client address as it is now.
async fn all_know_all(cluster: &Cluster) -> bool {
    let mut now: Vec<_> = (0..3).map(|n| cluster.master_address(n).to_owned()).collect();
    now.sort();
    for master in 0..3 {
        let Some(status) = cluster.status(master).await else { return false };
        let mut known: Vec<_> = status.masters.into_iter().map(|master| master.client_address).collect();
        known.sort();
        if known != now {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn a_master_that_comes_back_at_other_addresses_is_found_by_the_others() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let moved = faults.plan("a follower comes back elsewhere");
    let fault = faults.plan("the leader is killed");
    let running = Workload::new(21).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    running.acknowledged(50).await;
    let follower = cluster.follower().await;
    cluster.masters[follower].kill9();
    cluster.relocate(&[follower]);
    cluster.masters[follower].start();
    moved.happened();
    cluster.ready().await;
    until("all masters know the new addresses", async || all_know_all(&cluster).await).await;

    // Of two masters that are left one is the moved one: nothing is acknowledged without it.
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    fault.happened();
    running.acknowledged(50).await;
    running.stop().await.assert_nothing_lost(&cluster);
}

/// A field of the first store's status.
async fn of_store(cluster: &Cluster, what: &str) -> Option<serde_json::Value> {
    let (_, status) = http_get(cluster.store_http(0), "/status").await.ok()?;
    serde_json::from_str::<serde_json::Value>(&status).ok()?.get(what).cloned()
}

/// Each master moves once the others, the store and the clients know where the last one went: at the end none of the
/// addresses is left that the store and the clients were given.
#[tokio::test]
async fn masters_that_move_one_after_the_other_are_followed_by_stores_and_clients() {
    let mut cluster = Cluster::builder().start().await;
    let running = Workload::new(22).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    running.acknowledged(50).await;
    let epoch = of_store(&cluster, "epoch").await;
    for master in 0..3 {
        cluster.masters[master].kill9();
        cluster.relocate(&[master]);
        cluster.masters[master].start();
        cluster.ready().await;
        until("all masters know the new addresses", async || all_know_all(&cluster).await).await;
        until("the store knows them, too", async || {
            let known = of_store(&cluster, "masters").await;
            let known = known.as_ref().and_then(|known| known.as_array()).cloned().unwrap_or_default();
            (0..3).all(|n| known.iter().any(|address| address == cluster.master_address(n)))
        })
        .await;
        running.acknowledged(50).await;
    }
    assert_eq!(of_store(&cluster, "epoch").await, epoch, "the memory is the same");
    running.moved_to(cluster.addresses()).stop().await.assert_nothing_lost(&cluster);
}

#[tokio::test]
async fn a_cluster_whose_masters_all_have_moved_goes_on_with_its_stores() {
    let mut cluster = Cluster::builder().start().await;
    let client = cluster.client().await;
    client.put("k", b"value").await.unwrap();
    for master in 0..3 {
        cluster.masters[master].kill9();
    }
    cluster.relocate(&[0, 1, 2]);
    for master in 0..3 {
        cluster.masters[master].start();
    }
    until("the same index is there", async || {
        let Some(leader) = cluster.find_leader().await else { return false };
        cluster.status(leader).await.is_some_and(|status| status.keys == 1)
    })
    .await;
    until("all masters know the new addresses", async || all_know_all(&cluster).await).await;

    // Nothing has told the store where they went. It is told while it runs, and keeps its memory.
    let epoch = of_store(&cluster, "epoch").await;
    let list = (0..3).map(|n| cluster.master_address(n)).collect::<Vec<_>>().join(",");
    let (code, said) =
        request("PUT", cluster.store_http(0), &format!("/masters?list={list}")).await.expect("an answer");
    assert_eq!(code, 200, "{said}");
    cluster.ready().await;
    assert_eq!(of_store(&cluster, "epoch").await, epoch, "the memory is the same");
    let client = cluster.client().await;
    assert_eq!(client.get("k").await.unwrap().as_deref(), Some(&b"value"[..]));
    // They go on with what was there before, also through the next failover.
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    until("a put is taken by the next leader", async || {
        matches!(client.put("after the moves", b"value").await, Ok(Put::Stored | Put::AlreadyExists))
    })
    .await;
    until("what was there before is read", async || {
        client.get("k").await.is_ok_and(|value| value.as_deref() == Some(&b"value"[..]))
    })
    .await;
}
