//! Ranged reads: the bytes that were asked for, of one version, or an error that names the range.

use std::time::Duration;

use mc_client::{ByteRange, ByteSize, Client, Code, GetRangesInto, Mode, PutOptions, RangeInto};

use crate::support::{Cluster, On, STORE_A, StoreHealth};

async fn uncached(cluster: &Cluster) -> Client {
    cluster.builder().local_cache(ByteSize(0)).connect().await.unwrap()
}

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8).collect()
}

#[tokio::test]
async fn ranges_are_the_bytes_at_their_offsets_edges_and_empty_ones_included() {
    let cluster = Cluster::start(1);
    let (client, value) = (uncached(&cluster).await, value(1000));
    client.put("k", &value).await.unwrap();
    for (offset, len) in [(0, 1000), (0, 1), (999, 1), (1, 998), (500, 64), (0, 0), (1000, 0)] {
        let got = client.get_range("k", range(offset, len)).await.unwrap().unwrap();
        let (from, to) = (usize::try_from(offset).unwrap(), usize::try_from(offset + len).unwrap());
        assert_eq!(got, value[from..to], "{len} at {offset}");
    }
    assert_eq!(client.get_range("none", range(0, 1)).await.unwrap(), None, "a miss");
}

#[tokio::test]
async fn a_range_beyond_the_object_is_refused_by_its_numbers_and_costs_the_other_keys_nothing() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.batch_put(&[("a", "12345"), ("b", "67890")], &PutOptions::default()).await;
    for beyond in [range(0, 6), range(5, 1), range(6, 0), range(3, u64::MAX), range(u64::MAX, u64::MAX)] {
        let mut results =
            client.batch_get_ranges(&[("a", vec![range(0, 1), beyond]), ("b", vec![range(1, 3)])]).await;
        assert_eq!(results.pop().unwrap().unwrap().unwrap(), [&b"789"[..]]);
        let error = results.pop().unwrap().unwrap_err();
        assert_eq!((error.code, error.is_unknown()), (Code::InvalidParams, false));
        assert!(error.why.contains(&format!("{beyond} do not lie within the object of 5 bytes")), "{error}");
    }
}

#[tokio::test]
async fn many_ranges_of_many_keys_ask_the_leader_once() {
    let cluster = Cluster::start(1);
    let (client, value) = (uncached(&cluster).await, value(64 << 10));
    let keys: Vec<String> = (0..50).map(|i| format!("k{i}")).collect();
    let items: Vec<(&String, &Vec<u8>)> = keys.iter().map(|key| (key, &value)).collect();
    client.batch_put(&items, &PutOptions::default()).await;
    // Every second block of 16 bytes, from the last to the first.
    let ranges: Vec<_> = (0..2048).rev().map(|i| range(i * 32, 16)).collect();
    let asked: Vec<_> = keys.iter().map(|key| (key, ranges.clone())).collect();
    let results = client.batch_get_ranges(&asked).await;
    for parts in results {
        let parts = parts.unwrap().unwrap();
        assert_eq!(parts.len(), ranges.len());
        for (part, range) in parts.iter().zip(&ranges) {
            let at = usize::try_from(range.offset).unwrap();
            assert_eq!(*part, value[at..at + 16]);
        }
    }
    assert_eq!(cluster.world.lock().count(On::Get), 1);
    assert_eq!(client.stats().bytes_read, 50 * 2048 * 16);
}

#[tokio::test]
async fn ranges_that_follow_each_other_are_one_read_into_the_callers_buffers() {
    let cluster = Cluster::start(1);
    let (client, value) = (uncached(&cluster).await, value(100));
    client.put("k", &value).await.unwrap();
    let (mut one, mut two, mut three) = ([0; 10], [0; 20], [0; 5]);
    let expected: Vec<_> =
        [&one[..], &two, &three].iter().map(|buffer| (buffer.as_ptr() as usize, buffer.len())).collect();
    let ranges = vec![
        RangeInto { offset: 40, into: &mut one },
        RangeInto { offset: 50, into: &mut two },
        RangeInto { offset: 0, into: &mut three },
    ];
    let read = client.batch_get_ranges_into(&mut [GetRangesInto::new(b"k", ranges)]).await.remove(0);
    assert_eq!(read.unwrap(), Some(35));
    assert_eq!((&one[..], &two[..], &three[..]), (&value[40..50], &value[50..70], &value[..5]));
    assert_eq!(cluster.world.lock().buffers[1..], [expected[..2].to_vec(), expected[2..].to_vec()]);
}

#[tokio::test]
async fn ranges_that_are_the_whole_object_are_compared_with_its_checksum() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put("k", b"0123456789").await.unwrap();
    for bytes in cluster.world.lock().memory.values_mut() {
        bytes[7] ^= 1;
    }
    let halves = vec![range(0, 5), range(5, 5)];
    assert_eq!(client.batch_get_ranges(&[("k", halves)]).await.remove(0).unwrap(), None);
    assert_eq!(client.stats().checksum_mismatches, 1);
    assert_eq!(client.get_range("k", range(0, 7)).await.unwrap().unwrap(), b"0123456"[..]);
}

#[tokio::test]
async fn a_range_is_read_from_another_replica_when_a_store_fails() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let two = PutOptions::default().with_replicas(2);
    client.put_with("k", b"0123456789", &two).await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    let parts = client.batch_get_ranges(&[("k", vec![range(8, 2), range(0, 2)])]).await.remove(0);
    assert_eq!(parts.unwrap().unwrap(), [&b"89"[..], b"01"]);
}

#[tokio::test]
async fn the_local_cache_answers_ranges_of_the_version_that_the_leader_names_and_without_a_leader() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().leader_timeout(Duration::from_millis(200)).connect().await.unwrap();
    client.put("k", b"0123456789").await.unwrap();
    let read = || client.get_range("k", range(3, 4));
    assert_eq!(read().await.unwrap().unwrap(), b"3456"[..]);
    assert_eq!((client.stats().cache_hits, client.stats().bytes_read), (1, 0));
    cluster.depose();
    assert_eq!(read().await.unwrap().unwrap(), b"3456"[..]);
    assert_eq!(client.mode(), Mode::LocalOnly);
    assert_eq!(client.get_range("k", range(3, 8)).await.unwrap_err().code, Code::InvalidParams);
}
