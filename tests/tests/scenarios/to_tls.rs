//! A running pool goes from plain connections to TLS as docs/security.md has it, and nobody who uses it notices.

use std::time::Duration;

use mc_client::Client;
use mc_net::TcpNetwork;
use mc_tests::checker::Outcome;
use mc_tests::{Cluster, Workload, http_get, mcctl, until, until_within};

/// A pool that has certificates and does not use them yet.
async fn plain_pool() -> Cluster {
    let mut cluster = Cluster::builder().stores(2).tls().prepare();
    let Cluster { masters, stores, .. } = &mut cluster;
    for process in masters.iter_mut().chain(stores) {
        process.set_arg("--tls-dir", "none");
        process.start();
    }
    ready(&cluster).await;
    cluster
}

/// Waits until every process says that it is ready, which each says over plain connections, too.
async fn ready(cluster: &Cluster) {
    let masters = (0..3).map(|master| cluster.master_http(master));
    for address in masters.chain((0..2).map(|store| cluster.store_http(store))) {
        until(format!("{address} is ready"), async || {
            matches!(http_get(address, "/readyz").await, Ok((200, _)))
        })
        .await;
    }
}

/// Folder of the certificates of a process.
fn certificates_of(cluster: &Cluster, role: &str, place: usize) -> String {
    let folder =
        cluster.certificates().expect("a pool with certificates").of(&format!("{role}/{role}-{}", place + 1));
    folder.into_os_string().into_string().expect("a folder in words")
}

async fn plain_client(cluster: &Cluster) -> Client {
    let client = cluster.client_builder().network(TcpNetwork::shared()).connect().await.unwrap();
    assert!(client.connected(Duration::from_secs(60)).await);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_in_use_goes_from_plain_connections_to_tls_and_no_call_fails() {
    let mut cluster = plain_pool().await;
    let plain = plain_client(&cluster).await;
    let before = cluster.client_builder().network(TcpNetwork::shared());
    let before = Workload::new(11).pace(Duration::from_millis(2)).start(&before).await;
    before.acknowledged(20).await;

    // First the masters get certificates, one after the other, then the stores, then the users.
    for master in 0..3 {
        assert_eq!(cluster.masters[master].terminate().await.code(), Some(0));
        let folder = certificates_of(&cluster, "master", master);
        cluster.masters[master].set_arg("--tls-dir", &folder);
        cluster.masters[master].start();
        ready(&cluster).await;
        before.acknowledged(20).await;
    }
    for store in 0..2 {
        assert_eq!(cluster.stores[store].terminate().await.code(), Some(0));
        let folder = certificates_of(&cluster, "store", store);
        cluster.stores[store].set_arg("--tls-dir", &folder);
        cluster.stores[store].start();
        ready(&cluster).await;
        before.acknowledged(20).await;
    }
    let after = Workload::new(12).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    after.acknowledged(20).await;

    assert_eq!(mcctl(&cluster, &["security", "tls", "prefer"]).await.0, 0);
    after.acknowledged(20).await;
    // Not while somebody would be cut off.
    let (code, said) = mcctl(&cluster, &["security", "tls", "require"]).await;
    assert!(code != 0 && said.contains("would cut off"), "{said}");
    let (errors, history) = (before.errors(), before.stop().await);
    assert_eq!(
        (history.outcomes(Outcome::Failed), history.outcomes(Outcome::Unknown)),
        (0, 0),
        "{errors:#?}"
    );
    assert_eq!(plain.get("nothing").await.map(drop).map_err(|error| error.code), Ok(()), "it is tolerated");

    // Nobody who has no certificate was let in for a minute.
    until_within(Duration::from_secs(150), "nobody would be cut off", async || {
        mcctl(&cluster, &["security", "tls", "require"]).await.0 == 0
    })
    .await;
    after.acknowledged(50).await;
    let refused = plain.get("nothing").await.expect_err("it has no certificate");
    assert_eq!(refused.code, mc_types::Code::Unauthenticated, "{refused}");
    ready(&cluster).await;
    after.acknowledged(50).await;
    // The keys of grants were sent in the clear so far.
    for store in 0..2 {
        until(format!("store {store} has changed its grant key"), async || {
            let (_, figures) = http_get(cluster.store_http(store), "/metrics").await.unwrap();
            figures.lines().any(|line| line == "mc_store_grant_key_changes_total 1")
        })
        .await;
    }
    after.acknowledged(50).await;

    // And back, without another word.
    assert_eq!(mcctl(&cluster, &["security", "tls", "allow"]).await.0, 0);
    until("plain connections are accepted again", async || plain.get("nothing").await.is_ok()).await;
    after.acknowledged(20).await;
    let (errors, history) = (after.errors(), after.stop().await);
    assert_eq!(
        (history.outcomes(Outcome::Failed), history.outcomes(Outcome::Unknown)),
        (0, 0),
        "{errors:#?}"
    );
}
