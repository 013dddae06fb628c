use std::time::Duration;

use mc_client::{Admin, Code, Put, PutOptions};
use mc_tests::{Cluster, Faults, until, value};

const MIB: usize = 1 << 20;

fn key(n: usize) -> String {
    format!("key-{n}")
}

fn big(n: usize) -> Vec<u8> {
    value(&key(n), 1, MIB)
}

fn options() -> PutOptions {
    PutOptions { deadline: Duration::from_secs(5), ..PutOptions::default() }
}

#[tokio::test]
async fn a_full_pool_whose_objects_are_all_leased_says_so_and_keeps_them() {
    // Leases that outlast the test on a busy machine.
    let lease = ["--read-lease", "60s"];
    let cluster = Cluster::builder().masters(1).segment("16mb").master_args(lease).start().await;
    let client = cluster.client().await;
    // Otherwise the last put would pass the watermark, and could be evicted before it is leased.
    let admin = Admin::connect(&cluster.addresses()).await.unwrap();
    until("nothing is evicted below the capacity", async || {
        admin.set_config("eviction-high-watermark", "1").await.is_ok()
    })
    .await;
    let mut stored = 0;
    let refusal = loop {
        match client.put_with(key(stored), &big(stored), &options()).await {
            Ok(put) => assert_eq!(put, Put::Stored),
            Err(error) => break error,
        }
        assert_eq!(client.get(key(stored)).await.unwrap().as_deref(), Some(&big(stored)[..]));
        stored += 1;
        assert!(stored <= 16, "more than fits was taken");
    };
    assert_eq!(refusal.code, Code::NoAvailableHandle, "{refusal}");
    assert!(!refusal.is_unknown());
    assert!(refusal.why.contains("leased"), "{refusal}");
    assert!(stored >= 15, "only {stored} of 16 MiB were usable");
    for n in 0..stored {
        assert_eq!(client.get(key(n)).await.unwrap().as_deref(), Some(&big(n)[..]));
    }
    assert_eq!(
        client.put_with("too large", &value("too large", 1, 17 * MIB), &options()).await.unwrap_err().code,
        Code::ObjectTooLarge
    );
    assert!(client.remove(key(0), true).await.unwrap());
    until("there is room again", async || client.put_with("again", &big(99), &options()).await.is_ok()).await;
}

#[tokio::test]
async fn a_pool_that_is_filled_three_times_over_takes_every_put_and_reads_true_bytes() {
    const ROOM: usize = 64;
    let mut cluster = Cluster::builder().masters(3).stores(2).segment("32mb").start().await;
    let client = cluster.client().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed while the pool evicts");
    let mut killed = None;
    for n in 0..3 * ROOM {
        if n == 2 * ROOM {
            let leader = cluster.leader().await;
            cluster.masters[leader].kill9();
            fault.happened();
            killed = Some(leader);
        }
        assert_eq!(client.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored, "put {n}");
        if n % ROOM == 0 && n > 0 && n != 2 * ROOM {
            assert!(client.exist(key(n)).await.unwrap(), "the newest object {n} was evicted");
        }
    }
    let mut present = 0;
    for n in 0..3 * ROOM {
        if let Some(bytes) = client.get(key(n)).await.unwrap() {
            assert_eq!(bytes, big(n), "object {n}");
            present += 1;
        }
    }
    assert!((ROOM * 8 / 10..=ROOM).contains(&present), "{present} of {ROOM} MiB are in use");
    let leader = cluster.leader().await;
    assert!(cluster.metric(leader, "mc_evicted_objects_total").await.is_some_and(|count| count > 0.0));
    cluster.masters[killed.expect("a leader was killed")].start();
    cluster.ready().await;
    faults.assert_happened();
}
