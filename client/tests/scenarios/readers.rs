//! Objects as streams of bytes to read: whole, from the pinned version, in pieces, and from any position.

use std::io::{ErrorKind, SeekFrom};

use mc_client::{ByteSize, Client, Code, Error, ObjectReader};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use crate::support::{Cluster, PATIENCE, STORE_A, StoreHealth, until};

/// A reader's piece.
const PIECE: usize = 1 << 20;
const SIZE: usize = 2 * PIECE + 1_000;

fn value() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 31 % 251) as u8).collect()
}

async fn reader(cluster: &Cluster) -> (Client, ObjectReader) {
    let client = cluster.builder().local_cache(ByteSize(0)).connect().await.unwrap();
    client.put("k", &value()).await.unwrap();
    let reader = client.get_session("k").await.unwrap().unwrap().into_reader();
    (client, reader)
}

#[tokio::test]
async fn an_object_is_read_in_pieces_and_copied_without_another_buffer() {
    let cluster = Cluster::start(1);
    let (client, mut reader) = reader(&cluster).await;
    let mut read = Vec::new();
    let mut part = [0; 700];
    loop {
        match reader.read(&mut part).await.unwrap() {
            0 => break,
            len => read.extend_from_slice(&part[..len]),
        }
        assert_eq!(reader.position(), read.len() as u64);
    }
    assert!(read == value());
    assert_eq!(cluster.world.lock().reads, 3, "pieces, not what was asked for");

    let mut reader = client.get_session("k").await.unwrap().unwrap().into_reader();
    let mut copied = Vec::new();
    tokio::io::copy_buf(&mut reader, &mut copied).await.unwrap();
    assert!(copied == value());
}

#[tokio::test]
async fn a_seek_goes_anywhere_and_keeps_the_bytes_at_hand() {
    let cluster = Cluster::start(1);
    let (_client, mut reader) = reader(&cluster).await;
    let value = value();
    let reads = || cluster.world.lock().reads;
    assert_eq!(reader.read_u8().await.unwrap(), value[0]);
    assert_eq!(reader.seek(SeekFrom::Current(500)).await.unwrap(), 501);
    assert_eq!((reader.read_u8().await.unwrap(), reads()), (value[501], 1));
    for (to, at) in [
        (SeekFrom::End(-1), SIZE - 1),
        (SeekFrom::Start(7), 7),
        (SeekFrom::Current(PIECE as i64), PIECE + 8),
        (SeekFrom::Current(-3), PIECE + 6),
    ] {
        assert_eq!(reader.seek(to).await.unwrap(), at as u64);
        assert_eq!(reader.read_u8().await.unwrap(), value[at], "{to:?}");
    }
    reader.seek(SeekFrom::End(5)).await.unwrap();
    assert_eq!(reader.read(&mut [0; 10]).await.unwrap(), 0, "beyond the end is nothing");
    let error = reader.seek(SeekFrom::End(-(SIZE as i64) - 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_seek_during_a_read_gives_out_no_byte_of_the_place_before() {
    let cluster = Cluster::start(1);
    let (_client, mut reader) = reader(&cluster).await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    let tried = cluster.world.lock().tried.len();
    tokio::select! {
        _ = reader.read_u8() => panic!("the store is held"),
        () = until("the read is on its way", || cluster.world.lock().tried.len() > tried) => {}
    }
    reader.seek(SeekFrom::Start(PIECE as u64)).await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.unwrap();
    assert!(rest == value()[PIECE..]);
}

#[tokio::test]
async fn a_read_that_fails_loses_no_byte_and_tells_the_clients_error() {
    let cluster = Cluster::start(1);
    let client =
        cluster.builder().local_cache(ByteSize(0)).get_timeout(PATIENCE / 40).connect().await.unwrap();
    client.put("k", &value()).await.unwrap();
    let mut reader = client.get_session("k").await.unwrap().unwrap().into_reader();
    let mut first = vec![0; PIECE];
    reader.read_exact(&mut first).await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    let error = reader.read_u8().await.unwrap_err().downcast::<Error>().unwrap();
    assert_eq!((error.code, error.is_unknown()), (Code::TransferFail, false));
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.unwrap();
    assert!([first, rest].concat() == value());
}
