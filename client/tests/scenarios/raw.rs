//! Calls on memory that is named by its address.
#![allow(unsafe_code, reason = "the calls under test take addresses")]

use std::ptr::NonNull;
use std::sync::Arc;

use mc_client::{
    ByteSize, Client, GetIntoRaw, GetRangesIntoRaw, GetSession, Put, PutFromRaw, PutOptions, PutSession,
    RangeFromRaw, RangeIntoRaw, RawBytes, ReadIntoRaw, WriteFromRaw,
};

use crate::support::{Cluster, On};

/// Memory that no reference is made to during calls.
struct Memory(Box<[u8]>);

impl Memory {
    fn of(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    fn raw(&mut self, from: usize, to: usize) -> RawBytes {
        assert!(from <= to && to <= self.0.len());
        // SAFETY: inside of memory that each test keeps until its calls are over, and does not use meanwhile.
        unsafe { RawBytes::new(NonNull::new(self.0.as_mut_ptr().add(from)).unwrap(), to - from) }
    }
}

#[tokio::test]
async fn bytes_go_straight_to_and_from_the_addresses() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().local_cache(ByteSize(0)).connect().await.unwrap();
    let mut from = Memory::of(b"one, two, three");
    let slices = vec![from.raw(0, 5), from.raw(5, 10), from.raw(10, 15)];
    let items =
        vec![PutFromRaw::new("k", slices.clone()), PutFromRaw::new("g", slices.clone()).with_group("group")];
    let put = client.batch_put_from_raw(items, &PutOptions::default()).await;
    assert_eq!(put.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [Put::Stored, Put::Stored]);
    assert_eq!(client.get("k").await.unwrap().as_deref(), Some(&b"one, two, three"[..]));

    let mut into = Memory::of(&[0; 20]);
    let buffers = vec![into.raw(0, 8), into.raw(8, 20)];
    cluster.world.lock().buffers.clear();
    let got =
        client.batch_get_into_raw(vec![GetIntoRaw::new("k", buffers), GetIntoRaw::new("none", vec![])]).await;
    assert_eq!(got.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [Some(15), None]);
    assert_eq!(into.0[..15], *b"one, two, three");
    let address = into.0.as_ptr() as usize;
    assert_eq!(cluster.world.lock().buffers, [[(address, 8), (address + 8, 7)]]);

    let ranges = vec![
        RangeIntoRaw { offset: 10, into: into.raw(0, 5) },
        RangeIntoRaw { offset: 0, into: into.raw(5, 8) },
    ];
    let got = client.batch_get_ranges_into_raw(vec![GetRangesIntoRaw::new("k", ranges)]).await;
    assert_eq!((got[0].clone().unwrap(), &into.0[..8]), (Some(8), &b"threeone"[..]));
}

#[tokio::test]
async fn objects_of_a_call_may_have_one_destination_and_sources_may_overlap() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().connect().await.unwrap();
    let mut from = Memory::of(b"abcabc");
    let items = ["one", "two"].map(|key| PutFromRaw::new(key, vec![from.raw(0, 4), from.raw(2, 6)]));
    for put in client.batch_put_from_raw(items.into(), &PutOptions::default()).await {
        assert_eq!(put.unwrap(), Put::Stored);
    }
    let mut into = Memory::of(&[0; 8]);
    let items = ["one", "two", "none"].map(|key| GetIntoRaw::new(key, vec![into.raw(0, 8)]));
    let got = client.batch_get_into_raw(items.into()).await;
    assert_eq!(got.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [Some(8), Some(8), None]);
    assert_eq!(*into.0, *b"abcacabc");
}

#[tokio::test]
async fn sessions_read_and_write_at_addresses() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().connect().await.unwrap();
    let mut memory = Memory::of(b"0123456789");
    let session = client.put_session("k", 10, &PutOptions::default()).await.unwrap().unwrap();
    let ranges = vec![
        RangeFromRaw { offset: 5, from: memory.raw(5, 10) },
        RangeFromRaw { offset: 0, from: memory.raw(0, 5) },
    ];
    let written = client.batch_write_from_raw(vec![WriteFromRaw::new(&session, ranges)]).await;
    assert_eq!(written[0].clone().unwrap(), 10);
    session.finish().await.unwrap();
    let session = client.get_session("k").await.unwrap().unwrap();
    let ranges = vec![RangeIntoRaw { offset: 8, into: memory.raw(0, 2) }];
    let read = client.batch_read_into_raw(vec![ReadIntoRaw::new(&session, ranges)]).await;
    assert_eq!((read[0].clone().unwrap(), &memory.0[..]), (2, &b"8923456789"[..]));
}

#[test]
fn calls_can_outlive_the_place_that_makes_them() {
    fn lasts<T: Send + 'static>(_: T) {}
    fn check(client: &Client, puts: Vec<PutFromRaw>, gets: Vec<GetIntoRaw>, ranges: Vec<GetRangesIntoRaw>) {
        let clone = client.clone();
        lasts(async move { clone.batch_put_from_raw(puts, &PutOptions::default()).await });
        let clone = client.clone();
        lasts(async move { clone.batch_get_into_raw(gets).await });
        let clone = client.clone();
        lasts(async move { clone.batch_get_ranges_into_raw(ranges).await });
    }
    fn check_sessions(client: &Client, gets: Arc<GetSession>, puts: Arc<PutSession>) {
        let clone = client.clone();
        lasts(async move { clone.batch_read_into_raw(vec![ReadIntoRaw::new(&gets, Vec::new())]).await });
        let clone = client.clone();
        lasts(async move { clone.batch_write_from_raw(vec![WriteFromRaw::new(&puts, Vec::new())]).await });
    }
    let _ = (check, check_sessions);
}

#[tokio::test]
async fn a_get_that_allocates_for_the_caller_alone_shares_nothing_with_the_cache() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().connect().await.unwrap();
    client.put("k", b"value").await.unwrap();
    let other = cluster.builder().connect().await.unwrap();
    // From the stores first, then from the cache, which the first one has filled.
    for hits in [0, 1, 2] {
        let mut got = other.batch_get_owned(&["k", "none"]).await;
        assert_eq!(got.pop().unwrap().unwrap(), None);
        let mut value = got.remove(0).unwrap().unwrap();
        assert_eq!((&value[..], other.stats().cache_hits), (&b"value"[..], hits));
        value.fill(0);
    }
    let world = cluster.world.lock();
    assert_eq!((world.reads, world.count(On::Get)), (1, 3), "one call to the leader for each");
}
