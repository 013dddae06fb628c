//! Get sessions: many reads of one version after one call to the leader, under a lease that is kept alive.

use std::time::Duration;

use mc_client::{ByteRange, ByteSize, Client, Code, GetSession, PutMode, PutOptions, RangeInto, ReadInto};

use crate::support::{Cluster, On, PATIENCE, STORE_A, STORE_B, StoreHealth, until};

const LAYERS: u64 = 8;
const LAYER: u64 = 1000;

async fn uncached(cluster: &Cluster) -> Client {
    cluster.builder().local_cache(ByteSize(0)).connect().await.unwrap()
}

/// Returns an object whose bytes tell their place and `salt`.
fn value(salt: u64) -> Vec<u8> {
    (0..LAYERS * LAYER).map(|i| ((i * 7 + salt) % 251) as u8).collect()
}

fn layer(n: u64) -> ByteRange {
    ByteRange { offset: n * LAYER, len: LAYER }
}

fn bytes_of(value: &[u8], range: ByteRange) -> &[u8] {
    let offset = usize::try_from(range.offset).unwrap();
    &value[offset..offset + usize::try_from(range.len).unwrap()]
}

async fn upsert(client: &Client, key: &str, value: &[u8]) {
    let options = PutOptions::default().with_mode(PutMode::Upsert);
    client.put_with(key, value, &options).await.unwrap();
}

async fn open(client: &Client, key: &str) -> GetSession {
    client.get_session(key).await.unwrap().expect("it was put")
}

/// Waits until a read of the session fails, and returns the code.
async fn until_it_fails(session: &GetSession) -> Code {
    tokio::time::timeout(PATIENCE, async {
        loop {
            match session.read(layer(0)).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(error) => return error.code,
            }
        }
    })
    .await
    .expect("it fails at last")
}

#[tokio::test]
async fn layers_are_read_one_by_one_after_one_call_to_the_leader() {
    let cluster = Cluster::start(1);
    let (client, value) = (uncached(&cluster).await, value(0));
    client.put("k", &value).await.unwrap();
    let session = open(&client, "k").await;
    assert_eq!(session.size(), LAYERS * LAYER);
    assert_eq!(session.version(), cluster.world.lock().objects[&b"k"[..]].version);
    assert_eq!(client.stats().bytes_read, 0, "no byte is read by opening it");
    for n in 0..LAYERS {
        assert_eq!(session.read(layer(n)).await.unwrap(), bytes_of(&value, layer(n)), "layer {n}");
    }
    assert_eq!(cluster.world.lock().count(On::Get), 1);
    let beyond = session.read(ByteRange { offset: LAYERS * LAYER, len: 1 }).await.unwrap_err();
    assert_eq!(beyond.code, Code::InvalidParams);
    assert!(beyond.why.contains("1 bytes at offset 8000") && beyond.why.contains("8000 bytes"), "{beyond}");
    assert!(client.get_session("none").await.unwrap().is_none(), "a miss");
    assert_eq!(client.get_session("").await.unwrap_err().code, Code::InvalidKey);
}

#[tokio::test]
async fn one_layer_of_many_objects_is_one_call_to_each_store() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let values: Vec<Vec<u8>> = (0..40).map(value).collect();
    let items: Vec<(String, &Vec<u8>)> =
        values.iter().enumerate().map(|(i, value)| (format!("k{i}"), value)).collect();
    cluster.world.lock().spread = true;
    client.batch_put(&items, &PutOptions::default()).await;
    // Two batches, each with placements of its own.
    let mut sessions = Vec::new();
    for keys in items.chunks(20) {
        let keys: Vec<&String> = keys.iter().map(|(key, _)| key).collect();
        sessions.extend(
            client.batch_get_session(&keys).await.into_iter().map(|session| session.unwrap().unwrap()),
        );
    }
    cluster.world.lock().tried.clear();
    let mut memory = vec![0; sessions.len() * usize::try_from(LAYER).unwrap()];
    let mut reads: Vec<ReadInto<'_>> = sessions
        .iter()
        .zip(memory.chunks_mut(usize::try_from(LAYER).unwrap()))
        .map(|(session, into)| ReadInto::new(session, vec![RangeInto { offset: 5 * LAYER, into }]))
        .collect();
    let results = client.batch_read_into(&mut reads).await;
    assert!(results.into_iter().all(|read| read.unwrap() as u64 == LAYER));
    for (into, value) in memory.chunks(usize::try_from(LAYER).unwrap()).zip(&values) {
        assert_eq!(into, bytes_of(value, layer(5)));
    }
    let world = cluster.world.lock();
    assert_eq!((world.count(On::Get), world.tried.len()), (2, 4), "two batches, on two stores each");
}

#[tokio::test]
async fn a_lease_is_renewed_between_reads_until_its_session_is_dropped() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.batch_put(&[("a", "1"), ("b", "2"), ("c", "3")], &PutOptions::default()).await;
    cluster.world.lock().lease_ms = 200;
    // Their renewals can be told apart by their number of keys.
    let one = open(&client, "a").await;
    let two = client.batch_get_session(&["b", "c"]).await;
    let renewals = |keys: usize| {
        let world = cluster.world.lock();
        world.calls.iter().filter(|(on, items)| *on == On::Get && *items == keys).count()
    };
    until("both are renewed", || renewals(1) > 2 && renewals(2) > 2).await;
    drop(two);
    let before = renewals(1);
    until("what was under way is done", || renewals(1) > before).await;
    let (before, dropped) = (renewals(1), renewals(2));
    until("the other one is renewed further", || renewals(1) > before + 3).await;
    assert_eq!(renewals(2), dropped, "a dropped session is not renewed");
    assert_eq!(one.read(ByteRange { offset: 0, len: 1 }).await.unwrap(), b"1"[..]);
}

#[tokio::test]
async fn a_session_of_a_batch_that_is_dropped_is_left_out_of_the_renewals() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    client.batch_put(&[("a", "1"), ("b", "2")], &PutOptions::default()).await;
    cluster.world.lock().lease_ms = 200;
    let mut both = client.batch_get_session(&["a", "b"]).await;
    until("both are renewed", || cluster.world.lock().count(On::Get) > 1).await;
    both.truncate(1);
    until("one is renewed", || cluster.world.lock().calls.contains(&(On::Get, 1))).await;
    assert!(both.remove(0).unwrap().unwrap().read(ByteRange { offset: 0, len: 1 }).await.is_ok());
}

#[tokio::test]
async fn a_session_reads_its_version_or_fails_once_the_object_is_replaced_or_removed() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    upsert(&client, "replaced", &value(1)).await;
    upsert(&client, "removed", &value(1)).await;
    let (replaced, removed) = (open(&client, "replaced").await, open(&client, "removed").await);
    upsert(&client, "replaced", &value(2)).await;
    client.remove("removed", true).await.unwrap();
    // The lease still holds: the stores keep the old bytes.
    assert_eq!(replaced.read(layer(3)).await.unwrap(), bytes_of(&value(1), layer(3)));
    assert_eq!(removed.read(layer(3)).await.unwrap(), bytes_of(&value(1), layer(3)));
    // The stores have given the room to others, and refuse.
    let kept = cluster.world.lock().objects[&b"replaced"[..]].replicas[0];
    cluster.world.lock().memory.retain(|place, _| *place == kept);
    assert_eq!(replaced.read(layer(3)).await.unwrap_err().code, Code::VersionChanged);
    assert_eq!(removed.read(layer(3)).await.unwrap_err().code, Code::ObjectNotFound);
    let asked = cluster.world.lock().count(On::Get);
    assert_eq!(replaced.read(layer(3)).await.unwrap_err().code, Code::VersionChanged);
    assert_eq!(cluster.world.lock().count(On::Get), asked, "it is lost for good");
    assert_eq!(open(&client, "replaced").await.read(layer(3)).await.unwrap(), bytes_of(&value(2), layer(3)));
}

#[tokio::test]
async fn a_renewal_finds_that_the_object_was_replaced() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    upsert(&client, "k", &value(1)).await;
    cluster.world.lock().lease_ms = 200;
    let session = open(&client, "k").await;
    upsert(&client, "k", &value(2)).await;
    assert_eq!(until_it_fails(&session).await, Code::VersionChanged);
}

#[tokio::test]
async fn without_a_leader_reads_go_on_until_the_lease_ends_and_again_with_the_next_leader() {
    let cluster = Cluster::start(3);
    let builder = cluster.builder().local_cache(ByteSize(0)).leader_timeout(Duration::from_millis(100));
    let client = builder.connect().await.unwrap();
    client.put("k", &value(1)).await.unwrap();
    let long = open(&client, "k").await;
    cluster.world.lock().lease_ms = 300;
    let short = open(&client, "k").await;
    cluster.depose();
    assert_eq!(until_it_fails(&short).await, Code::NoLeader);
    assert_eq!(long.read(layer(1)).await.unwrap(), bytes_of(&value(1), layer(1)), "its lease still holds");
    assert_eq!(client.get_session("k").await.unwrap_err().code, Code::NoLeader);
    cluster.elect(1, 2);
    assert!(client.connected(PATIENCE).await);
    assert_eq!(short.read(layer(2)).await.unwrap(), bytes_of(&value(1), layer(2)));
}

#[tokio::test]
async fn a_placement_is_not_used_after_its_lease() {
    let cluster = Cluster::start(1);
    let builder = cluster.builder().local_cache(ByteSize(0)).get_timeout(Duration::from_millis(300));
    let client = builder.connect().await.unwrap();
    client.put("k", &value(1)).await.unwrap();
    cluster.world.lock().lease_ms = 0;
    let session = open(&client, "k").await;
    let error = session.read(layer(0)).await.unwrap_err();
    assert_eq!(error.code, Code::RpcTimeout, "each answer's lease had ended when its turn came: {error}");
    assert_eq!(cluster.world.lock().reads, 0, "no byte was read");
}

#[tokio::test]
async fn a_handle_of_a_client_has_a_deadline_of_its_own() {
    let cluster = Cluster::start(1);
    let patient = Duration::from_secs(24 * 60 * 60);
    let client = cluster.builder().local_cache(ByteSize(0)).get_timeout(patient).connect().await.unwrap();
    client.put("k", &value(1)).await.unwrap();
    cluster.world.lock().lease_ms = 0;
    let session = open(&client.with_get_timeout(Duration::from_millis(300)), "k").await;
    let read = tokio::time::timeout(PATIENCE, session.read(layer(0)));
    let error = read.await.expect("not by the deadline of the client").unwrap_err();
    assert_eq!(error.code, Code::RpcTimeout, "{error}");
}

#[tokio::test]
async fn a_layer_is_read_from_another_replica_when_a_store_dies_and_fails_when_none_is_left() {
    let cluster = Cluster::start(1);
    let client = uncached(&cluster).await;
    let two = PutOptions::default().with_replicas(2);
    client.put_with("k", &value(1), &two).await.unwrap();
    let session = open(&client, "k").await;
    assert_eq!(session.read(layer(0)).await.unwrap(), bytes_of(&value(1), layer(0)));
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    assert_eq!(session.read(layer(1)).await.unwrap(), bytes_of(&value(1), layer(1)));
    assert_eq!(cluster.world.lock().count(On::Get), 1, "the leader need not be asked");
    cluster.world.lock().stores.insert(STORE_B, StoreHealth::Dead);
    assert_eq!(session.read(layer(2)).await.unwrap_err().code, Code::TransferFail);
    cluster.world.lock().stores.insert(STORE_B, StoreHealth::Well);
    assert_eq!(session.read(layer(2)).await.unwrap(), bytes_of(&value(1), layer(2)), "it is back");
}

#[tokio::test]
async fn a_session_whose_bytes_are_in_the_local_cache_reads_from_no_store() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    client.put("k", &value(1)).await.unwrap();
    let session = open(&client, "k").await;
    assert_eq!(session.read(layer(6)).await.unwrap(), bytes_of(&value(1), layer(6)));
    assert_eq!((client.stats().cache_hits, client.stats().bytes_read), (1, 0));
}
