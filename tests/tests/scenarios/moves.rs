use std::time::Duration;

use mc_tests::{Cluster, Faults, Workload, until};

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
    faults.assert_happened();
}

#[tokio::test]
async fn a_cluster_whose_masters_all_have_moved_goes_on() {
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
}
