//! Clients that call as engines do: in bursts, batches, ranges and sessions, from runtimes that end.

use std::time::Duration;

use mc_client::ByteSize;
use mc_tests::service::{CallKind, Service};
use mc_tests::{Cluster, Deadlines, Faults, Workload, until_within};

/// Puts that are acknowledged before a fault, and again after it.
const PUTS: usize = 700;
/// No call is late, however slow this machine is.
const LONG: Duration = Duration::from_secs(100);
const DEADLINES: Deadlines = Deadlines { put: LONG, get: LONG, call: LONG };
/// Every call is answered by the pool, and misses nothing that is certainly there.
const SERVICE: Service = Service::interrupted(LONG);
/// Time within which the room of dropped puts is free again: long before their deadline.
const FREE_WITHIN: Duration = Duration::from_secs(20);

async fn assert_no_put_is_left(cluster: &Cluster) {
    let leader = cluster.leader().await;
    let in_flight = async || cluster.metric(leader, "mc_puts_in_flight").await;
    until_within(FREE_WITHIN, "no put is in flight", async || in_flight().await == Some(0.0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_pool_serves_all_calls_of_engines() {
    let cluster = Cluster::builder().stores(2).segment("1gb").start().await;
    let workload =
        Workload::engines(1).bursts(64..10_001).tenants([("", None), ("red", Some(ByteSize(768 << 20)))]);
    let running = workload.deadlines(DEADLINES).start(&cluster.client_builder()).await;
    running.acknowledged(2 * PUTS).await;
    let history = running.stop().await;
    history.assert_nothing_lost(&cluster);
    history.assert_served(SERVICE, |_| true);
    assert_no_put_is_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_costs_engines_no_put_and_no_get() {
    let mut cluster = Cluster::builder().stores(2).segment("1gb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed");
    let clients = cluster.client_builder().leader_timeout(LONG);
    let running = Workload::engines(2).deadlines(DEADLINES).start(&clients).await;
    running.acknowledged(PUTS).await;
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    fault.happened();
    running.acknowledged(PUTS).await;
    cluster.masters[leader].start();
    let history = running.stop().await;
    history.assert_nothing_lost(&cluster);
    // A removal whose answer died with the leader is not repeated.
    history.assert_served(SERVICE, |call| call != CallKind::Remove);
    assert_no_put_is_left(&cluster).await;
}
