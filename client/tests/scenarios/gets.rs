//! Gets never answer with wrong bytes, and stores that fail cost their own keys only.

use std::time::Duration;

use futures::future::join_all;
use mc_client::{
    ByteRange, ByteSize, Client, Code, GetInto, GetIntoOwned, GotOwned, Presence, PutFrom, PutMode,
    PutOptions,
};

use crate::support::{Cluster, On, STORE_A, STORE_B, StoreHealth};

async fn uncached(cluster: &Cluster) -> Client {
    cluster.builder().local_cache(ByteSize(0)).connect().await.unwrap()
}

async fn impatient(cluster: &Cluster, get_timeout: Duration) -> Client {
    cluster.builder().local_cache(ByteSize(0)).get_timeout(get_timeout).connect().await.unwrap()
}

fn two() -> PutOptions {
    PutOptions::default().with_replicas(2)
}

fn flip(cluster: &Cluster, only: Option<mc_types::StoreId>) {
    for ((store, _), bytes) in &mut cluster.world.lock().memory {
        if only.is_none_or(|only| only == *store) {
            bytes[0] ^= 1;
        }
    }
}

#[tokio::test]
async fn flipped_bytes_are_never_returned() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put("k", b"value").await.unwrap();
    flip(&cluster, None);
    assert_eq!(client.get("k").await.unwrap(), None);
    let stats = client.stats();
    assert_eq!((stats.checksum_mismatches, stats.hits), (1, 0));

    let trusting = cluster.builder().local_cache(ByteSize(0)).checksum(false).connect().await.unwrap();
    assert!(trusting.get("k").await.unwrap().is_some(), "it is the checksum that refused them");
}

#[tokio::test]
async fn a_good_replica_answers_for_a_flipped_one() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put_with("k", b"value", &two()).await.unwrap();
    flip(&cluster, Some(STORE_A));
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"value"[..]);
    assert_eq!(client.stats().checksum_mismatches, 1);
}

#[tokio::test]
async fn a_dead_stores_keys_are_read_elsewhere_or_miss_and_others_are_untouched() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put_with("both", b"1", &two()).await.unwrap();
    client.put("on a", b"2").await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    client.put("on b", b"3").await.unwrap();
    let got = client.batch_get(&["both", "on a", "on b"]).await;
    let got: Vec<_> = got.into_iter().map(Result::unwrap).collect();
    assert_eq!(
        got.iter().map(|value| value.as_deref()).collect::<Vec<_>>(),
        [Some(&b"1"[..]), None, Some(&b"3"[..])]
    );
    assert_eq!(client.stats().unreachable_replicas, 1);
}

#[tokio::test]
async fn a_stopped_stores_key_is_a_miss_long_before_the_gets_deadline() {
    let cluster = Cluster::start(1);
    let client = impatient(&cluster, Duration::from_secs(60)).await;
    client.put("k", b"v").await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Stopped);
    let get = tokio::time::timeout(crate::support::PATIENCE, client.get("k"));
    assert_eq!(get.await.expect("bounded by the store's failure").unwrap(), None);
    assert_eq!(client.get("k").await.unwrap(), None);
    assert_eq!(client.stats().unreachable_replicas, 2);
}

#[tokio::test]
async fn a_client_that_uses_rdma_alone_is_told_that_its_tenant_may_not() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put_with("both", b"1", &two()).await.unwrap();
    cluster.world.lock().stores.extend([STORE_A, STORE_B].map(|store| (store, StoreHealth::WithoutRdma)));
    let get = client.get("both").await.map(drop);
    let put = client.put("new", b"2").await.map(drop);
    for error in [get, put].map(Result::unwrap_err) {
        assert_eq!(error.code, Code::TransferFail, "{error}");
        assert!(error.to_string().contains("mcctl tenants set --rdma off"), "{error}");
    }
}

#[tokio::test]
async fn a_store_that_failed_is_tried_last_and_once_a_get_while_the_leader_offers_it() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put("on a", b"1").await.unwrap();
    client.put_with("both", b"2", &two()).await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    // Given: a store that has failed.
    assert_eq!(client.get("on a").await.unwrap(), None);
    cluster.world.lock().tried.clear();
    assert_eq!(client.get("on a").await.unwrap(), None);
    assert_eq!(cluster.world.lock().tried, [STORE_A], "once");
    // When it is back, and the leader has offered it all the time.
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    cluster.world.lock().tried.clear();
    assert_eq!(client.get("both").await.unwrap().unwrap(), b"2"[..]);
    assert_eq!(cluster.world.lock().tried, [STORE_B], "the other one first");
    assert_eq!(client.get("on a").await.unwrap().unwrap(), b"1"[..], "it is asked before the key is a miss");
}

#[tokio::test]
async fn a_store_that_stalls_does_not_hold_up_the_failover_of_other_keys() {
    const STORE_C: mc_types::StoreId = mc_types::StoreId(0xc);
    let cluster = Cluster::start(1);
    let client = impatient(&cluster, crate::support::PATIENCE).await;
    let stores = |stores: &[(mc_types::StoreId, StoreHealth)]| {
        cluster.world.lock().stores = stores.iter().copied().collect();
    };
    stores(&[(STORE_C, StoreHealth::Well)]);
    client.put("held", b"1").await.unwrap();
    stores(&[(STORE_A, StoreHealth::Well), (STORE_B, StoreHealth::Well)]);
    client.put_with("both", b"2", &two()).await.unwrap();
    // Given: a store that refuses, and one that answers nothing.
    stores(&[(STORE_A, StoreHealth::Dead), (STORE_B, StoreHealth::Well), (STORE_C, StoreHealth::Held)]);
    let get = client.batch_get(&["held", "both"]);
    let release = async {
        // Then: the other replica is read while the silent store is still waited for.
        crate::support::until("the other replica to be read", || cluster.world.lock().reads == 1).await;
        stores(&[(STORE_C, StoreHealth::Stopped)]);
    };
    let (got, ()) = tokio::join!(get, release);
    let got: Vec<_> = got.into_iter().map(Result::unwrap).collect();
    assert_eq!(got.iter().map(|value| value.as_deref()).collect::<Vec<_>>(), [None, Some(&b"2"[..])]);
}

#[tokio::test]
async fn a_broken_connection_to_a_live_store_is_not_a_miss() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put("k", b"v").await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    let world = std::sync::Arc::clone(&cluster.world);
    // It comes back between the first read and the second.
    let get = client.get("k");
    let revive = async {
        crate::support::until("the second question", || world.lock().count(On::Get) == 2).await;
        world.lock().stores.insert(STORE_A, StoreHealth::Well);
    };
    world.lock().read_delay = Duration::from_millis(100);
    let (got, ()) = tokio::join!(get, revive);
    assert_eq!(got.unwrap().unwrap(), b"v"[..]);
}

#[tokio::test]
async fn a_placement_is_not_used_after_its_lease() {
    let cluster = Cluster::start(1);
    let client = impatient(&cluster, Duration::from_millis(300)).await;
    client.put("k", b"v").await.unwrap();
    let reads = cluster.world.lock().reads;
    cluster.world.lock().lease_ms = 0;
    let error = client.get("k").await.unwrap_err();
    assert_eq!(error.code, Code::RpcTimeout, "each answer's lease had ended when its turn came: {error}");
    let world = cluster.world.lock();
    assert_eq!(world.reads, reads, "no byte was read");
    assert!(world.count(On::Get) > 1, "it was asked for again");
}

#[tokio::test]
async fn a_get_whose_lease_ends_while_it_waits_for_a_connection_asks_again_and_does_not_miss() {
    let cluster = Cluster::start(1);
    let client = impatient(&cluster, crate::support::PATIENCE).await;
    client.put("k", b"v").await.unwrap();
    cluster.world.lock().lease_ms = 20;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Busy);
    let get = client.get("k");
    let free = async {
        crate::support::until("many questions", || cluster.world.lock().count(On::Get) == 6).await;
        cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
        cluster.world.lock().lease_ms = 10_000;
    };
    let (got, ()) = tokio::join!(get, free);
    assert_eq!(got.unwrap().unwrap(), b"v"[..]);
    assert_eq!(client.stats().unreachable_replicas, 0);
}

#[tokio::test]
async fn a_call_that_never_has_its_turn_goes_elsewhere_or_fails_and_blames_no_store() {
    let cluster = Cluster::start(1);
    let client = impatient(&cluster, Duration::from_millis(100)).await;
    client.put("k", b"v").await.unwrap();
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Busy);
    assert_eq!(client.get("k").await.unwrap_err().code, Code::RpcTimeout, "it is not called a miss");
    let soon = PutOptions::default().with_deadline(Duration::from_secs(1));
    client.put_with("other", b"v", &soon).await.unwrap();
    assert_eq!(
        cluster.world.lock().objects[&b"other"[..]].replicas[0].0,
        STORE_B,
        "the write left time for it"
    );

    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    client.put("third", b"v").await.unwrap();
    let world = cluster.world.lock();
    assert_eq!(world.avoided, [STORE_A], "only the put that had no turn there avoids the store");
    assert_eq!(world.objects[&b"third"[..]].replicas[0].0, STORE_A);
}

#[tokio::test]
async fn a_second_get_is_answered_by_the_cache_only_while_the_version_is_the_same() {
    let cluster = Cluster::start(1);
    let (client, other) = (cluster.client().await, uncached(&cluster).await);
    client.put("k", b"one").await.unwrap();
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"one"[..]);
    assert_eq!((client.stats().cache_hits, client.stats().bytes_read), (1, 0), "the put filled it");

    other.remove("k", true).await.unwrap();
    other.put("k", b"two").await.unwrap();
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"two"[..]);
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"two"[..]);
    assert_eq!((client.stats().cache_hits, client.stats().bytes_read), (2, 3), "read once, then cached");
    other.remove("k", true).await.unwrap();
    assert_eq!(client.get("k").await.unwrap(), None, "the leader decides, not the cache");
}

#[tokio::test]
async fn a_put_that_found_the_key_caches_nothing() {
    let cluster = Cluster::start(1);
    let (client, other) = (cluster.client().await, uncached(&cluster).await);
    other.put("k", b"theirs").await.unwrap();
    client.put("k", b"ours").await.unwrap();
    assert_eq!(client.stats().cache_bytes, 0);
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"theirs"[..]);
}

#[tokio::test]
async fn objects_are_read_into_the_callers_memory() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.batch_put(&[("a", "12345"), ("b", "67890")], &PutOptions::default()).await;
    let (mut exact, mut long, mut short, mut none) = ([0; 5], [0xff; 8], [0; 4], [0; 1]);
    let mut items = [
        GetInto::new(b"a", vec![&mut exact]),
        GetInto::new(b"b", vec![&mut long]),
        GetInto::new(b"a", vec![&mut short]),
        GetInto::new(b"c", vec![&mut none]),
    ];
    let results = client.batch_get_into(&mut items).await;
    let results: Vec<_> = results.into_iter().map(|result| result.map_err(|error| error.code)).collect();
    assert_eq!(results, [Ok(Some(5)), Ok(Some(5)), Err(Code::InvalidParams), Ok(None)]);
    assert_eq!(&exact, b"12345");
    assert_eq!(&long, b"67890\xff\xff\xff", "what lies behind the object is untouched");
    assert_eq!(cluster.world.lock().stores[&STORE_B], StoreHealth::Well);
}

#[tokio::test]
async fn memory_that_is_handed_over_comes_back_with_the_bytes() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.batch_put(&[("a", "12345"), ("b", "67890")], &PutOptions::default()).await;
    let mut memory = client.allocate(40_000).unwrap();
    let address = memory.as_slice().as_ptr();
    let rest = memory.split_off(2);
    let items = vec![
        GetIntoOwned::new("a", vec![memory, rest]),
        GetIntoOwned::new("b", vec![client.allocate(4).unwrap()]),
        GetIntoOwned::new("c", vec![client.allocate(4).unwrap()]),
    ];
    let [a, b, c]: [GotOwned; 3] = client.batch_get_into_owned(items).await.try_into().unwrap();
    assert_eq!(a.read.unwrap(), Some(5));
    assert_eq!((a.into[0].as_slice(), &a.into[1].as_slice()[..3]), (&b"12"[..], &b"345"[..]));
    assert_eq!((a.into[0].as_slice().as_ptr(), a.into[1].as_slice().len()), (address, 39_998));
    assert_eq!((b.read.unwrap_err().code, b.into[0].as_slice().len()), (Code::InvalidParams, 4));
    assert_eq!((c.read.unwrap(), c.into.len()), (None, 1));
    assert!(client.batch_get_into_owned(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn a_key_on_a_suspect_store_is_told_from_one_that_is_not_there() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put("k", b"value").await.unwrap();
    assert_eq!(client.presence("k").await.unwrap(), Presence::Present(5));
    cluster.world.lock().suspects.push(STORE_A);
    assert_eq!(client.presence("k").await.unwrap(), Presence::Unavailable);
    assert_eq!(client.presence("other").await.unwrap(), Presence::Absent);
    assert!(!client.exist("k").await.unwrap(), "it can't be read");
}

#[tokio::test]
async fn a_key_that_is_being_written_is_a_miss_unless_the_caller_wants_to_know() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let asking =
        cluster.builder().local_cache(ByteSize(0)).fail_unfinished_gets(true).connect().await.unwrap();
    let session = client.put_session("k", 5, &PutOptions::default()).await.unwrap().expect("it is absent");

    assert_eq!(client.presence("k").await.unwrap(), Presence::BeingWritten);
    assert_eq!(client.peek("k").await.unwrap(), Presence::BeingWritten);
    assert_eq!(client.size("k").await.unwrap(), None);
    assert!(!client.exist("k").await.unwrap());
    assert_eq!(client.get("k").await.unwrap(), None);
    assert!(client.get_session("k").await.unwrap().is_none());
    let range = ByteRange { offset: 0, len: 1 };
    let refused = [
        asking.get("k").await.map(|_| ()).unwrap_err(),
        asking.get_range("k", range).await.map(|_| ()).unwrap_err(),
        asking.get_session("k").await.map(|_| ()).unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.code == Code::ReplicaIsNotReady), "{refused:?}");
    assert_eq!(asking.get("other").await.unwrap(), None);
    assert!(asking.get_session("other").await.unwrap().is_none());
    assert_eq!(asking.presence("other").await.unwrap(), Presence::Absent);

    cluster.world.lock().tells_of_puts = false;
    assert_eq!(client.presence("k").await.unwrap(), Presence::Absent, "as of an older master");
    assert_eq!(asking.get("k").await.unwrap(), None);
    cluster.world.lock().tells_of_puts = true;

    session.write(0, b"value").await.unwrap();
    session.finish().await.unwrap();
    assert_eq!(asking.get("k").await.unwrap().unwrap(), &b"value"[..]);
    // Its next version is written while this one can be read.
    let upsert = PutOptions::default().with_mode(PutMode::Upsert);
    let session = client.put_session("k", 9, &upsert).await.unwrap();
    assert_eq!(client.presence("k").await.unwrap(), Presence::Present(5));
    assert_eq!(asking.get("k").await.unwrap().unwrap(), &b"value"[..]);
    drop(session);
}

#[tokio::test]
async fn keys_are_packed_for_masters_that_read_them_so_and_asked_for_again_of_others() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.put("k", b"value").await.unwrap();
    // Enough for a message of its own.
    let mut keys: Vec<String> = (0..100).map(|n| format!("absent-{n}")).collect();
    (keys[3], keys[70]) = (String::new(), "k".to_owned());
    let asks = || cluster.world.lock().count(On::Exist);
    let check = async || {
        let (asked, packed) = (asks(), cluster.world.lock().packed);
        for (at, found) in client.batch_peek(&keys).await.into_iter().enumerate() {
            match at {
                3 => assert_eq!(found.unwrap_err().code, Code::InvalidKey),
                70 => assert_eq!(found.unwrap(), Presence::Present(5)),
                _ => assert_eq!(found.unwrap(), Presence::Absent),
            }
        }
        (asks() - asked, cluster.world.lock().packed - packed)
    };
    assert_eq!(check().await, (1, 0), "nothing is known of the master yet");
    assert_eq!(check().await, (1, 1));
    cluster.world.lock().packs = false;
    assert_eq!(check().await, (2, 1), "as after a move of the leader to an older master");
    assert_eq!(check().await, (1, 0));
    cluster.world.lock().packs = true;
    assert_eq!(check().await, (1, 0));
    assert_eq!(check().await, (1, 1));

    // Single keys share messages.
    let mut found = join_all(keys.iter().map(|key| client.presence(key))).await;
    assert_eq!(found.remove(70).unwrap(), Presence::Present(5));
    assert_eq!(found.remove(3).unwrap_err().code, Code::InvalidKey);
    assert!(found.into_iter().all(|found| found.unwrap() == Presence::Absent));
    cluster.world.lock().packs = false;
    let found = join_all(["k", "absent", "k"].map(|key| client.exist(key))).await;
    assert_eq!(found.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [true, false, true]);
    cluster.world.lock().suspects.push(STORE_A);
    assert_eq!(client.presence("k").await.unwrap(), Presence::Unavailable);
}

#[tokio::test]
async fn one_object_is_read_into_several_buffers_and_put_from_several_by_one_transfer_without_copies() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let (keys, values) = ([b'k'; 100], [b'v'; 200]);
    let slices: [&[u8]; 2] = [&keys, &values];
    let addresses = |slices: &[&[u8]]| -> Vec<(usize, usize)> {
        slices.iter().map(|slice| (slice.as_ptr() as usize, slice.len())).collect()
    };
    client.batch_put_from(&[PutFrom::new(b"k", &slices)], &PutOptions::default()).await.remove(0).unwrap();
    assert_eq!(cluster.world.lock().buffers, [addresses(&slices)]);

    // Cut otherwise than it was put.
    let (mut one, mut two) = ([0; 250], [0; 50]);
    let expected = addresses(&[&one, &two]);
    let into: Vec<&mut [u8]> = vec![&mut one, &mut two];
    let read = client.batch_get_into(&mut [GetInto::new(b"k", into)]).await.remove(0);
    assert_eq!(read.unwrap(), Some(300));
    assert!([&one[..], &two].concat() == slices.concat());
    assert_eq!(cluster.world.lock().buffers[1], expected);

    // The checksum covers the object, however many buffers it fills.
    flip(&cluster, None);
    let into: Vec<&mut [u8]> = vec![&mut one, &mut two];
    let read = client.batch_get_into(&mut [GetInto::new(b"k", into)]).await.remove(0);
    assert_eq!((read.unwrap(), client.stats().checksum_mismatches), (None, 1));
    let into: Vec<&mut [u8]> = vec![&mut one, &mut two[..49]];
    let short = client.batch_get_into(&mut [GetInto::new(b"k", into)]).await.remove(0).unwrap_err();
    assert_eq!(short.code, Code::InvalidParams);
    assert!(short.why.contains("299 bytes of memory for an object of 300"), "{short}");
}
