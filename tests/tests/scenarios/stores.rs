use std::time::{Duration, Instant};

use mc_client::{Client, Put, StoreId};
use mc_tests::checker::Outcome;
use mc_tests::{Cluster, Faults, Workload, mcctl, until, value};

const KEYS: usize = 40;

fn key(n: usize) -> String {
    format!("stored-{n}")
}

fn bytes(n: usize, put: u64) -> Vec<u8> {
    value(&key(n), put, 64 << 10)
}

/// Puts all keys; the store of each.
async fn fill(client: &Client) -> Vec<StoreId> {
    let mut stores = Vec::new();
    for n in 0..KEYS {
        assert_eq!(client.put(key(n), &bytes(n, 1)).await.unwrap(), Put::Stored);
        stores.push(place(client, n).await.expect("just put"));
    }
    stores
}

async fn place(client: &Client, n: usize) -> Option<StoreId> {
    Some(client.admin().lookup(key(n)).await.unwrap()?.replicas[0].store)
}

/// Waits until the master has said, after so many lines of its log, that it suspects no store any more.
async fn believes_all_again(cluster: &Cluster, lines: usize) {
    until("the log says that a suspect store is believed", async || {
        let log = cluster.masters[0].output();
        log.lines().skip(lines).any(|line| line.contains("stores changed") && line.contains("suspects=[]"))
    })
    .await;
}

#[tokio::test]
async fn a_killed_store_takes_only_its_own_keys_and_they_can_be_put_again_at_once() {
    let mut cluster = Cluster::builder().masters(1).stores(2).segment("64mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a store that holds keys is killed");
    let client = cluster.client().await;
    let stores = fill(&client).await;
    let (dead, other) = (cluster.store_id(0), cluster.store_id(1));
    let (lost, kept): (Vec<usize>, Vec<usize>) = (0..KEYS).partition(|n| stores[*n] == dead);
    assert!(!lost.is_empty() && !kept.is_empty(), "both stores hold keys: {stores:?}");
    // Clients whose objects are all on the other store: to them nothing happens.
    let others = Workload::new(22).preferred(other).sizes(1..1024).pace(Duration::from_millis(2));
    let others = others.start(&cluster.client_builder()).await;
    others.acknowledged(50).await;

    let logged = cluster.masters[0].output().lines().count();
    let killed = Instant::now();
    cluster.stores[0].kill9();
    fault.happened();
    // Its keys miss; a get before the masters know may still have to find out by itself.
    for &n in &lost {
        assert_eq!(client.get(key(n)).await.unwrap(), None, "the bytes are gone with their store");
        assert!(!client.exist(key(n)).await.unwrap() || killed.elapsed() < Duration::from_secs(1));
    }
    println!(
        "{} keys of a killed store were read as misses within {:?} of the kill",
        lost.len(),
        killed.elapsed()
    );
    for &n in &kept {
        assert_eq!(client.get(key(n)).await.unwrap().as_deref(), Some(&bytes(n, 1)[..]));
    }
    until("the masters miss the store", async || !client.exist(key(lost[0])).await.unwrap()).await;
    let (missed, mut puts) = (Instant::now(), 0);
    for &n in &lost {
        // The first put stores. A heartbeat that was under way when the store died may make the leader believe it once
        // more, for a moment: then the old object is there, though nobody can read it, and its log says why.
        until("a lost key can be put again", async || {
            puts += 1;
            let put = client.put(key(n), &bytes(n, 2)).await.unwrap();
            if put != Put::Stored {
                assert_eq!(put, Put::AlreadyExists);
                believes_all_again(&cluster, logged).await;
                assert_eq!(client.get(key(n)).await.unwrap(), None, "the bytes are gone with their store");
            }
            put == Put::Stored
        })
        .await;
    }
    println!("{} lost keys were put again by {puts} puts within {:?}", lost.len(), missed.elapsed());
    for &n in &lost {
        assert_eq!(place(&client, n).await, Some(other));
        assert_eq!(client.get(key(n)).await.unwrap().as_deref(), Some(&bytes(n, 2)[..]));
    }
    others.acknowledged(50).await;
    let errors = others.errors();
    let history = others.stop().await;
    history.assert_nothing_lost_on(&cluster, other);
    let failed = (history.outcomes(Outcome::Failed), history.outcomes(Outcome::Unknown));
    assert_eq!(failed, (0, 0), "a call for an object of the other store: {errors:#?}");

    // It comes back with the same id and empty memory, and is used again.
    cluster.stores[0].start();
    cluster.ready().await;
    assert_eq!(cluster.store_id(0), dead);
    for n in 0..KEYS {
        let put = if lost.contains(&n) { 2 } else { 1 };
        assert_eq!(client.get(key(n)).await.unwrap().as_deref(), Some(&bytes(n, put)[..]));
    }
    let mut more = KEYS;
    until("something new is placed on the store that came back", async || {
        more += 1;
        client.put(key(more), &bytes(more, 1)).await.unwrap();
        place(&client, more).await == Some(dead)
    })
    .await;
    assert_eq!(client.get(key(more)).await.unwrap().as_deref(), Some(&bytes(more, 1)[..]));
}

#[tokio::test]
async fn a_store_that_was_given_up_comes_back_under_a_new_epoch() {
    let cluster =
        Cluster::builder().masters(1).segment("64mb").master_args(["--store-ttl", "5s"]).start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the masters give a silent store up");
    let client = cluster.client().await;
    client.put(key(0), &bytes(0, 1)).await.unwrap();
    let before = cluster.store_status(0).await["epoch"].clone();
    cluster.stores[0].pause().await;
    until("the store is dropped", async || cluster.masters[0].output().contains("its replicas are dropped"))
        .await;
    fault.happened();
    cluster.stores[0].resume();
    until("mounted again", async || {
        let status = cluster.store_status(0).await;
        status["ready"] == true && status["epoch"] != before
    })
    .await;
    assert_eq!(client.get(key(0)).await.unwrap(), None, "what it held is lost for good");
    assert_eq!(client.put(key(0), &bytes(0, 2)).await.unwrap(), Put::Stored);
    assert_eq!(client.get(key(0)).await.unwrap().as_deref(), Some(&bytes(0, 2)[..]));
}

#[tokio::test]
async fn a_store_that_is_asked_to_stop_takes_its_memory_back() {
    let mut cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let client = cluster.client().await;
    client.put(key(0), &bytes(0, 1)).await.unwrap();
    assert_eq!(cluster.stores[0].terminate().await.code(), Some(0));
    assert_eq!(client.get(key(0)).await.unwrap(), None);
    let status = cluster.status(0).await.expect("the master answers");
    assert!(status.stores.is_empty(), "unmounted, not just silent: {:?}", status.stores);
}

#[tokio::test]
async fn a_flipped_byte_is_a_miss_and_a_metric_and_is_never_returned() {
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a byte was flipped in the store's memory");
    let client = cluster.client().await;
    client.put(key(0), &bytes(0, 1)).await.unwrap();
    let place = client.admin().lookup(key(0)).await.unwrap().expect("just put").replicas.remove(0);
    let flip = || cluster.stores[0].flip(place.segment, place.offset + 12_345);
    flip();
    fault.happened();
    assert_eq!(client.get(key(0)).await.unwrap(), None);
    assert!(client.stats().checksum_mismatches > 0, "{:?}", client.stats());
    until("the leader has heard of it", async || {
        cluster.metric_sum(0, "mc_master_mismatches_reported_total").await > 0.0
    })
    .await;
    let said = cluster.masters[0].output();
    assert!(said.contains("are not those that were put"), "it names the store in its log");
    // The other way round: it was that byte.
    flip();
    assert_eq!(client.get(key(0)).await.unwrap().as_deref(), Some(&bytes(0, 1)[..]));
}

#[tokio::test]
async fn a_key_whose_only_store_hangs_is_temporarily_unavailable_to_mcctl() {
    let cluster = Cluster::builder().masters(1).stores(1).segment("64mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the only store of a key hangs and comes back");
    let client = cluster.client().await;
    assert_eq!(client.put("kept", b"bytes").await.unwrap(), Put::Stored);

    cluster.stores[0].pause().await;
    until("the leader suspects the store", async || {
        cluster.metric(0, "mc_stores{state=\"suspect\"}").await == Some(1.0)
    })
    .await;
    fault.happened();
    let file = cluster.dir().join("kept");
    for args in [&["exist", "kept"], &["stat", "kept"], &["get", "kept", file.to_str().expect("UTF-8")][..]] {
        let (code, said) = mcctl(&cluster, args).await;
        assert_eq!(code, 3, "{args:?}: {said}");
        assert!(said.contains("kept is temporarily unavailable"), "{args:?}: {said}");
        let (code, said) = mcctl(&cluster, &[&["--json"], args].concat()).await;
        // The document, and then the sentence for people.
        let mut documents = serde_json::Deserializer::from_str(&said).into_iter();
        let document: serde_json::Value = documents.next().expect("a document").expect(&said);
        assert_eq!((code, &document["outcome"]), (3, &"definite".into()), "{args:?}: {said}");
        assert!(document["code"].is_string(), "{args:?}: {said}");
    }
    let (code, said) = mcctl(&cluster, &["exist", "absent"]).await;
    assert_eq!(code, 1, "{said}");

    cluster.stores[0].resume();
    until("the key can be read again", async || mcctl(&cluster, &["exist", "kept"]).await.0 == 0).await;
    let (code, said) = mcctl(&cluster, &["get", "kept", "-"]).await;
    assert_eq!((code, said.contains("bytes")), (0, true), "{said}");
}
