use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use mc_client::{ByteSize, Client, Code, GetInto, Mode, Put, PutOptions};
use mc_store::{RdmaDevices, ShmAccess, Store, Surroundings};
use mc_tests::checker::Outcome;
use mc_tests::{Cluster, Faults, Workload, until};
use tokio::runtime::Handle;

#[tokio::test]
async fn without_any_leader_a_client_answers_from_its_cache_in_bounded_time_and_comes_back_by_itself() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master is killed", 3);
    let client = Client::builder()
        .masters(cluster.addresses())
        .local_cache(ByteSize(64 << 20))
        .leader_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap();
    assert!(client.connected(Duration::from_secs(60)).await);
    client.put("known", b"value").await.unwrap();

    for master in &mut cluster.masters {
        master.kill9();
        fault.happened();
    }
    let started = Instant::now();
    let first = client.get("known").await.unwrap();
    println!("the first get without a leader took {:?}", started.elapsed());
    assert_eq!(first.as_deref(), Some(&b"value"[..]));
    until("the client notices", async || client.mode() == Mode::LocalOnly).await;
    let started = Instant::now();
    assert_eq!(client.get("known").await.unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.get("unknown").await.unwrap(), None);
    assert_eq!(client.put("later", b"local").await.unwrap(), Put::LocalOnly);
    assert_eq!(client.get("later").await.unwrap().as_deref(), Some(&b"local"[..]));
    println!("four calls in local-only mode took {:?}", started.elapsed());
    let refusal = client.remove("known", false).await.unwrap_err();
    assert!(refusal.code == Code::NoLeader && !refusal.is_unknown(), "{refusal}");

    cluster.masters.iter_mut().for_each(mc_tests::Process::start);
    until("the client comes back by itself", async || client.mode() == Mode::Connected).await;
    cluster.ready().await;
    assert_eq!(client.get("known").await.unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.put("fresh", b"new").await.unwrap(), Put::Stored);
    assert_eq!(
        cluster.client().await.get("later").await.unwrap(),
        None,
        "what was local never was in the pool"
    );
}

#[tokio::test]
async fn what_clients_do_through_an_outage_is_old_news_at_worst_and_no_acknowledgement() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master is killed", 3);
    let builder =
        cluster.client_builder().local_cache(ByteSize(64 << 20)).leader_timeout(Duration::from_millis(300));
    let running = Workload::new(9).cached().pace(Duration::from_millis(2)).start(&builder).await;
    running.acknowledged(100).await;
    for master in &mut cluster.masters {
        master.kill9();
        fault.happened();
    }
    until("clients put and read without a leader", async || {
        let count =
            |wanted: fn(&Outcome) -> bool| running.recorder().count(|operation| wanted(&operation.outcome));
        count(|outcome| *outcome == Outcome::LocalOnly) >= 20
            && count(|outcome| matches!(outcome, Outcome::LocalValue(_))) >= 20
    })
    .await;
    cluster.masters.iter_mut().for_each(mc_tests::Process::start);
    cluster.ready().await;
    running.acknowledged(50).await;
    running.stop().await.assert_nothing_lost(&cluster);
}

/// A store in this process, mounted.
async fn embedded(cluster: &Cluster, data_dir: &Path) -> Store {
    let store = start_embedded(cluster, data_dir, ByteSize(16 << 20), None).await;
    until("the embedded store is mounted", async || store.ready()).await;
    store
}

/// A store in this process, whose link to the masters runs on `link` or a thread of its own.
pub(crate) async fn start_embedded(
    cluster: &Cluster,
    data_dir: &Path,
    segment: ByteSize,
    link: Option<Handle>,
) -> Store {
    let mut surroundings = Surroundings::default();
    surroundings.link = link;
    let store = Store::builder()
        .segment(segment)
        .masters(cluster.addresses())
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .data_dir(data_dir)
        .shared_memory(ShmAccess::Off)
        .rdma_devices(RdmaDevices::Off);
    store.surroundings(surroundings).start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_leader_a_client_reads_its_own_store_s_memory_and_only_what_is_right_there() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master is killed", 3);
    let dir = tempfile::tempdir().unwrap();
    let store = embedded(&cluster, dir.path()).await;
    let here = PutOptions::default().with_preferred([store.id()]);
    let value = |key: &str| key.repeat(20_000).into_bytes();
    let client = cluster
        .client_builder()
        .embedded_store(store.id(), store.memory())
        .leader_timeout(Duration::from_millis(300));
    let client = client.connect().await.unwrap();
    assert!(client.connected(Duration::from_secs(60)).await);

    for key in ["put", "damaged", "removed"] {
        assert_eq!(client.put_with(key, &value(key), &here).await.unwrap(), Put::Stored);
    }
    assert!(client.remove("removed", true).await.unwrap());
    let other = cluster.client().await;
    for key in ["got", "never seen"] {
        assert_eq!(other.put_with(key, &value(key), &here).await.unwrap(), Put::Stored);
    }
    assert_eq!(client.get("got").await.unwrap().as_deref(), Some(&*value("got")));
    let lookup = client.admin().lookup("damaged").await.unwrap().unwrap();
    assert_eq!(lookup.replicas[0].store, store.id(), "it lies where it was asked to");
    let at = lookup.replicas[0].offset + 777;

    for master in &mut cluster.masters {
        master.kill9();
        fault.happened();
    }
    until("the client notices", async || client.mode() == Mode::LocalOnly).await;
    for key in ["put", "got"] {
        assert!(client.exist(key).await.unwrap());
        assert_eq!(client.get(key).await.unwrap().as_deref(), Some(&*value(key)), "{key}");
    }
    let mut into = vec![0; value("put").len() + 1];
    let read = client.batch_get_into(&mut [GetInto::new(b"put", vec![&mut into])]).await;
    assert_eq!(*read[0].as_ref().unwrap(), Some(into.len() - 1));
    assert_eq!(into[..into.len() - 1], value("put"));
    for key in ["removed", "never seen"] {
        assert_eq!(client.get(key).await.unwrap(), None, "nothing is known of {key}");
    }
    let (memory, number) = (store.memory(), lookup.replicas[0].segment);
    assert_eq!(client.get("damaged").await.unwrap().as_deref(), Some(&*value("damaged")));
    memory.segment(number).unwrap().corrupt(at).unwrap();
    assert_eq!(client.get("damaged").await.unwrap(), None, "wrong bytes are never returned");
    assert_eq!(client.stats().embedded_hits, 4);
    store.stop(Duration::ZERO).await;
}
