use std::net::{Ipv6Addr, TcpListener};

use mc_client::Put;
use mc_tests::{Cluster, Faults, mcctl, passed_over};

fn is_ipv6(address: &str) -> bool {
    address.starts_with("[::1]:")
}

#[tokio::test]
async fn a_pool_on_ipv6_serves_and_survives_its_leader() {
    if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        return passed_over(&format!("nothing can listen on [::1] of this machine: {error}"));
    }
    let mut cluster = Cluster::builder().loopback(Ipv6Addr::LOCALHOST.into()).start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed");
    let client = cluster.client().await;
    assert_eq!(client.put("old", b"value").await.unwrap(), Put::Stored);
    assert_eq!(client.get("old").await.unwrap().as_deref(), Some(&b"value"[..]));

    // What is told of masters and stores are addresses that others can use.
    let leader = cluster.leader().await;
    let status = cluster.status(leader).await.expect("it answers");
    assert_eq!(status.masters.len(), 3);
    for master in &status.masters {
        let told = [&master.client_address, &master.raft_address, &master.http_address];
        assert!(told.into_iter().all(|address| is_ipv6(address)), "{told:?}");
    }
    let places = client.admin().lookup("old").await.unwrap().expect("just put").replicas;
    let told: Vec<_> = places.iter().flat_map(|place| &place.endpoints).collect();
    assert!(!told.is_empty() && told.iter().all(|endpoint| is_ipv6(&endpoint.address)), "{told:?}");

    cluster.masters[leader].kill9();
    fault.happened();
    assert_eq!(client.put("new", b"value").await.unwrap(), Put::Stored);
    assert_eq!(client.get("old").await.unwrap().as_deref(), Some(&b"value"[..]));
    let (code, said) = mcctl(&cluster, &["get", "new", "-"]).await;
    assert!(code == 0 && said.contains("value"), "{code}: {said}");

    cluster.masters[leader].start();
    cluster.ready().await;
    let (code, said) = mcctl(&cluster, &["members", "list"]).await;
    assert!(code == 0 && said.matches("[::1]:").count() >= 3, "{code}: {said}");
}
