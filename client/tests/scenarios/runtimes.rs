//! A client and the runtimes of its callers: none of them is needed for longer than a call.

use mc_client::{Client, Health, Mode, Put};
use tokio::runtime::{Builder, Runtime};

use crate::support::{Cluster, until};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Follows a change of the leader, reads, and looks at the leader.
async fn works(cluster: &mut Cluster, client: &Client) {
    let leader = cluster.masters.remove(0);
    cluster.elect(0, 2);
    drop(leader);
    assert_eq!(client.put("later", b"v").await.unwrap(), Put::Stored);
    assert_eq!(client.get("before").await.unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!((client.health(), client.mode()), (Health::Healthy, Mode::Connected));
}

#[test]
fn a_client_outlives_the_runtime_that_it_was_connected_on() {
    let mut cluster = Cluster::start(3);
    let first = runtime();
    let client = first.block_on(async {
        let client = cluster.client().await;
        client.put("before", b"v").await.unwrap();
        client
    });
    drop(first);
    runtime().block_on(works(&mut cluster, &client));
}

#[test]
fn a_client_does_not_need_its_first_runtime_to_be_driven() {
    let mut cluster = Cluster::start(3);
    let first = runtime();
    let client = first.block_on(cluster.client());
    runtime().block_on(async { client.put("before", b"v").await.unwrap() });
    runtime().block_on(works(&mut cluster, &client));
}

#[test]
fn local_only_mode_begins_and_ends_without_a_runtime_of_the_caller() {
    let cluster = Cluster::start(1);
    let client = runtime().block_on(cluster.client());
    runtime().block_on(async { client.put("k", b"v").await.unwrap() });
    cluster.masters[0].stop(true);
    // Without the background work the first call would be the only one to notice, by its own deadline.
    let got = runtime().block_on(client.get("k")).unwrap();
    assert_eq!(got.as_deref(), Some(&b"v"[..]));
    assert_eq!((client.health(), client.mode()), (Health::NoLeader, Mode::LocalOnly));
    cluster.masters[0].stop(false);
    runtime().block_on(until("the leader is found again", || client.health() == Health::Healthy));
}

#[test]
fn a_client_is_closed_when_the_runtime_ends_that_it_was_given() {
    let cluster = Cluster::start(1);
    let given = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = given.block_on(cluster.builder().runtime(given.handle().clone()).connect()).unwrap();
    assert_eq!(client.health(), Health::Healthy);
    drop(given);
    assert_eq!(client.health(), Health::Closed);
    let error = runtime().block_on(client.get("k")).unwrap_err();
    assert!(error.why.contains("closed"), "{error}");
}
