//! Calls on memory of devices, with a driver that keeps plain accesses out of it, against the fake masters and stores of the scenarios.
#![allow(unsafe_code, reason = "the calls under test take addresses")]
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used)]
#![allow(clippy::await_holding_lock, reason = "the driver is one test's at a time")]

#[path = "../../../transfer/cuda/tests/fake/mod.rs"]
mod fake;
#[path = "../scenarios/support/mod.rs"]
#[allow(unused_imports, reason = "the scenarios use more of it")]
mod support;

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use mc_client::{
    ByteSize, Client, Code, Error, GetIntoRaw, GetRangesIntoRaw, Memory as StoreMemory, Put, PutFromRaw,
    PutMode, PutOptions, RangeFromRaw, RangeIntoRaw, RawBytes, ReadIntoRaw, Segment, WriteFromRaw,
};

use crate::fake::{Fake, Memory};
use crate::support::{Cluster, On, STORE_A, STORE_B, StoreHealth, until};

const SOON: Duration = Duration::from_millis(100);

fn part(memory: Memory, from: usize, len: usize) -> RawBytes {
    assert!(from + len <= memory.len);
    // SAFETY: memory that is never freed, and which nothing else uses.
    unsafe { RawBytes::new(memory.base.add(from), len) }
}

fn all(memory: Memory) -> RawBytes {
    part(memory, 0, memory.len)
}

fn of_host(bytes: &mut [u8]) -> RawBytes {
    // SAFETY: each test keeps the bytes until its calls are over, and does not use them meanwhile.
    unsafe { RawBytes::new(NonNull::from(&mut *bytes).cast(), bytes.len()) }
}

async fn uncached(cluster: &Cluster) -> Client {
    cluster.builder().local_cache(ByteSize(0)).connect().await.unwrap()
}

async fn put(client: &Client, key: &'static str, slices: Vec<RawBytes>) -> Result<Put, Error> {
    client.batch_put_from_raw(vec![PutFromRaw::new(key, slices)], &PutOptions::default()).await.remove(0)
}

async fn get(client: &Client, key: &'static str, into: Vec<RawBytes>) -> Result<Option<usize>, Error> {
    client.batch_get_into_raw(vec![GetIntoRaw::new(key, into)]).await.remove(0)
}

async fn get_range(
    client: &Client,
    key: &'static str,
    offset: u64,
    into: RawBytes,
) -> Result<Option<usize>, Error> {
    let ranges = vec![RangeIntoRaw { offset, into }];
    client.batch_get_ranges_into_raw(vec![GetRangesIntoRaw::new(key, ranges)]).await.remove(0)
}

fn is_of_the_device(error: &Error) {
    assert_eq!((error.code, error.is_unknown(), &*error.at), (Code::TransferFail, false, "this client"));
    let text = error.to_string();
    assert!(text.contains("CUDA cannot") && text.contains("CUDA_ERROR_OF_A_TEST"), "{text}");
    assert!(text.contains("nvidia-smi") && !text.contains("mcctl"), "{text}");
}

#[tokio::test]
async fn values_come_from_and_go_to_devices_the_host_or_both() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let (one, two, mut head) = (fake.holding(b"one, two", 0), fake.holding(b"three", 1), *b"head ");
    let long = vec![7; 17 << 20];
    let large = fake.holding(&long, 1);
    let head = of_host(&mut head);
    let items = vec![
        PutFromRaw::new("mixed", vec![head, part(one, 5, 3), all(two), head]),
        PutFromRaw::new("large", vec![all(large)]),
        PutFromRaw::new("host", vec![head]),
        PutFromRaw::new("mixed", vec![all(two)]),
    ];
    let puts = client.batch_put_from_raw(items, &PutOptions::default()).await;
    let puts: Vec<_> = puts.into_iter().map(Result::unwrap).collect();
    assert_eq!(puts, [Put::Stored, Put::Stored, Put::Stored, Put::AlreadyExists]);
    assert_eq!(client.get("mixed").await.unwrap().unwrap(), "head twothreehead ");
    assert!(client.get("large").await.unwrap().unwrap() == long);

    let (into, large, mut tail) = (fake.holding(&[9; 20], 1), fake.allocate(long.len() + 1, 0), [9; 10]);
    let short = fake.holding(&[9; 4], 1);
    let items = vec![
        GetIntoRaw::new("mixed", vec![part(into, 0, 12), of_host(&mut tail)]),
        GetIntoRaw::new("large", vec![all(large)]),
        GetIntoRaw::new("none", vec![part(into, 16, 4)]),
        GetIntoRaw::new("host", vec![all(short)]),
    ];
    let mut got = client.batch_get_into_raw(items).await;
    let refused = got.pop().unwrap().unwrap_err();
    assert_eq!(refused.code, Code::InvalidParams, "{refused}");
    assert_eq!(fake.bytes(short), [9; 4]);
    assert_eq!(got.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [Some(18), Some(long.len()), None]);
    assert_eq!((&fake.bytes(into)[..12], &tail), (&b"head twothre"[..], b"ehead \x09\x09\x09\x09"));
    assert_eq!(fake.bytes(into)[12..], [9; 8], "the rest is not touched");
    assert!(fake.bytes(large)[..long.len()] == long);

    assert_eq!(get_range(&client, "mixed", 5, part(into, 1, 3)).await.unwrap(), Some(3));
    assert_eq!(fake.bytes(into)[..5], *b"htwo ");
    assert_eq!(
        get_range(&client, "mixed", 17, part(into, 0, 2)).await.unwrap_err().code,
        Code::InvalidParams
    );
}

#[tokio::test]
async fn memory_of_the_host_costs_a_look_and_other_calls_cost_nothing() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let before = (fake.calls(c""), fake.calls(c"cuPointerGetAttributes"));
    client.put("k", b"value").await.unwrap();
    client.get("k").await.unwrap();
    assert_eq!(fake.calls(c""), before.0);
    let (mut from, mut into) = ([1; 10], [0; 10]);
    put(&client, "raw", vec![of_host(&mut from)]).await.unwrap();
    get(&client, "raw", vec![of_host(&mut into)]).await.unwrap();
    assert_eq!((fake.calls(c""), fake.calls(c"cuPointerGetAttributes")), (before.0 + 2, before.1 + 2));
}

#[tokio::test]
async fn sessions_move_layers_of_devices() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let memory = fake.holding(b"0123456789", 1);
    let session = client.put_session("k", 10, &PutOptions::default()).await.unwrap().unwrap();
    let range = |offset, from: usize, to: usize| RangeFromRaw { offset, from: part(memory, from, to - from) };
    let write = async |range| {
        client.batch_write_from_raw(vec![WriteFromRaw::new(&session, vec![range])]).await.remove(0)
    };
    assert_eq!(write(range(5, 5, 10)).await.unwrap(), 5);

    // Bytes that the thread can't compare don't replace those of an abandoned write.
    let hold = |health| {
        for store in [STORE_A, STORE_B] {
            cluster.world.lock().stores.insert(store, health);
        }
    };
    hold(StoreHealth::Held);
    let mut host = *b"01";
    let ranges = vec![RangeFromRaw { offset: 0, from: of_host(&mut host) }];
    let abandoned = client.batch_write_from_raw(vec![WriteFromRaw::new(&session, ranges.clone())]);
    tokio::time::timeout(Duration::from_millis(50), abandoned).await.unwrap_err();
    hold(StoreHealth::Well);
    assert_eq!(write(range(0, 0, 2)).await.unwrap_err().code, Code::InvalidParams);
    let again = client.batch_write_from_raw(vec![WriteFromRaw::new(&session, ranges)]).await.remove(0);
    assert_eq!(again.unwrap(), 2);

    assert_eq!(write(range(2, 2, 5)).await.unwrap(), 3);
    session.finish().await.unwrap();
    let session = client.get_session("k").await.unwrap().unwrap();
    let ranges = vec![RangeIntoRaw { offset: 8, into: part(memory, 0, 2) }];
    let read = client.batch_read_into_raw(vec![ReadIntoRaw::new(&session, ranges)]).await.remove(0);
    assert_eq!((read.unwrap(), &fake.bytes(memory)[..]), (2, &b"8923456789"[..]));
}

#[tokio::test]
async fn a_range_of_a_device_whose_write_was_abandoned_stays_open() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let memory = fake.holding(b"0123456789", 1);
    let session = client.put_session("k", 10, &PutOptions::default()).await.unwrap().unwrap();
    for store in [STORE_A, STORE_B] {
        cluster.world.lock().stores.insert(store, StoreHealth::Held);
    }
    let ranges = || vec![RangeFromRaw { offset: 0, from: all(memory) }];
    let abandoned = client.batch_write_from_raw(vec![WriteFromRaw::new(&session, ranges())]);
    tokio::time::timeout(SOON, abandoned).await.unwrap_err();
    let again = client.batch_write_from_raw(vec![WriteFromRaw::new(&session, ranges())]).await.remove(0);
    assert_eq!(again.unwrap_err().code, Code::InvalidParams);
    assert_eq!(session.finish().await.unwrap_err().code, Code::InvalidParams);
}

#[tokio::test]
async fn the_local_cache_serves_devices_and_keeps_their_values_without_a_leader() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = cluster.builder().leader_timeout(SOON).connect().await.unwrap();
    let (into, mut host) = (fake.allocate(10, 1), [0; 2]);
    client.put("k", b"0123456789").await.unwrap();
    cluster.world.lock().reads = 0;
    assert_eq!(get(&client, "k", vec![part(into, 0, 8), of_host(&mut host)]).await.unwrap(), Some(10));
    assert_eq!((&fake.bytes(into)[..8], &host), (&b"01234567"[..], b"89"));
    assert_eq!((cluster.world.lock().reads, client.stats().cache_hits), (0, 1));
    let ranges = vec![
        RangeIntoRaw { offset: 9, into: of_host(&mut host[..1]) },
        RangeIntoRaw { offset: 1, into: part(into, 0, 2) },
    ];
    let got = client.batch_get_ranges_into_raw(vec![GetRangesIntoRaw::new("k", ranges)]).await.remove(0);
    assert_eq!((got.unwrap(), host[0], &fake.bytes(into)[..2]), (Some(3), b'9', &b"12"[..]));

    cluster.depose();
    assert_eq!(client.get("nothing").await.unwrap(), None);
    let from = fake.holding(b"of a device", 0);
    assert_eq!(
        put(&client, "local", vec![part(from, 0, 5), part(from, 5, 6)]).await.unwrap(),
        Put::LocalOnly
    );
    let copies = fake.calls(c"cuMemcpyDtoHAsync_v2");
    assert_eq!(put(&client, "local", vec![part(from, 0, 5)]).await.unwrap(), Put::LocalOnly);
    assert_eq!(fake.calls(c"cuMemcpyDtoHAsync_v2"), copies, "a value that it has stays");
    assert_eq!(client.get("local").await.unwrap().unwrap(), "of a device");
    assert_eq!(get(&client, "local", vec![all(into)]).await.unwrap_err().code, Code::InvalidParams);
    assert_eq!(get(&client, "k", vec![all(into)]).await.unwrap(), Some(10));
    assert_eq!(fake.bytes(into), b"0123456789");
    let upsert = PutOptions::default().with_mode(PutMode::Upsert);
    let items = vec![PutFromRaw::new("local", vec![all(from)])];
    assert_eq!(client.batch_put_from_raw(items, &upsert).await[0].clone().unwrap_err().code, Code::NoLeader);

    fake.fail(c"cuMemcpyDtoHAsync_v2", 0);
    let failed = put(&client, "failed", vec![all(from)]).await;
    fake.fail(c"cuMemcpyHtoDAsync_v2", 0);
    let unread = get(&client, "k", vec![all(into)]).await;
    fake.fail(c"", 0);
    is_of_the_device(&failed.unwrap_err());
    is_of_the_device(&unread.unwrap_err());
    assert_eq!(client.get("failed").await.unwrap(), None);
}

#[tokio::test]
async fn an_embedded_store_and_doubtful_objects_are_checked_before_a_device_gets_them() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let memory = Arc::new(StoreMemory::of(vec![Segment::allocate(0, 4 << 20, &mut |_| {}).unwrap()]));
    let builder = cluster.builder().local_cache(ByteSize(0)).leader_timeout(SOON);
    let client = builder.embedded_store(STORE_A, &memory).connect().await.unwrap();
    let into = fake.holding(&[9; 16], 1);
    // The fake masters place it where the embedded store has zeros.
    let zeros = fake.holding(&[0; 16], 0);
    assert_eq!(put(&client, "k", vec![all(zeros)]).await.unwrap(), Put::Stored);
    assert_eq!(put(&client, "other", vec![all(into)]).await.unwrap(), Put::Stored);
    cluster.world.lock().doubtful = true;
    assert_eq!(get_range(&client, "other", 3, part(into, 0, 2)).await.unwrap(), Some(2));
    for bytes in cluster.world.lock().memory.values_mut() {
        bytes.fill(0xee);
    }
    assert_eq!(get_range(&client, "other", 3, part(into, 0, 2)).await.unwrap(), None);
    assert_eq!(get(&client, "other", vec![all(zeros)]).await.unwrap(), None, "the checksum is another's");

    cluster.depose();
    assert_eq!(get(&client, "k", vec![all(into)]).await.unwrap(), Some(16));
    assert_eq!(fake.bytes(into), [0; 16]);
    fake.with(into, |there| there.fill(9));
    assert_eq!(get_range(&client, "k", 3, part(into, 5, 2)).await.unwrap(), Some(2));
    assert_eq!(fake.bytes(into)[4..8], [9, 0, 0, 9]);
    assert_eq!(get(&client, "other", vec![all(into)]).await.unwrap(), None);
    assert_eq!(client.stats().embedded_hits, 2);
}

#[tokio::test]
async fn an_error_of_the_driver_is_the_calls_and_no_store_is_blamed() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let (memory, mut host) = (fake.holding(b"value", 1), *b"host");
    client.put("there", b"value").await.unwrap();
    for step in
        [c"cuPointerGetAttributes", c"cuMemHostRegister_v2", c"cuMemcpyDtoHAsync_v2", c"cuStreamSynchronize"]
    {
        fake.fail(step, 0);
        let items =
            vec![PutFromRaw::new("k", vec![all(memory)]), PutFromRaw::new("h", vec![of_host(&mut host)])];
        let upsert = PutOptions::default().with_mode(PutMode::Upsert);
        let mut puts = client.batch_put_from_raw(items, &upsert).await;
        let into = fake.allocate(5, 0);
        let got = get(&client, "there", vec![all(into)]).await;
        fake.fail(c"", 0);
        match step == c"cuPointerGetAttributes" {
            true => is_of_the_device(&puts.pop().unwrap().unwrap_err()),
            false => assert_eq!(puts.pop().unwrap().unwrap(), Put::Stored, "of the host"),
        }
        is_of_the_device(&puts.pop().unwrap().unwrap_err());
        // The copy that failed in the other direction is not one of a get.
        match step == c"cuMemcpyDtoHAsync_v2" {
            true => assert_eq!(got.unwrap(), Some(5)),
            false => is_of_the_device(&got.unwrap_err()),
        }
        assert_eq!(client.get("k").await.unwrap(), None);
    }
    until("the puts are revoked", || cluster.world.lock().puts.is_empty()).await;
    let world = cluster.world.lock();
    let writes: Vec<_> = world.tried.iter().filter(|store| **store == STORE_B).collect();
    assert!(writes.is_empty() && world.avoided.is_empty(), "no other store was tried: {:?}", world.tried);
}

#[tokio::test]
async fn an_address_that_the_driver_cannot_tell_fails_its_item_alone() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let (good, bad, mut host) = (fake.holding(b"value", 0), fake.holding(b"other", 1), *b"host");
    fake.obscure(bad);
    let items = vec![
        PutFromRaw::new("a", vec![all(bad)]),
        PutFromRaw::new("b", vec![all(good)]),
        PutFromRaw::new("c", vec![part(good, 0, 1), all(bad)]),
        PutFromRaw::new("d", vec![of_host(&mut host)]),
    ];
    let [a, b, c, d] = client.batch_put_from_raw(items, &PutOptions::default()).await.try_into().unwrap();
    assert_eq!((b.unwrap(), d.unwrap()), (Put::Stored, Put::Stored));
    let mut errors = vec![a.unwrap_err(), c.unwrap_err()];

    let items = vec![GetIntoRaw::new("b", vec![all(good)]), GetIntoRaw::new("b", vec![all(bad)])];
    let [good_one, bad_one] = client.batch_get_into_raw(items).await.try_into().unwrap();
    assert_eq!(good_one.unwrap(), Some(5));
    errors.push(bad_one.unwrap_err());

    let item = |into| GetRangesIntoRaw::new("b", vec![RangeIntoRaw { offset: 0, into }]);
    let items = vec![item(all(bad)), item(part(good, 1, 2))];
    let [bad_one, good_one] = client.batch_get_ranges_into_raw(items).await.try_into().unwrap();
    assert_eq!((good_one.unwrap(), &fake.bytes(good)[..]), (Some(2), &b"vvaue"[..]));
    errors.push(bad_one.unwrap_err());

    let session = client.put_session("e", 5, &PutOptions::default()).await.unwrap().unwrap();
    let item = |from| WriteFromRaw::new(&session, vec![RangeFromRaw { offset: 0, from }]);
    let items = vec![item(all(bad)), item(all(good))];
    let [bad_one, good_one] = client.batch_write_from_raw(items).await.try_into().unwrap();
    assert_eq!(good_one.unwrap(), 5);
    errors.push(bad_one.unwrap_err());
    session.finish().await.unwrap();

    let session = client.get_session("e").await.unwrap().unwrap();
    let item = |into| ReadIntoRaw::new(&session, vec![RangeIntoRaw { offset: 0, into }]);
    let items = vec![item(all(bad)), item(all(good))];
    let [bad_one, good_one] = client.batch_read_into_raw(items).await.try_into().unwrap();
    assert_eq!(good_one.unwrap(), 5);
    errors.push(bad_one.unwrap_err());
    errors.iter().for_each(is_of_the_device);
}

#[tokio::test]
async fn a_call_that_gets_no_buffer_by_its_deadline_blames_no_store() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = cluster.builder().local_cache(ByteSize(0)).get_timeout(Duration::from_secs(1));
    let client = client.connect().await.unwrap();
    client.put("there", b"value").await.unwrap();
    let before = cluster.world.lock().tried.len();
    // Given: two calls to slow stores, each with three pieces under way, so that they have all buffers.
    for store in [STORE_A, STORE_B] {
        cluster.world.lock().stores.insert(store, StoreHealth::Held);
    }
    let large = fake.allocate(48 << 20, 0);
    let slow =
        futures::future::join(put(&client, "one", vec![all(large)]), put(&client, "two", vec![all(large)]));
    let slow = std::pin::pin!(slow);
    let tried = || cluster.world.lock().tried.len() - before;
    let late = async {
        until("both have their buffers", || tried() == 6).await;
        let items = vec![PutFromRaw::new("late", vec![all(fake.holding(b"value", 0))])];
        let options = PutOptions::default().with_deadline(Duration::from_secs(1));
        let late_get = get(&client, "there", vec![all(fake.allocate(5, 0))]).await.unwrap_err();
        [client.batch_put_from_raw(items, &options).await.remove(0).unwrap_err(), late_get]
    };
    let late = tokio::select! {
        _ = slow => panic!("their stores are held"),
        late = late => late,
    };
    for late in late {
        assert_eq!((late.code, late.is_unknown(), &*late.at), (Code::RpcTimeout, false, "this client"));
        assert!(late.why.contains("no buffer for memory of GPUs"), "{late}");
    }
    assert!(tried() == 6 && cluster.world.lock().avoided.is_empty(), "no store was tried or left out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_ends_its_copies_and_its_puts() {
    let fake = Fake::get();
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let memory = fake.holding(b"value", 1);
    client.put("there", b"value").await.unwrap();
    let calls = [
        put(&client, "k", vec![all(memory)]).map(drop).boxed(),
        get(&client, "there", vec![all(memory)]).map(drop).boxed(),
    ];
    for mut call in calls {
        fake.hold(true);
        let mut has_begun = Box::pin(until("a copy is under way", || fake.held() > 0));
        tokio::select! {
            biased;
            () = &mut call => panic!("no copy ends"),
            () = &mut has_begun => {}
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                fake.hold(false);
            });
            drop(call);
            assert_eq!((fake.held(), fake.under_way()), (0, 0), "nothing touches the memory any more");
        });
    }
    until("the put is revoked", || cluster.world.lock().puts.is_empty()).await;
    assert_eq!(client.get("k").await.unwrap(), None);
    assert!(cluster.world.lock().count(On::Revoke) > 0);
}
