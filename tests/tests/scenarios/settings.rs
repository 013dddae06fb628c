use std::collections::BTreeMap;

use mc_client::Put;
use mc_tests::{Cluster, Faults, Workload, http_get, until};

/// How often one master made sure that it leads before it answered, by what it went by.
async fn leader_checks(cluster: &Cluster, master: usize) -> BTreeMap<String, u64> {
    let (_, metrics) = http_get(cluster.master_http(master), "/metrics").await.unwrap();
    let checks = metrics.lines().filter_map(|line| {
        let (by, count) = line.strip_prefix("mc_master_leader_checks_total{by=\"")?.split_once("\"} ")?;
        Some((by.to_owned(), count.parse().unwrap()))
    });
    checks.collect()
}

#[tokio::test]
async fn by_default_a_get_is_answered_by_lease_and_leaves_nothing_in_the_log() {
    const GETS: u32 = 500;
    let cluster = Cluster::builder().start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("k", b"value").await.unwrap(), Put::Stored);
    let leader = cluster.leader().await;
    let entries = async || {
        cluster.metric(leader, "mc_raft_committed_index").await.expect("the leader tells its figures")
    };
    let (checks_before, entries_before) = (leader_checks(&cluster, leader).await, entries().await);
    for _ in 0..GETS {
        assert_eq!(client.get("k").await.unwrap().as_deref(), Some(&b"value"[..]));
    }
    let (checks, entries) = (leader_checks(&cluster, leader).await, entries().await - entries_before);
    assert_eq!(cluster.leader().await, leader, "the counts are of one leader");
    let by_lease = checks["lease"] - checks_before["lease"];
    // On a busy machine a heartbeat may be late now and then.
    assert!(by_lease >= u64::from(GETS) / 2, "{checks_before:?} {checks:?}");
    assert!(entries < f64::from(GETS) / 2.0, "{entries} entries for {GETS} gets");
}

#[tokio::test]
async fn under_read_index_no_answer_is_given_by_lease_and_a_failover_loses_nothing() {
    let mut cluster = Cluster::builder().master_args(["--read-policy", "read-index"]).start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("k", b"value").await.unwrap(), Put::Stored);
    let leader = cluster.leader().await;
    until("the settings are in force", async || {
        cluster.status(leader).await.is_some_and(|status| status.cluster_version > 0)
    })
    .await;
    let before = leader_checks(&cluster, leader).await;
    for _ in 0..20 {
        assert_eq!(client.get("k").await.unwrap().as_deref(), Some(&b"value"[..]));
        assert!(client.exist("k").await.unwrap());
    }
    let after = leader_checks(&cluster, leader).await;
    assert_eq!(cluster.leader().await, leader, "the counts are of one leader");
    assert_eq!(after["lease"], before["lease"]);
    assert!(after["quorum"] >= before["quorum"] + 40, "{before:?} {after:?}");

    let mut earlier = BTreeMap::new();
    for master in 0..3 {
        earlier.insert(master, leader_checks(&cluster, master).await["lease"]);
    }
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed");
    let running = Workload::new(21).start(&cluster.client_builder()).await;
    running.acknowledged(50).await;
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    fault.happened();
    running.acknowledged(50).await;
    cluster.masters[leader].start();
    cluster.ready().await;
    running.acknowledged(20).await;
    running.stop().await.assert_nothing_lost(&cluster);
    for master in 0..3 {
        if master != leader {
            assert_eq!(leader_checks(&cluster, master).await["lease"], earlier[&master], "by a later leader");
        }
    }
}

#[tokio::test]
async fn a_flag_that_the_cluster_overrules_is_named_at_the_start() {
    let mut cluster = Cluster::builder().masters(1).stores(0).start().await;
    // A leader commits its flags as the cluster's settings after its election. Stopped before that, the
    // second start's flags would become the settings.
    until("the settings are in force", async || {
        cluster.status(0).await.is_some_and(|status| status.cluster_version > 0)
    })
    .await;
    assert!(!cluster.masters[0].output().contains("differs from the cluster's setting"));
    cluster.masters[0].terminate().await;
    cluster.masters[0].add_args(["--read-lease", "20s", "--store-ttl", "10m"]);
    cluster.masters[0].start();
    until("the warning", async || {
        cluster.masters[0].output().contains(
            "--read-lease 20s (flag) differs from the cluster's setting 10s: the cluster's value is kept",
        )
    })
    .await;
    assert!(!cluster.masters[0].output().contains("--store-ttl"), "the cluster has that value");
}
