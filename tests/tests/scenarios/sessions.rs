//! Ranged reads and sessions on real processes.

use std::time::Duration;

use mc_client::{
    ByteRange, Client, Code, GetRangesInto, GetSession, Presence, Put, PutMode, PutOptions, PutSession,
    RangeInto,
};
use mc_tests::{Cluster, Faults, eventually, until, value};

const LAYERS: usize = 16;
const LAYER: usize = 200_000;
const SIZE: usize = LAYERS * LAYER;
/// The shortest lease that a cluster can have, so that renewals come soon.
const SHORT_LEASE: [&str; 2] = ["--read-lease", "5s"];

fn layer(n: usize) -> ByteRange {
    ByteRange { offset: (n * LAYER) as u64, len: LAYER as u64 }
}

fn bytes_of(value: &[u8], range: ByteRange) -> &[u8] {
    let offset = usize::try_from(range.offset).unwrap();
    &value[offset..offset + usize::try_from(range.len).unwrap()]
}

async fn open(client: &Client, key: &str) -> GetSession {
    client.get_session(key).await.unwrap().expect("it was put")
}

async fn start_put(client: &Client, key: &str, options: &PutOptions) -> PutSession {
    client.put_session(key, SIZE as u64, options).await.unwrap().expect("it is absent")
}

async fn write_layer(session: &PutSession, value: &[u8], n: usize) {
    session.write(layer(n).offset, bytes_of(value, layer(n))).await.unwrap();
}

async fn puts_in_flight(cluster: &Cluster) -> Option<f64> {
    cluster.metric(cluster.leader().await, "mc_puts_in_flight").await
}

/// Waits until a master has answered a call of that kind as the leader.
async fn has_answered(cluster: &Cluster, master: usize, rpc: &str) {
    until(format!("master {} answers {rpc}", master + 1), async || {
        let count = format!("mc_master_rpc_seconds_count{{rpc=\"{rpc}\"}}");
        cluster.metric(master, &count).await.is_some_and(|answered| answered > 0.0)
    })
    .await;
}

#[tokio::test]
async fn ranges_of_every_shape_come_back_as_they_went_in() {
    let cluster = Cluster::builder().masters(1).segment("256mb").start().await;
    let client = cluster.client().await;
    // Larger than one turn and one stripe of the transport.
    let (key, size) = ("ranges", (40 << 20) + 7);
    let bytes = value(key, 1, size);
    assert_eq!(client.put(key, &bytes).await.unwrap(), Put::Stored);
    let end = size as u64;
    let edges =
        [(0, 1), (0, end), (end - 1, 1), (end, 0), (0, 0), (4095, 2), (1, end - 2), (17 << 20, 20 << 20)];
    for (offset, len) in edges {
        let range = ByteRange { offset, len };
        let got = client.get_range(key, range).await.unwrap().expect("it was put");
        assert!(got == bytes_of(&bytes, range), "{range}");
    }
    // More ranges than a request of the transfer protocol takes, every second block of 1,000 bytes.
    let mut memory = vec![0; 10_000 * 1_000];
    let ranges = memory.chunks_mut(1_000).enumerate();
    let ranges = ranges.map(|(n, into)| RangeInto { offset: n as u64 * 2_000, into }).collect();
    let read = client.batch_get_ranges_into(&mut [GetRangesInto::new(key.as_bytes(), ranges)]).await;
    assert_eq!(read[0].as_ref().unwrap(), &Some(memory.len()));
    for (n, block) in memory.chunks(1_000).enumerate() {
        assert!(block == &bytes[n * 2_000..n * 2_000 + 1_000], "block {n}");
    }
    let beyond = client.get_range(key, ByteRange { offset: end, len: 1 }).await.unwrap_err();
    assert_eq!(beyond.code, Code::InvalidParams);
}

#[tokio::test]
async fn a_get_session_outlives_its_leader_and_keeps_its_lease_until_it_is_dropped() {
    let mut cluster = Cluster::builder().master_args(SHORT_LEASE).start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed between two layers");
    let client = cluster.client().await;
    let bytes = value("k", 1, SIZE);
    assert_eq!(client.put("k", &bytes).await.unwrap(), Put::Stored);
    let session = open(&client, "k").await;
    assert!(session.read(layer(0)).await.unwrap() == bytes_of(&bytes, layer(0)));
    let killed = cluster.leader().await;
    cluster.masters[killed].kill9();
    fault.happened();
    assert!(session.read(layer(1)).await.unwrap() == bytes_of(&bytes, layer(1)), "the lease still holds");
    // The renewal in the background goes to the next leader, while nothing is read.
    let next = cluster.leader().await;
    has_answered(&cluster, next, "batch_get").await;
    for n in 2..LAYERS {
        assert!(session.read(layer(n)).await.unwrap() == bytes_of(&bytes, layer(n)), "layer {n}");
    }
    assert_eq!(client.remove("k", false).await.unwrap_err().code, Code::ObjectHasLease);
    drop(session);
    until("the lease has ended", async || match client.remove("k", false).await {
        Ok(removed) => removed,
        Err(error) => {
            assert_eq!(error.code, Code::ObjectHasLease);
            false
        }
    })
    .await;
}

#[tokio::test]
async fn a_get_session_never_reads_another_version() {
    let cluster = Cluster::builder().masters(1).segment("18mb").master_args(SHORT_LEASE).start().await;
    let client = cluster.client().await;
    let (old, new) = (value("k", 1, SIZE), value("k", 2, SIZE));
    let upsert = PutOptions::default().with_mode(PutMode::Upsert);
    for key in ["replaced", "removed"] {
        assert_eq!(client.put(key, &old).await.unwrap(), Put::Stored);
    }
    let (replaced, removed) = (open(&client, "replaced").await, open(&client, "removed").await);
    assert_eq!(client.put_with("replaced", &new, &upsert).await.unwrap(), Put::Stored);
    assert!(client.remove("removed", true).await.unwrap());
    // Others get the room of the old versions once it is no longer held for their readers: the pool has five places.
    until("the room of the old versions is free", async || {
        cluster.metric(0, "mc_pool_held_bytes").await == Some(0.0)
    })
    .await;
    for n in 0..4 {
        let put = client.put_with(format!("other-{n}"), &value("other", n, SIZE), &upsert).await;
        assert_eq!(put.unwrap(), Put::Stored);
    }
    assert_eq!(cluster.metric_sum(0, "mc_evicted_objects_total").await, 0.0, "another object made room");
    for (session, code) in [(&replaced, Code::VersionChanged), (&removed, Code::ObjectNotFound)] {
        let failed = eventually("the session fails", async || match session.read(layer(7)).await {
            Ok(bytes) => {
                assert!(bytes == bytes_of(&old, layer(7)), "bytes of another version");
                None
            }
            Err(error) => Some(error),
        })
        .await;
        assert_eq!(failed.code, code, "{failed}");
    }
    assert!(open(&client, "replaced").await.read(layer(7)).await.unwrap() == bytes_of(&new, layer(7)));
}

#[tokio::test]
async fn a_put_session_outlives_its_leader() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed between two layers");
    let client = cluster.client().await;
    let bytes = value("k", 1, SIZE);
    let session = start_put(&client, "k", &PutOptions::default()).await;
    for n in (0..LAYERS / 2).rev() {
        write_layer(&session, &bytes, n).await;
    }
    let killed = cluster.leader().await;
    cluster.masters[killed].kill9();
    fault.happened();
    for n in (LAYERS / 2..LAYERS).rev() {
        write_layer(&session, &bytes, n).await;
    }
    cluster.leader().await;
    assert!(client.connected(Duration::from_secs(60)).await);
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    assert!(client.get("k").await.unwrap().as_deref() == Some(&bytes[..]), "other bytes came back");
}

#[tokio::test]
async fn put_sessions_that_are_dropped_or_incomplete_free_their_space() {
    let cluster = Cluster::builder().masters(1).segment("16mb").start().await;
    let client = cluster.client().await;
    let bytes = value("k", 1, SIZE);
    // Each of these takes a fifth of the pool.
    let dropped = start_put(&client, "dropped", &PutOptions::default()).await;
    let incomplete = start_put(&client, "incomplete", &PutOptions::default()).await;
    let aborted = start_put(&client, "aborted", &PutOptions::default()).await;
    for session in [&dropped, &incomplete, &aborted] {
        write_layer(session, &bytes, 3).await;
    }
    until("three puts are in flight", async || puts_in_flight(&cluster).await == Some(3.0)).await;
    drop(dropped);
    aborted.abort().await.unwrap();
    let error = incomplete.finish().await.unwrap_err();
    assert!(error.why.contains("600000 bytes at offset 0 were not written"), "{error}");
    drop(incomplete);
    until("no put is in flight", async || puts_in_flight(&cluster).await == Some(0.0)).await;
    for key in ["dropped", "incomplete", "aborted"] {
        assert!(!client.exist(key).await.unwrap(), "{key}");
    }
    until("no byte is used", async || cluster.metric(0, "mc_pool_used_bytes").await == Some(0.0)).await;
}

#[tokio::test]
async fn a_key_is_being_written_from_the_start_of_its_put_to_the_end_for_its_own_tenant() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed while a put is in flight");
    let asking = || cluster.client_builder().fail_unfinished_gets(true);
    let client = asking().connect().await.unwrap();
    let other = asking().tenant("other").connect().await.unwrap();
    let bytes = value("k", 1, SIZE);
    assert_eq!(client.presence("k").await.unwrap(), Presence::Absent);
    let session = start_put(&client, "k", &PutOptions::default()).await;
    let killed = cluster.leader().await;
    cluster.masters[killed].kill9();
    fault.happened();
    cluster.leader().await;
    assert!(
        client.connected(Duration::from_secs(60)).await && other.connected(Duration::from_secs(60)).await
    );

    let keys = ["k", "absent"];
    let found: Vec<_> = client.batch_peek(&keys).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(found, [Presence::BeingWritten, Presence::Absent]);
    assert_eq!(client.presence("k").await.unwrap(), Presence::BeingWritten);
    let got = client.batch_get(&keys).await;
    assert_eq!(got[0].as_ref().unwrap_err().code, Code::ReplicaIsNotReady);
    assert_eq!(got[1].as_ref().unwrap(), &None);
    assert_eq!(other.presence("k").await.unwrap(), Presence::Absent);
    assert_eq!(other.get("k").await.unwrap(), None);

    for n in 0..LAYERS {
        write_layer(&session, &bytes, n).await;
    }
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    assert_eq!(client.presence("k").await.unwrap(), Presence::Present(SIZE as u64));
    assert!(client.get("k").await.unwrap().as_deref() == Some(&bytes[..]), "other bytes came back");
    start_put(&client, "given up", &PutOptions::default()).await.abort().await.unwrap();
    assert_eq!(client.presence("given up").await.unwrap(), Presence::Absent);
}

#[tokio::test]
async fn a_store_that_dies_in_a_put_session_costs_its_replica_only() {
    let mut cluster = Cluster::builder().masters(1).stores(2).segment("64mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a store is killed between two layers");
    let client = cluster.client().await;
    let bytes = value("k", 1, SIZE);
    let session = start_put(&client, "k", &PutOptions::default().with_replicas(2)).await;
    write_layer(&session, &bytes, 5).await;
    cluster.stores[0].kill9();
    fault.happened();
    for n in (0..LAYERS).filter(|n| *n != 5) {
        write_layer(&session, &bytes, n).await;
    }
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    let found = client.admin().lookup("k").await.unwrap().expect("just put");
    assert_eq!(found.replicas.len(), 1);
    assert!(client.get("k").await.unwrap().as_deref() == Some(&bytes[..]), "other bytes came back");
}
