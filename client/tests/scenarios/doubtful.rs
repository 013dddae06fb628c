//! Objects whose places may hold another object's bytes, although stores and leader say nothing of it: after a rescue, or
//! after a loss of power with `--log-sync none`.

use mc_client::{ByteRange, ByteSize, Client, GetInto, GetRangesInto, PutOptions, RangeInto};

use crate::support::{Cluster, STORE_A};

const SIZE: u64 = 8_000;

fn part() -> ByteRange {
    ByteRange { offset: 4_000, len: 100 }
}

fn value() -> Vec<u8> {
    (0..SIZE).map(|i| (i * 7 % 251) as u8).collect()
}

/// A client that compares checksums by itself, and one that was told not to.
async fn readers(cluster: &Cluster) -> [Client; 2] {
    let builder = || cluster.builder().local_cache(ByteSize(0));
    [builder().connect().await.unwrap(), builder().checksum(false).connect().await.unwrap()]
}

/// Puts another object's bytes into each place on `only`, or on all stores.
fn overwrite(cluster: &Cluster, only: Option<mc_types::StoreId>) {
    for ((store, _), bytes) in &mut cluster.world.lock().memory {
        if only.is_none_or(|only| only == *store) {
            bytes.fill(0xee);
        }
    }
}

#[tokio::test]
async fn ranges_of_a_doubtful_object_are_its_own_bytes_or_a_miss() {
    let cluster = Cluster::start(1);
    let value = value();
    for client in readers(&cluster).await {
        client.put("k", &value).await.unwrap();
        cluster.world.lock().doubtful = true;
        let got = client.get_range("k", part()).await.unwrap().unwrap();
        assert_eq!(got, value[4_000..4_100]);
        let mut into = [0; 100];
        let mut wanted = [GetRangesInto::new(b"k", vec![RangeInto { offset: 4_000, into: &mut into }])];
        assert_eq!(client.batch_get_ranges_into(&mut wanted).await.remove(0).unwrap(), Some(100));
        assert_eq!(into, value[4_000..4_100]);
        assert_eq!(client.get("k").await.unwrap().unwrap(), value);

        overwrite(&cluster, None);
        assert_eq!(client.get_range("k", part()).await.unwrap(), None);
        let mut into = [0; 100];
        let mut wanted = [GetRangesInto::new(b"k", vec![RangeInto { offset: 4_000, into: &mut into }])];
        assert_eq!(client.batch_get_ranges_into(&mut wanted).await.remove(0).unwrap(), None);
        assert_eq!(into, [0; 100], "no foreign byte is written to the caller's memory");
        assert_eq!(client.get("k").await.unwrap(), None);
        let mut whole = vec![0; value.len()];
        let mut wanted = [GetInto::new(b"k", vec![&mut whole[..]])];
        assert_eq!(client.batch_get_into(&mut wanted).await.remove(0).unwrap(), None);
        assert!(client.stats().checksum_mismatches >= 4);
        cluster.world.lock().doubtful = false;
        client.remove("k", true).await.unwrap();
    }
}

#[tokio::test]
async fn a_good_replica_of_a_doubtful_object_answers_for_one_that_was_overwritten() {
    let cluster = Cluster::start(1);
    let value = value();
    for client in readers(&cluster).await {
        client.put_with("k", &value, &PutOptions::default().with_replicas(2)).await.unwrap();
        cluster.world.lock().doubtful = true;
        overwrite(&cluster, Some(STORE_A));
        assert_eq!(client.get_range("k", part()).await.unwrap().unwrap(), value[4_000..4_100]);
        assert_eq!(client.stats().checksum_mismatches, 1);
        cluster.world.lock().doubtful = false;
        client.remove("k", true).await.unwrap();
    }
}

#[tokio::test]
async fn a_session_checks_a_doubtful_object_at_each_read() {
    let cluster = Cluster::start(1);
    let value = value();
    for client in readers(&cluster).await {
        client.put("k", &value).await.unwrap();
        cluster.world.lock().doubtful = true;
        let session = client.get_session("k").await.unwrap().unwrap();
        assert_eq!(session.read(part()).await.unwrap(), value[4_000..4_100]);
        overwrite(&cluster, None);
        assert!(session.read(part()).await.is_err());
        cluster.world.lock().doubtful = false;
        drop(session);
        client.remove("k", true).await.unwrap();
    }
}
