//! Put sessions: an object that is written range by range is whole or not there.

use std::time::Duration;

use mc_client::{ByteSize, Client, Code, Put, PutMode, PutOptions, PutSession, RangeFrom, WriteFrom};
use tokio::time::timeout;

use crate::support::{Cluster, Fault, On, PATIENCE, STORE_A, STORE_B, StoreHealth, until};

const LAYERS: usize = 6;
const LAYER: usize = 500;
const SIZE: u64 = (LAYERS * LAYER) as u64;

async fn uncached(cluster: &Cluster) -> Client {
    cluster.builder().local_cache(ByteSize(0)).connect().await.unwrap()
}

fn value() -> Vec<u8> {
    (0..LAYERS * LAYER).map(|i| (i * 13 % 251) as u8).collect()
}

async fn open(client: &Client, key: &str, options: &PutOptions) -> PutSession {
    client.put_session(key, SIZE, options).await.unwrap().expect("the key is absent")
}

async fn write_layer(session: &PutSession, n: usize) -> Result<(), Code> {
    let written = session.write((n * LAYER) as u64, &value()[n * LAYER..(n + 1) * LAYER]).await;
    written.map_err(|error| error.code)
}

/// Writes all layers, from the last to the first.
async fn write_all(session: &PutSession) {
    for n in (0..LAYERS).rev() {
        write_layer(session, n).await.unwrap();
    }
}

fn two() -> PutOptions {
    PutOptions::default().with_replicas(2)
}

#[tokio::test]
async fn a_layer_whose_write_was_abandoned_can_be_written_again_with_the_same_bytes() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &PutOptions::default()).await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    cluster.world.lock().stores.insert(STORE_B, StoreHealth::Held);
    let abandoned = timeout(Duration::from_millis(50), write_layer(&session, 0)).await;
    assert!(abandoned.is_err(), "it was on its way");
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    cluster.world.lock().stores.insert(STORE_B, StoreHealth::Well);

    // The first write may still come, and must find its own bytes.
    let other = session.write(0, &[0xff; LAYER]).await.unwrap_err();
    assert!(other.code == Code::InvalidParams && other.why.contains("with the same bytes"), "{other}");
    write_all(&session).await;
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().unwrap(), value());
}

async fn nothing_is_left(cluster: &Cluster) {
    until("the put is revoked", || cluster.world.lock().puts.is_empty()).await;
    assert!(cluster.world.lock().objects.is_empty());
}

#[tokio::test]
async fn layers_in_any_order_are_one_object_with_the_checksum_of_the_whole() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &PutOptions::default()).await;
    write_all(&session).await;
    assert!(!client.exist("k").await.unwrap(), "it is not there before it is finished");
    let version = session.id();
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    // The get compares the checksum.
    assert_eq!(client.get("k").await.unwrap().unwrap(), value());
    let world = cluster.world.lock();
    assert_eq!(world.objects[&b"k"[..]].version, version);
    assert_eq!((world.count(On::Start), world.count(On::End)), (1, 1));
    drop(world);
    let stats = client.stats();
    assert_eq!((stats.puts_stored, stats.bytes_written), (1, SIZE));
}

#[tokio::test]
async fn a_layer_of_many_objects_is_one_write_to_each_store_without_copies() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    cluster.world.lock().spread = true;
    let keys: Vec<(String, u64)> = (0..10).map(|i| (format!("k{i}"), SIZE)).collect();
    let sessions: Vec<PutSession> = client
        .batch_put_session(&keys, &PutOptions::default())
        .await
        .into_iter()
        .map(|session| session.unwrap().unwrap())
        .collect();
    let value = value();
    for n in 0..LAYERS {
        // Keys and values of a layer lie apart.
        let (from, to) = (n * LAYER, (n + 1) * LAYER);
        let (keys, values) = value[from..to].split_at(LAYER / 3);
        let ranges = [
            RangeFrom { offset: from as u64, from: keys },
            RangeFrom { offset: (from + keys.len()) as u64, from: values },
        ];
        let writes: Vec<_> = sessions.iter().map(|session| WriteFrom::new(session, &ranges)).collect();
        let written = client.batch_write_from(&writes).await;
        assert!(written.into_iter().all(|written| written.unwrap() == LAYER));
        let world = cluster.world.lock();
        let expected: Vec<_> = [keys, values].map(|slice| (slice.as_ptr() as usize, slice.len())).to_vec();
        assert!(world.buffers.iter().rev().take(10).all(|buffers| *buffers == expected));
        assert_eq!((world.tried.len(), world.writes), ((n + 1) * 2, (n + 1) * 10), "one call to each store");
    }
    let finished = client.batch_finish(&sessions).await;
    assert!(finished.into_iter().all(|put| put.unwrap() == Put::Stored));
    for (key, _) in &keys {
        assert_eq!(client.get(key).await.unwrap().unwrap(), value);
    }
    let world = cluster.world.lock();
    assert_eq!((world.count(On::Start), world.count(On::End)), (1, 1));
}

#[tokio::test]
async fn a_gap_fails_the_finish_by_its_range_and_frees_the_space() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &PutOptions::default()).await;
    for n in [0, 1, 3, 5] {
        write_layer(&session, n).await.unwrap();
    }
    let error = session.finish().await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::InvalidParams, false));
    assert!(error.why.contains("500 bytes at offset 1000 were not written"), "{error}");
    drop(session);
    nothing_is_left(&cluster).await;
}

#[tokio::test]
async fn an_overlap_or_a_range_beyond_the_end_is_refused_by_its_range_and_the_session_goes_on() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &PutOptions::default()).await;
    write_layer(&session, 2).await.unwrap();
    let writes = cluster.world.lock().writes;
    let overlap = session.write(1400, &[0; 200]).await.unwrap_err();
    assert_eq!(overlap.code, Code::InvalidParams);
    assert!(overlap.why.contains("200 bytes at offset 1400 overlap 500 bytes at offset 1000"), "{overlap}");
    for (offset, len) in [(SIZE - 1, 2), (SIZE + 1, 0), (u64::MAX, 1)] {
        let beyond = session.write(offset, &vec![0; len]).await.unwrap_err();
        assert_eq!(beyond.code, Code::InvalidParams);
        assert!(beyond.why.contains(&format!("{len} bytes at offset {offset} do not lie")), "{beyond}");
    }
    // Of two ranges in one write, the second of which overlaps, none is written.
    let ranges = [RangeFrom { offset: 0, from: &[0; 500] }, RangeFrom { offset: 999, from: &[0; 2] }];
    let write = WriteFrom::new(&session, &ranges);
    assert!(client.batch_write_from(&[write]).await.remove(0).is_err());
    assert_eq!(cluster.world.lock().writes, writes, "nothing was written");
    session.write(100, &[]).await.unwrap();
    for n in [0, 1, 3, 4, 5] {
        write_layer(&session, n).await.unwrap();
    }
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().unwrap(), value());
}

#[tokio::test]
async fn a_session_that_is_dropped_or_aborted_frees_its_space() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &PutOptions::default()).await;
    write_all(&session).await;
    drop(session);
    nothing_is_left(&cluster).await;
    // Also outside of the runtime.
    let session = open(&client, "k", &PutOptions::default()).await;
    std::thread::spawn(move || drop(session)).join().unwrap();
    nothing_is_left(&cluster).await;
    let session = open(&client, "k", &PutOptions::default()).await;
    session.abort().await.unwrap();
    assert!(cluster.world.lock().puts.is_empty(), "it was answered");
    // A finished one is not revoked.
    let revoked = cluster.world.lock().count(On::Revoke);
    let session = open(&client, "k", &PutOptions::default()).await;
    write_all(&session).await;
    session.finish().await.unwrap();
    assert_eq!((cluster.world.lock().count(On::Revoke), revoked), (3, 3));
}

#[tokio::test]
async fn a_key_that_exists_opens_no_session_unless_it_is_to_be_replaced() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put("k", b"old").await.unwrap();
    let items = [("k", SIZE), ("", SIZE), ("new", 0), ("other", SIZE)];
    let opened = client.batch_put_session(&items, &PutOptions::default()).await;
    let opened: Vec<_> = opened
        .into_iter()
        .map(|result| result.map(|session| session.is_some()).map_err(|e| e.code))
        .collect();
    assert_eq!(opened, [Ok(false), Err(Code::InvalidKey), Err(Code::InvalidParams), Ok(true)]);
    let upsert = PutOptions::default().with_mode(PutMode::Upsert);
    let session = open(&client, "k", &upsert).await;
    write_all(&session).await;
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"old"[..]);
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().unwrap(), value());
}

#[tokio::test]
async fn of_two_sessions_for_one_key_the_first_to_finish_stores() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let (one, two) =
        (open(&client, "k", &PutOptions::default()).await, open(&client, "k", &PutOptions::default()).await);
    write_all(&one).await;
    write_all(&two).await;
    let finished = client.batch_finish(&[two, one]).await;
    let finished: Vec<_> = finished.into_iter().map(Result::unwrap).collect();
    assert_eq!(finished, [Put::Stored, Put::AlreadyExists]);
}

#[tokio::test]
async fn a_replica_that_fails_midway_is_given_up_and_the_other_one_is_stored() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &two()).await;
    write_layer(&session, 0).await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    write_layer(&session, 1).await.unwrap();
    // It comes back, and lacks a layer all the same.
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    cluster.world.lock().tried.clear();
    for n in 2..LAYERS {
        write_layer(&session, n).await.unwrap();
    }
    assert!(!cluster.world.lock().tried.contains(&STORE_A), "it is not written to any more");
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    let replicas = cluster.world.lock().objects[&b"k"[..]].replicas.clone();
    assert_eq!(replicas.iter().map(|(store, _)| *store).collect::<Vec<_>>(), [STORE_B]);
    assert_eq!(client.get("k").await.unwrap().unwrap(), value());
}

#[tokio::test]
async fn a_replica_that_is_not_sealed_soon_after_the_other_one_is_given_up() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &two()).await;
    write_all(&session).await;
    // For longer than the test lasts.
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    assert_eq!(timeout(PATIENCE, session.finish()).await.unwrap().unwrap(), Put::Stored);
    let replicas = cluster.world.lock().objects[&b"k"[..]].replicas.clone();
    assert_eq!(replicas.iter().map(|(store, _)| *store).collect::<Vec<_>>(), [STORE_B]);
}

#[tokio::test]
async fn a_slow_store_delays_no_session_that_has_nothing_there() {
    let cluster = Cluster::start(1);
    cluster.world.lock().spread = true;
    let client = uncached(&cluster).await;
    let (one, two) = (
        open(&client, "one", &PutOptions::default()).await,
        open(&client, "two", &PutOptions::default()).await,
    );
    write_all(&one).await;
    write_all(&two).await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    let sessions = [one, two];
    let finish = timeout(PATIENCE, client.batch_finish(&sessions));
    let release = async {
        while cluster.world.lock().objects.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    };
    let (finished, ()) = tokio::join!(finish, release);
    assert!(finished.expect("nothing was stored while the store was slow").iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_session_without_a_whole_replica_fails_even_if_every_range_was_written_somewhere() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &two()).await;
    let set = |store, health| cluster.world.lock().stores.insert(store, health);
    set(STORE_A, StoreHealth::Dead);
    write_layer(&session, 0).await.unwrap();
    set(STORE_A, StoreHealth::Well);
    set(STORE_B, StoreHealth::Dead);
    assert_eq!(write_layer(&session, 1).await, Err(Code::TransferFail));
    set(STORE_B, StoreHealth::Well);
    assert_eq!(write_layer(&session, 2).await, Err(Code::TransferFail), "it has failed for good");
    let error = session.finish().await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::TransferFail, false));
    nothing_is_left(&cluster).await;
}

#[tokio::test]
async fn ranges_are_written_concurrently_and_an_abandoned_write_leaves_the_object_incomplete() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &PutOptions::default()).await;
    let written = futures::future::join_all((1..LAYERS).map(|n| write_layer(&session, n))).await;
    assert!(written.iter().all(Result::is_ok));
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    assert!(timeout(Duration::from_millis(50), write_layer(&session, 0)).await.is_err(), "it is abandoned");
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    let error = session.finish().await.unwrap_err();
    assert!(error.why.contains("the write of 500 bytes at offset 0 was begun"), "{error}");
    drop(session);
    nothing_is_left(&cluster).await;
}

#[tokio::test]
async fn without_a_leader_a_session_is_neither_opened_nor_finished_and_nothing_is_kept_locally() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().leader_timeout(Duration::from_millis(100)).connect().await.unwrap();
    let session = open(&client, "k", &PutOptions::default()).await;
    write_all(&session).await;
    cluster.depose();
    for error in [
        session.finish().await.unwrap_err(),
        client.put_session("other", SIZE, &PutOptions::default()).await.unwrap_err(),
    ] {
        assert_eq!((error.code, error.is_unknown()), (Code::NoLeader, false), "{error}");
    }
    assert_eq!((client.stats().cache_bytes, client.stats().puts_local), (0, 0));
    cluster.elect(0, 2);
    assert!(client.connected(PATIENCE).await);
    // Earlier revocations are sent before this one.
    drop(open(&client, "dropped", &PutOptions::default()).await);
    until("the other session alone is left", || {
        let world = cluster.world.lock();
        world.count(On::Revoke) > 0 && world.puts.len() == 1
    })
    .await;
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().unwrap(), value());
}

#[tokio::test]
async fn a_finish_that_was_dropped_or_failed_can_be_repeated() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let session = open(&client, "k", &PutOptions::default()).await;
    for n in 0..LAYERS - 1 {
        write_layer(&session, n).await.unwrap();
    }
    assert_eq!(session.finish().await.unwrap_err().code, Code::InvalidParams, "a layer lacks");
    write_layer(&session, LAYERS - 1).await.unwrap();
    cluster.fault(On::End, Fault::NeverAnswer);
    let ends = cluster.world.lock().count(On::End);
    tokio::select! {
        _ = session.finish() => panic!("it has no answer"),
        () = until("the end has come", || cluster.world.lock().count(On::End) > ends) => {}
    }
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    drop(session);
    assert_eq!(client.get("k").await.unwrap().unwrap(), value());
}

#[tokio::test]
async fn a_session_ends_at_its_deadline() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let soon = PutOptions::default().with_deadline(Duration::from_secs(1));
    let session = open(&client, "k", &soon).await;
    let late = timeout(PATIENCE, async {
        loop {
            if let Err(error) = session.write(0, &[]).await {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert_eq!(late.await.unwrap().code, Code::PutGone);
    let error = session.finish().await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::PutGone, false));
    assert_eq!(cluster.world.lock().count(On::End), 0);
    nothing_is_left(&cluster).await;
}

#[tokio::test]
async fn an_end_whose_answer_is_lost_is_settled_and_a_put_that_is_gone_is_not_started_again() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    for faults in [vec![Fault::LoseAnswer], vec![Fault::LoseAnswer, Fault::SayGone]] {
        let key = format!("after {} faults", faults.len());
        let session = open(&client, &key, &PutOptions::default()).await;
        write_all(&session).await;
        faults.into_iter().for_each(|fault| cluster.fault(On::End, fault));
        assert_eq!(session.finish().await.unwrap(), Put::Stored);
        assert_eq!(client.get(&key).await.unwrap().unwrap(), value());
    }
    let session = open(&client, "gone", &PutOptions::default()).await;
    write_all(&session).await;
    cluster.fault(On::End, Fault::EndPut);
    let error = session.finish().await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::PutGone, false));
    assert_eq!(cluster.world.lock().count(On::Start), 3, "its bytes are not at hand any more");
}
