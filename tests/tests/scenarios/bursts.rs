//! Many single calls of one client on real processes, its dropped puts, and the runtimes of its callers.

use std::time::Duration;

use mc_client::{Client, Put, PutOptions};
use mc_tests::service::Service;
use mc_tests::{Cluster, Deadlines, Mix, Workload, until_within, value};
use mc_types::ByteSize;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_of_ten_thousand_calls_are_all_answered_by_the_pool() {
    let cluster = Cluster::builder().segment("256mb").start().await;
    // No answer is late, however slow this machine is: only a wrong one fails the test.
    let long = Duration::from_secs(100);
    let deadlines = Deadlines { put: long, get: long, call: long };
    let mix = Mix { put: 1, get: 1, burst: 8, ..Mix::NONE };
    let workload = Workload::new(5).clients(1).sizes(16..64).mix(mix).bursts(10_000..10_001);
    let running = workload.deadlines(deadlines).start(&cluster.client_builder()).await;
    running.operations(30_000).await;
    let history = running.stop().await;
    history.assert_nothing_lost(&cluster);
    history.assert_served(Service::interrupted(long), |_| true);
}

/// Together they take longer than a store may be silent: those that wait for a connection are no sign of its failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_large_gets_at_once_are_all_answered_by_the_pool() {
    const SIZE: usize = 2 << 20;
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let long = Duration::from_secs(100);
    let client = cluster.client_builder().local_cache(ByteSize(0)).get_timeout(long).connect().await.unwrap();
    let bytes: Vec<_> = (0..8).map(|n| value(&format!("k{n}"), 1, SIZE)).collect();
    for (n, bytes) in bytes.iter().enumerate() {
        assert_eq!(client.put(format!("k{n}"), bytes).await.unwrap(), Put::Stored);
    }
    let mut gets = JoinSet::new();
    for n in 0..400 {
        let client = client.clone();
        gets.spawn(async move { (n % 8, client.get(format!("k{}", n % 8)).await) });
    }
    while let Some(got) = gets.join_next().await {
        let (n, got) = got.unwrap();
        assert!(got.unwrap().as_deref() == Some(&bytes[n][..]), "a miss, or other bytes");
    }
}

#[test]
fn a_client_of_a_runtime_that_ended_follows_the_next_leader_and_moves_bytes() {
    let main = Runtime::new().unwrap();
    let mut cluster = main.block_on(Cluster::builder().segment("64mb").start());
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bytes = value("k", 1, 3 << 20);
    let client: Client = first.block_on(async {
        let client = cluster.client_builder().local_cache(ByteSize(0)).connect().await.unwrap();
        assert_eq!(client.put("before", &bytes).await.unwrap(), Put::Stored);
        client
    });
    drop(first);
    main.block_on(async {
        let leader = cluster.leader().await;
        cluster.masters[leader].kill9();
        cluster.leader().await;
        assert!(client.connected(Duration::from_secs(60)).await);
        assert_eq!(client.put("after", &bytes).await.unwrap(), Put::Stored);
        for key in ["before", "after"] {
            assert!(client.get(key).await.unwrap().as_deref() == Some(&bytes[..]), "other bytes came back");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_puts_give_their_room_back_at_once() {
    const SIZE: usize = 4 << 20;
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let client = cluster.client().await;
    let bytes = value("k", 1, SIZE);
    // Their deadline is long after the test has given up.
    let options = PutOptions::default().with_deadline(Duration::from_secs(600));
    for round in 0..4 {
        let mut puts = JoinSet::new();
        for n in 0..16 {
            let (client, bytes, options) = (client.clone(), bytes.clone(), options.clone());
            puts.spawn(async move { client.put_with(format!("{round}/{n}"), &bytes, &options).await });
        }
        tokio::task::yield_now().await;
        puts.shutdown().await;
    }
    let leader = cluster.leader().await;
    // The masters drop a put after a minute at the latest.
    let none_left = async || cluster.metric(leader, "mc_puts_in_flight").await == Some(0.0);
    until_within(Duration::from_secs(20), "no put is in flight", none_left).await;
    for n in 0..12 {
        assert_eq!(client.put(format!("after/{n}"), &bytes).await.unwrap(), Put::Stored);
    }
}
