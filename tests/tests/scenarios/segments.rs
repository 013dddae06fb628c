//! Segments of a store that come and go while it serves.

use std::time::Duration;

use mc_client::{Client, Put, PutOptions, StoreId};
use mc_process::http::request;
use mc_tests::{Cluster, until, value};

const SIZE: usize = 6 << 20;

fn bytes(key: &str, len: usize) -> Vec<u8> {
    value(key, 1, len)
}

async fn put(client: &Client, store: StoreId, key: &str, len: usize) -> u32 {
    let options = PutOptions::default().with_preferred([store]).with_deadline(Duration::from_secs(10));
    assert_eq!(client.put_with(key, &bytes(key, len), &options).await.unwrap(), Put::Stored);
    let replica = &client.admin().lookup(key).await.unwrap().unwrap().replicas[0];
    assert_eq!(replica.store, store);
    replica.segment
}

async fn capacity(cluster: &Cluster, store: StoreId) -> u64 {
    let leader = cluster.leader().await;
    let status = cluster.status(leader).await.unwrap();
    let id = store.to_bytes().to_vec();
    status.stores.iter().find(|it| it.store_id[..] == id[..]).map_or(0, |store| store.capacity_bytes)
}

#[tokio::test]
async fn a_store_lends_more_memory_and_less_without_a_restart() {
    let store_ttl = ["--store-ttl", "5s"];
    let cluster = Cluster::builder().masters(3).stores(2).segment("8mb").master_args(store_ttl);
    let mut cluster = cluster.start().await;
    let client = cluster.client().await;
    let http = cluster.store_http(0).to_owned();
    let store: StoreId = cluster.store_status(0).await["id"].as_str().unwrap().parse().unwrap();
    let call = async |method: &str, path: &str| request(method, &http, path).await.unwrap();

    assert_eq!(put(&client, store, "first", SIZE).await, 0);
    assert_eq!(call("POST", "/segments?size=24mb").await.0, 201);
    assert_eq!(capacity(&cluster, store).await, 32 << 20);
    // Larger than any segment was before.
    assert_eq!(put(&client, store, "second", 3 * SIZE).await, 1);
    for (method, path, code, says) in [
        ("POST", "/segments?size=1kb", 400, "too small"),
        ("POST", "/segments?size=much", 400, "much"),
        ("POST", "/segments?size=900000gb", 507, "does not fit"),
        ("POST", "/segments", 400, "size"),
        ("DELETE", "/segments/7", 404, "no segment 7"),
        ("DELETE", "/segments/x", 400, "x"),
    ] {
        let (status, body) = call(method, path).await;
        assert!(status == code && body.contains(says), "{method} {path}: {status} {body}");
    }

    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    for (key, len) in [("first", SIZE), ("second", 3 * SIZE)] {
        until("it can be read at the new leader", async || {
            let got = client.get(key).await.ok().flatten();
            assert!(got.as_deref().is_none_or(|got| got == &bytes(key, len)[..]), "{key}: wrong bytes");
            got.is_some()
        })
        .await;
    }
    cluster.masters[leader].start();

    // Without a majority, nobody confirms an unmount; it happens once there is a leader.
    let follower = cluster.follower().await;
    let others: Vec<usize> = (0..3).filter(|master| *master != follower).collect();
    for master in &others {
        cluster.masters[*master].pause().await;
    }
    assert!(request("DELETE", &http, "/segments/0").await.is_err(), "it waits for a leader");
    for master in &others {
        cluster.masters[*master].resume();
    }
    until("the segment is unmounted", async || capacity(&cluster, store).await == 24 << 20).await;
    until("its memory is released", async || call("GET", "/segments").await.1.contains(r#""segment":1"#))
        .await;
    assert_eq!(client.get("first").await.unwrap(), None, "it went with its segment");
    assert_eq!(client.get("second").await.unwrap().as_deref(), Some(&bytes("second", 3 * SIZE)[..]));
    let (status, body) = call("DELETE", "/segments/1").await;
    assert!(status == 409 && body.contains("stop the store"), "{status} {body}");

    let listed = client.admin().status().await;
    let listed = listed.stores().iter().find(|it| it.store == store).unwrap();
    let segments: Vec<_> = listed.segments.iter().map(|it| (it.number, it.capacity.0, it.objects)).collect();
    assert_eq!(segments, [(1, 24 << 20, 1)]);

    // Given up by the masters, the store comes back with the memory that it lends now, under a new epoch.
    let before = cluster.store_status(0).await["epoch"].clone();
    cluster.stores[0].pause().await;
    until("the masters give the store up", async || capacity(&cluster, store).await == 0).await;
    cluster.stores[0].resume();
    until("it is back", async || capacity(&cluster, store).await == 24 << 20).await;
    assert_ne!(cluster.store_status(0).await["epoch"], before);
    assert_eq!(client.get("second").await.unwrap(), None);
    assert_eq!(put(&client, store, "third", SIZE).await, 1);
    assert_eq!(call("POST", "/segments?size=8mb").await.0, 201);
    assert_eq!(
        call("GET", "/segments").await.1.trim(),
        r#"[{"bytes":25165824,"segment":1},{"bytes":8388608,"segment":2}]"#
    );
}
