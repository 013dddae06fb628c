//! Objects as streams of bytes to write: whole once they are shut down, and never there before.

use std::io::ErrorKind;
use std::time::Duration;

use mc_client::{ByteSize, Client, Code, Error, ObjectWriter, Put, PutOptions};
use tokio::io::AsyncWriteExt as _;

use crate::support::{Cluster, Fault, On, PATIENCE, STORE_A, STORE_B, StoreHealth, until};

/// A writer's piece.
const PIECE: usize = 1 << 20;
const SIZE: usize = 2 * PIECE + 1_000;

fn value() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 31 % 251) as u8).collect()
}

async fn client(cluster: &Cluster) -> Client {
    let builder = cluster.builder().local_cache(ByteSize(0)).leader_timeout(Duration::from_millis(100));
    builder.connect().await.unwrap()
}

async fn writer(client: &Client, key: &str) -> ObjectWriter {
    let session = client.put_session(key, SIZE as u64, &PutOptions::default()).await.unwrap();
    session.expect("the key is absent").into_writer()
}

fn code(error: std::io::Error) -> Code {
    error.downcast::<Error>().unwrap().code
}

#[tokio::test]
async fn an_object_is_written_in_pieces_and_visible_after_the_shutdown() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let mut writer = writer(&client, "k").await;
    for part in value().chunks(30_000) {
        writer.write_all(part).await.unwrap();
    }
    assert_eq!((writer.position(), cluster.world.lock().writes), (SIZE as u64, 2), "whole pieces");
    writer.flush().await.unwrap();
    assert_eq!(cluster.world.lock().writes, 2, "a flush makes no small piece");
    assert!(!client.exist("k").await.unwrap());
    assert_eq!(writer.put(), None);
    writer.shutdown().await.unwrap();
    writer.shutdown().await.unwrap();
    assert_eq!((writer.put(), cluster.world.lock().count(On::End)), (Some(Put::Stored), 1));
    drop(writer);
    assert_eq!(cluster.world.lock().writes, 3);
    assert!(client.get("k").await.unwrap().unwrap() == value());
}

#[tokio::test]
async fn bytes_that_come_slowly_are_written_in_whole_pieces() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let mut writer = writer(&client, "k").await;
    let (mut far, mut near) = tokio::io::duplex(8_192);
    let sending = tokio::spawn(async move { far.write_all(&value()).await });
    tokio::io::copy(&mut near, &mut writer).await.unwrap();
    writer.shutdown().await.unwrap();
    sending.await.unwrap().unwrap();
    assert_eq!(cluster.world.lock().writes, 3);
    assert!(client.get("k").await.unwrap().unwrap() == value());
}

#[tokio::test]
async fn a_writer_that_is_dropped_leaves_nothing() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let mut idle = writer(&client, "idle").await;
    let value = value();
    idle.write_all(&value).await.unwrap();
    let mut writing = writer(&client, "writing").await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    let tried = cluster.world.lock().tried.len();
    tokio::select! {
        _ = writing.write_all(&value) => panic!("the store is held"),
        () = until("a piece is on its way", || cluster.world.lock().tried.len() > tried) => {}
    }
    drop((idle, writing));
    until("both are revoked", || cluster.world.lock().puts.is_empty()).await;
    assert!(cluster.world.lock().objects.is_empty());
}

#[tokio::test]
async fn an_object_has_the_size_that_its_session_was_opened_for() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let mut writer = writer(&client, "k").await;
    let value = value();
    writer.write_all(&value[..SIZE - 1]).await.unwrap();
    assert_eq!(code(writer.shutdown().await.unwrap_err()), Code::InvalidParams);
    assert!(!client.exist("k").await.unwrap());
    assert_eq!(writer.write(&value[SIZE - 1..]).await.unwrap(), 1);
    assert_eq!(writer.write(&[]).await.unwrap(), 0);
    assert_eq!(writer.write(b"more").await.unwrap_err().kind(), ErrorKind::InvalidInput);
    writer.shutdown().await.unwrap();
    assert!(client.get("k").await.unwrap().unwrap() == value);
}

#[tokio::test]
async fn a_piece_that_no_store_took_fails_every_later_call() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let mut writer = writer(&client, "k").await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    writer.write_all(&value()[..PIECE]).await.unwrap();
    assert_eq!(code(writer.write(b"more").await.unwrap_err()), Code::TransferFail);
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    assert_eq!(code(writer.write(b"more").await.unwrap_err()), Code::TransferFail);
    assert_eq!(code(writer.flush().await.unwrap_err()), Code::TransferFail);
    assert_eq!(code(writer.shutdown().await.unwrap_err()), Code::TransferFail);
    assert_eq!(writer.put(), None);
    drop(writer);
    until("it is revoked", || cluster.world.lock().puts.is_empty()).await;
    assert!(cluster.world.lock().objects.is_empty());
}

#[tokio::test]
async fn a_replica_that_fails_is_given_up_and_the_object_is_stored() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let two = PutOptions::default().with_replicas(2);
    let mut writer = client.put_session("k", SIZE as u64, &two).await.unwrap().unwrap().into_writer();
    writer.write_all(&value()[..PIECE]).await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    writer.write_all(&value()[PIECE..]).await.unwrap();
    writer.shutdown().await.unwrap();
    let replicas = cluster.world.lock().objects[&b"k"[..]].replicas.clone();
    assert_eq!(replicas.iter().map(|(store, _)| *store).collect::<Vec<_>>(), [STORE_B]);
    assert!(client.get("k").await.unwrap().unwrap() == value());
}

#[tokio::test]
async fn a_shutdown_that_failed_or_was_dropped_can_be_repeated() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let mut writer = writer(&client, "k").await;
    writer.write_all(&value()).await.unwrap();
    cluster.depose();
    assert_eq!(code(writer.shutdown().await.unwrap_err()), Code::NoLeader);
    cluster.elect(0, 2);
    assert!(client.connected(PATIENCE).await);
    cluster.fault(On::End, Fault::LoseAnswer);
    writer.shutdown().await.unwrap();
    assert_eq!(writer.put(), Some(Put::Stored));
    assert!(client.get("k").await.unwrap().unwrap() == value());
}

#[tokio::test]
async fn bytes_that_follow_a_flush_that_was_dropped_are_written_too() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let mut writer = writer(&client, "k").await;
    let value = value();
    writer.write_all(&value[..SIZE - 1_000]).await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    let tried = cluster.world.lock().tried.len();
    tokio::select! {
        _ = writer.flush() => panic!("the store is held"),
        () = until("the flush is on its way", || cluster.world.lock().tried.len() > tried) => {}
    }
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    writer.write_all(&value[SIZE - 1_000..]).await.unwrap();
    writer.shutdown().await.unwrap();
    assert!(client.get("k").await.unwrap().unwrap() == value);
}

#[tokio::test]
async fn the_first_of_two_writers_of_a_key_stores_and_the_other_one_is_told() {
    let cluster = Cluster::start(1);
    let client = client(&cluster).await;
    let (mut one, mut two) = (writer(&client, "k").await, writer(&client, "k").await);
    for writer in [&mut one, &mut two] {
        writer.write_all(&value()).await.unwrap();
        writer.shutdown().await.unwrap();
    }
    assert_eq!((one.put(), two.put()), (Some(Put::Stored), Some(Put::AlreadyExists)));
}
