//! Clients that read the memory of stores on their host.

use std::time::Duration;

use mc_client::{Client, Put, PutMode, PutOptions, ShmAccess};
use mc_tests::{Cluster, Faults, Process, Workload, mcctl, until, value};
use serde_json::Value;

const SIZE: usize = 200_000;

async fn sharing(cluster: &Cluster) -> Client {
    let client = cluster.client_builder().shared_memory(ShmAccess::SameUid).connect().await.unwrap();
    assert!(client.connected(Duration::from_secs(60)).await);
    client
}

/// Size of a segment that no other test has, because they run in the same process.
const RARE_MIB: u64 = 61;

/// Counts the mappings of such segments in this process.
fn rare_segments_here() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let len = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
    };
    let is_rare = |line: &&str| line.contains("memfd:mc-segment-") && len(line) == Some(RARE_MIB << 20);
    maps.lines().filter(is_rare).count()
}

#[tokio::test]
async fn reads_are_right_while_the_leader_is_killed_and_puts_replace_what_is_read() {
    let mut cluster = Cluster::builder().stores(2).segment("64mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed");
    let builder = cluster.client_builder().shared_memory(ShmAccess::SameUid);
    // Few keys, so that many reads meet a put of the same key.
    let workload = Workload::new(21).keys(8).sizes(20_000..100_000).pace(Duration::from_millis(2));
    let running = workload.start(&builder).await;
    running.acknowledged(100).await;
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    fault.happened();
    running.acknowledged(50).await;
    cluster.masters[leader].start();
    cluster.ready().await;
    running.acknowledged(50).await;
    running.stop().await.assert_nothing_lost(&cluster);

    let client = sharing(&cluster).await;
    client.put("last", &value("last", 1, SIZE)).await.unwrap();
    // A store that is too slow to share its memory is asked again after some seconds.
    until("a read goes through shared memory", async || {
        assert!(client.get("last").await.unwrap().as_deref() == Some(&value("last", 1, SIZE)[..]));
        client.stats().shm_bytes_read > 0
    })
    .await;
    until("the leader knows by which transports its stores' bytes go", async || {
        let leader = cluster.leader().await;
        let stores = cluster.status(leader).await.map(|status| status.stores).unwrap_or_default();
        let mut transports = stores.iter().flat_map(|store| &store.transports);
        stores.iter().all(|store| store.transports.len() == 3)
            && transports
                .any(|one| one.name == "shm" && one.offered && one.read_bytes > 0 && one.written_bytes > 0)
    })
    .await;
}

#[tokio::test]
async fn a_put_session_through_shared_memory_outlives_its_leader() {
    const LAYERS: usize = 8;
    let mut cluster = Cluster::builder().segment("64mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed between two layers");
    let client = sharing(&cluster).await;
    let upsert = PutOptions::default().with_mode(PutMode::Upsert);
    until("a put goes through shared memory", async || {
        client.put_with("warm", &value("warm", 1, SIZE), &upsert).await.unwrap();
        client.stats().shm_bytes_written > 0
    })
    .await;
    let bytes = value("k", 1, LAYERS * SIZE);
    let mut memory = client.allocate(bytes.len()).unwrap();
    memory.as_mut_slice().copy_from_slice(&bytes);
    let before = client.stats().shm_bytes_written;
    let session = client.put_session("k", bytes.len() as u64, &PutOptions::default()).await.unwrap();
    let session = session.expect("it is absent");
    for n in 0..LAYERS {
        if n == LAYERS / 2 {
            let leader = cluster.leader().await;
            cluster.masters[leader].kill9();
            fault.happened();
        }
        // Memory that the store reaches, and memory that it does not.
        let from = if n % 2 == 0 { memory.as_slice() } else { &bytes };
        session.write((n * SIZE) as u64, &from[n * SIZE..(n + 1) * SIZE]).await.unwrap();
    }
    cluster.leader().await;
    assert!(client.connected(Duration::from_secs(60)).await);
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    // On a busy machine some of it may go over TCP.
    assert!(client.stats().shm_bytes_written - before >= bytes.len() as u64 / 2);
    assert!(cluster.client().await.get("k").await.unwrap().as_deref() == Some(&bytes[..]), "over TCP");
}

#[tokio::test]
async fn the_memory_of_a_killed_store_is_let_go_and_not_read() {
    let mut cluster = Cluster::builder().masters(1).stores(1).segment(&format!("{RARE_MIB}mb")).start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a store is killed whose memory is shared");
    let client = sharing(&cluster).await;
    let put = async |key: &str| client.put_with(key, &value(key, 1, SIZE), &PutOptions::default()).await;
    put("before").await.unwrap();
    until("a read goes through shared memory", async || {
        assert!(client.get("before").await.unwrap().is_some());
        rare_segments_here() == 1
    })
    .await;
    cluster.stores[0].kill9();
    fault.happened();
    until("its memory is let go", || std::future::ready(rare_segments_here() == 0)).await;
    assert_eq!(client.get("before").await.unwrap(), None, "its bytes are gone, or may be old");
    cluster.stores.iter_mut().for_each(Process::start);
    until("the store is back", async || put("after").await.is_ok()).await;
    until("the memory of its successor is shared", async || {
        assert!(client.get("after").await.unwrap().as_deref() == Some(&value("after", 1, SIZE)[..]));
        rare_segments_here() == 1
    })
    .await;
}

async fn check(cluster: &Cluster, flags: &[&str]) -> (i32, Value) {
    let (code, said) = mcctl(cluster, &[&["check", "transports", "--json"], flags].concat()).await;
    (code, serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {said}")))
}

#[tokio::test]
async fn mcctl_says_by_which_transport_bytes_go_and_why_not_by_a_better_one() {
    let mut cluster = Cluster::builder().masters(1).stores(2).segment("16mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a store is stopped");
    // A store that is too slow to share its memory is asked again by the next run.
    until("bytes go through shared memory", async || {
        let (code, said) = check(&cluster, &[]).await;
        let stores = said["stores"].as_array().unwrap();
        assert_eq!(stores.len(), 2, "{said}");
        code == 0 && stores.iter().all(|store| store["by"] == "shm" && store["get_us"].as_f64() > Some(0.0))
    })
    .await;
    let mut said = Value::Null;
    until("bytes go over TCP", async || {
        let (code, now) = check(&cluster, &["--transport", "tcp"]).await;
        said = now;
        code == 0
    })
    .await;
    for store in said["stores"].as_array().unwrap() {
        assert_eq!(store["by"], "tcp", "{said}");
        let usable = |transport: &Value| transport["usable"].as_bool().unwrap();
        let transports = store["transports"].as_array().unwrap();
        let of = |transport: &Value| (transport["name"].as_str().unwrap().to_owned(), usable(transport));
        let all: Vec<_> = transports.iter().map(of).collect();
        assert_eq!(all, [("shm".to_owned(), false), ("rdma".to_owned(), false), ("tcp".to_owned(), true)]);
        assert!(transports[0]["how"].as_str().unwrap().contains("switched off"), "{said}");
    }
    cluster.stores[0].kill9();
    fault.happened();
    until("the store that is gone is told", async || {
        let (code, now) = check(&cluster, &[]).await;
        said = now;
        code == 1
    })
    .await;
    let stores = said["stores"].as_array().unwrap();
    let errors: Vec<_> = stores.iter().filter_map(|store| store["error"].as_str()).collect();
    assert!(matches!(errors[..], [why] if !why.contains("no room")), "{said}");
    let client = cluster.client().await;
    assert!(client.list_keys("", None, 10).await.unwrap().keys.is_empty(), "it leaves nothing");
}
