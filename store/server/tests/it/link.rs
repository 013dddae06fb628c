//! The store keeps its memory mounted, whatever happens to the masters.

use std::time::Duration;

use bytes::Bytes;
use mc_proto::v1;
use mc_testkit::until;
use mc_types::{ClusterId, NodeId};
use tokio::io::AsyncReadExt as _;

use crate::common::{Event, FakeCluster, SEGMENT, config, http, mounted, start, until_not_ready_because};

const WITHIN: Duration = Duration::from_secs(2);

#[tokio::test]
async fn it_mounts_what_it_lends_and_heartbeats_at_the_interval_it_was_told() {
    let cluster = FakeCluster::start(3);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(&cluster.addresses()[1..2], dir.path())).await;
    until("mounted", async || store.store().ready()).await;
    until("beats", async || cluster.beats(0) > 5).await;
    let mounts = cluster.mounts();
    let [Event::Mount { epoch, tcp, segments, .. }] = &mounts[..] else { panic!("{mounts:?}") };
    assert_eq!(
        (*epoch, tcp, &segments[..]),
        (store.store().epoch(), &store.store().data_address().to_string(), &[SEGMENT][..])
    );

    let epoch = store.store().epoch();
    store.stop(WITHIN).await;
    assert_eq!(cluster.agreed().events.last(), Some(&Event::Unmount { master: 0, epoch }));
}

#[tokio::test]
async fn started_before_any_master_it_waits_visibly_and_goes_on_by_itself() {
    let mut cluster = FakeCluster::reserve(2);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(cluster.addresses(), dir.path())).await;
    until_not_ready_because(store.http_address(), &[&cluster.addresses()[0], &cluster.addresses()[1]]).await;
    assert_eq!(http("GET", store.http_address(), "/livez").await.0, 200);
    cluster.run(0);
    cluster.run(1);
    until("mounted", async || store.store().ready()).await;
    assert_eq!(http("GET", store.http_address(), "/readyz").await.0, 200);
}

#[tokio::test]
async fn stopped_before_any_master_was_there_it_stops_at_once() {
    let cluster = FakeCluster::reserve(1);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(cluster.addresses(), dir.path())).await;
    // The bound is far beyond what a test waits for.
    store.stop(Duration::from_secs(3600)).await;
}

#[tokio::test]
async fn after_a_failover_only_the_heartbeats_move() {
    let mut cluster = FakeCluster::start(3);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(cluster.addresses(), dir.path())).await;
    until("beats", async || cluster.beats(0) > 2).await;
    cluster.kill(0);
    // No leader for a while, as in an election that takes long.
    cluster.agreed().leader = None;
    let epoch = store.store().epoch();
    until("out of reach", async || !store.store().ready()).await;
    cluster.elect(2);
    let took = until("beats at the new leader", async || cluster.beats(2) > 0).await;
    println!("heartbeats resumed {took:?} after the new leader was known");
    assert_eq!(cluster.mounts().len(), 1, "a mount is replicated: it is not repeated");
    assert_eq!(store.store().epoch(), epoch);
}

#[tokio::test]
async fn a_leader_that_leads_again_keeps_its_heartbeats() {
    let cluster = FakeCluster::start(3);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(cluster.addresses(), dir.path())).await;
    until("beats", async || cluster.beats(0) > 2).await;
    let streams = cluster.agreed().streams;
    cluster.elect(0);
    until("the newer term is known", async || store.store().status().report().term == Some(2)).await;
    let beats = cluster.beats(0);
    until("beats", async || cluster.beats(0) > beats + 2).await;
    assert_eq!(cluster.agreed().streams, streams, "a closed stream makes the store suspect");
}

#[tokio::test]
async fn callers_stay_shut_out_until_the_leader_names_others_or_another_one_names_none() {
    let cluster = FakeCluster::start(3);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(cluster.addresses(), dir.path())).await;
    let shut_out = || store.store().status().report().shut_out;
    until("beats", async || cluster.beats(0) > 2).await;
    assert_eq!(shut_out(), 0);
    assert_eq!(cluster.agreed().tls, Some(v1::TlsReport::default()), "it has no certificate, and says so");

    let names = |callers: &[u64]| cluster.agreed().shut_out = Some(v1::ShutOut { callers: callers.to_vec() });
    names(&[7, 8, 1 << 63]);
    until("three", async || shut_out() == 3).await;
    let beats = cluster.beats(0);
    until("beats", async || cluster.beats(0) > beats + 2).await;
    assert_eq!(shut_out(), 3, "as in the answer before");
    names(&[8]);
    until("one", async || shut_out() == 1).await;

    cluster.elect(1);
    until("the new leader shuts out nobody", async || shut_out() == 0).await;
}

#[tokio::test]
async fn late_news_of_a_leader_before_the_present_one_moves_no_heartbeats() {
    const DEPOSED: &str = "127.0.0.1:1";
    let cluster = FakeCluster::start(3);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(cluster.addresses(), dir.path())).await;
    until("beats", async || cluster.beats(0) > 2).await;
    let streams = cluster.agreed().streams;
    let deposed = v1::Leader {
        node_id: Bytes::copy_from_slice(&NodeId(9).to_bytes()),
        address: DEPOSED.to_owned(),
        term: 2,
    };
    // Only the replies tell that the first master leads again, in term 3: the others still name the leader of term 2.
    cluster.agreed().silent = true;
    cluster.agreed().term = 3;
    until("a reply in term 3", async || store.store().mounted_in_term() == Some(3)).await;
    cluster.agreed().late_news = Some(deposed);
    cluster.agreed().silent = false;
    let hears = async || store.store().status().report().masters.contains(&DEPOSED.to_owned());
    until("the store hears of the leader of term 2", hears).await;
    let beats = cluster.beats(0);
    until("beats", async || cluster.beats(0) > beats + 2).await;
    assert_eq!(cluster.agreed().streams, streams);
}

#[tokio::test]
async fn a_mount_over_a_kept_session_counts_for_the_term_of_its_replies() {
    let cluster = FakeCluster::start(3);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(cluster.addresses(), dir.path())).await;
    until("beats", async || cluster.beats(0) > 2).await;
    cluster.elect(0);
    until("a reply in term 2", async || store.store().mounted_in_term() == Some(2)).await;
    cluster.agreed().mounted.clear();
    until("mounted again", async || cluster.mounts().len() == 2).await;
    until("the mount counts", async || store.store().mounted_in_term().is_some()).await;
    assert_eq!(store.store().mounted_in_term(), Some(2));
}

#[tokio::test]
async fn a_redirect_is_followed_when_nobody_else_tells() {
    let cluster = FakeCluster::start(3);
    let dir = tempfile::tempdir().unwrap();
    let store = start(config(cluster.addresses(), dir.path())).await;
    until("beats", async || cluster.beats(0) > 0).await;
    cluster.agreed().silent = true;
    cluster.elect(1);
    until("beats at the new leader", async || cluster.beats(1) > 0).await;
    drop(store);
}

#[tokio::test]
async fn an_epoch_that_the_leader_does_not_know_is_mounted_again() {
    let cluster = FakeCluster::start(1);
    let dir = tempfile::tempdir().unwrap();
    let store = mounted(&cluster, dir.path()).await;
    let epoch = store.store().epoch();
    cluster.agreed().mounted.clear();
    until("mounted again", async || cluster.mounts().len() == 2).await;
    let beats = cluster.beats(0);
    until("beats", async || cluster.beats(0) > beats + 1).await;
    assert_eq!(store.store().epoch(), epoch, "the same memory, so the same epoch");
}

#[tokio::test]
async fn a_dead_epoch_is_given_up_with_its_key_and_all_its_connections() {
    let cluster = FakeCluster::start(1);
    let dir = tempfile::tempdir().unwrap();
    let store = mounted(&cluster, dir.path()).await;
    let mut old = tokio::net::TcpStream::connect(store.store().data_address()).await.unwrap();
    let dead = store.store().epoch();
    cluster.agreed().dead.insert(dead);
    until("mounted again", async || cluster.mounts().len() == 2 && store.store().ready()).await;
    let mounts = cluster.mounts();
    let [Event::Mount { key: old_key, tcp: old_tcp, .. }, Event::Mount { epoch, key, tcp, .. }] = &mounts[..]
    else {
        panic!("{mounts:?}")
    };
    assert!(*epoch != dead && key != old_key, "another epoch with another key");
    assert_eq!((store.store().epoch(), tcp), (*epoch, old_tcp));
    assert_eq!(old.read(&mut [0]).await.unwrap_or(0), 0, "what was connected before is closed");
    tokio::net::TcpStream::connect(store.store().data_address()).await.unwrap();
}

#[tokio::test]
async fn a_foreign_cluster_is_refused_until_a_majority_of_the_list_reports_it() {
    let ours = FakeCluster::start(2);
    let mut foreign = FakeCluster::start(2);
    foreign.agreed().cluster = ClusterId(0xf0);
    let dir = tempfile::tempdir().unwrap();
    // One foreign master in three: the store keeps to ours, though only ours can go away.
    let list = [ours.addresses()[0].clone(), ours.addresses()[1].clone(), foreign.addresses()[0].clone()];
    let first = start(config(&ours.addresses()[..1], dir.path())).await;
    until("mounted", async || first.store().ready()).await;
    first.stop(WITHIN).await;
    let epoch_of_first = ours.mounts().len();

    let mut ours = ours;
    ours.kill(0);
    ours.kill(1);
    let store = start(config(&list, dir.path())).await;
    until_not_ready_because(store.http_address(), &["000000f0", "000000c1"]).await;
    assert_eq!(foreign.mounts().len(), 0, "the restarted store remembers its cluster");
    assert_eq!(ours.mounts().len(), epoch_of_first);
    store.stop(WITHIN).await;

    // Two of three are foreign now: the cluster was replaced.
    let list = [ours.addresses()[0].clone(), foreign.addresses()[0].clone(), foreign.addresses()[1].clone()];
    let store = start(config(&list, dir.path())).await;
    until("mounted at the new cluster", async || store.store().ready()).await;
    assert_eq!(foreign.mounts().len(), 1);
    foreign.kill(0);
}
