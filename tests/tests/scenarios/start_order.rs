use mc_client::{Mode, Put};
use mc_tests::{Cluster, http_get, until};

#[tokio::test]
async fn everything_started_in_reverse_order_waits_visibly_and_forms_a_pool() {
    let mut cluster = Cluster::builder().prepare();
    let client = cluster.client_builder().connect().await.unwrap();
    assert_eq!(client.mode(), Mode::LocalOnly);

    cluster.stores[0].start();
    let store = cluster.store_http(0).to_owned();
    let masters = cluster.addresses();
    until("the store says for whom it waits", async || {
        let answer = http_get(&store, "/readyz").await;
        answer.is_ok_and(|(code, why)| code == 503 && masters.split(',').all(|master| why.contains(master)))
    })
    .await;

    cluster.masters[2].start();
    cluster.masters[1].start();
    for (master, other) in [(1, 2), (2, 1)] {
        let (missing, there) = (cluster.master_raft(0), cluster.master_raft(other));
        let third = |why: &str| why.contains(missing) && !why.contains(there);
        cluster.master_waits(master, "for the third, and for it alone", third).await;
    }
    assert_eq!(cluster.find_leader().await, None, "two of three do not form a cluster");

    cluster.masters[0].start();
    cluster.ready().await;
    until("the client goes on by itself", async || client.mode() == Mode::Connected).await;
    assert_eq!(client.put("k", b"value").await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().as_deref(), Some(&b"value"[..]));
}

#[tokio::test]
async fn processes_end_with_the_test_runner_that_started_them() {
    let mut cluster = Cluster::builder().masters(1).segment("16mb").start().await;
    cluster.masters[0].abandon();
    cluster.stores[0].abandon();
    cluster.masters[0].ended().await;
    cluster.stores[0].ended().await;
}

#[tokio::test]
async fn an_object_that_was_put_is_got_by_another_client() {
    let cluster = Cluster::builder().start().await;
    let client = cluster.client().await;
    let bytes = mc_tests::value("k", 1, 3_274_752);
    assert_eq!(client.put("k", &bytes).await.unwrap(), Put::Stored);
    assert_eq!(client.put("k", b"other").await.unwrap(), Put::AlreadyExists);
    let other = cluster.client().await;
    assert_eq!(other.get("k").await.unwrap().as_deref(), Some(&bytes[..]));
    assert!(other.remove("k", true).await.unwrap());
    assert_eq!(client.get("k").await.unwrap(), None);
}
