//! Tools of people on call: metrics, and `mcctl status`.

use mc_client::Put;
use mc_tests::{Cluster, mcctl, until};
use serde_json::Value;

#[tokio::test]
async fn what_masters_do_for_each_other_and_for_stores_is_timed() {
    let cluster = Cluster::builder().segment("16mb").start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("key", b"value").await.unwrap(), Put::Stored);
    for count in [
        "mc_raft_rpc_seconds_count{rpc=\"append\"}",
        "mc_raft_rpc_seconds_count{rpc=\"vote\"}",
        "mc_raft_rpc_seconds_count{rpc=\"meet\"}",
        "mc_raft_election_seconds_count",
        "mc_raft_log_flush_seconds_count",
        "mc_raft_log_batch_bytes_count",
        "mc_master_rpc_seconds_count{rpc=\"heartbeat\"}",
    ] {
        until(format!("{count} is above 0 on a master"), async || {
            for master in 0..3 {
                if cluster.metric(master, count).await.is_some_and(|counted| counted > 0.0) {
                    return true;
                }
            }
            false
        })
        .await;
    }
}

async fn status(cluster: &Cluster) -> (i32, Value) {
    let (code, said) = mcctl(cluster, &["status", "--json"]).await;
    (code, serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {said}")))
}

#[tokio::test]
async fn status_ends_with_0_then_1_then_2_as_the_masters_die() {
    let mut cluster = Cluster::builder().segment("16mb").start().await;
    until("status says healthy", async || status(&cluster).await.0 == 0).await;

    let leader = cluster.leader().await;
    let dead = cluster.master_address(leader).to_owned();
    cluster.masters[leader].kill9();
    let mut degraded = Value::Null;
    until("status says degraded", async || {
        let (code, view) = status(&cluster).await;
        degraded = view;
        code == 1
    })
    .await;
    assert_eq!(degraded["health"], "degraded");
    assert!(degraded["leader"].is_string() && degraded["leader"] != dead.as_str(), "{degraded}");
    let mut problems = degraded["problems"].as_array().unwrap().iter();
    let names_it = |problem: &Value| problem.as_str().unwrap().contains(&dead);
    assert!(problems.any(names_it), "it says who is missing: {degraded}");
    let masters = degraded["masters"].as_array().unwrap();
    let silent = masters.iter().filter(|master| master["role"] == "unreachable");
    assert_eq!(silent.map(|master| &master["addr"]).collect::<Vec<_>>(), [dead.as_str()], "{degraded}");

    for master in (0..3).filter(|master| *master != leader) {
        cluster.masters[master].kill9();
    }
    let (code, down) = status(&cluster).await;
    assert_eq!((code, &down["health"], &down["leader"]), (2, &"down".into(), &Value::Null), "{down}");
}

#[tokio::test]
async fn a_bench_of_a_pool_that_is_there_leaves_it_as_it_was() {
    let cluster = Cluster::builder().segment("16mb").start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("mine", b"value").await.unwrap(), Put::Stored);

    for load in ["put", "get", "mixed"] {
        let shape =
            ["--threads", "2", "--batch", "3", "--size", "4kb", "--keys", "30", "--duration", "200ms"];
        let masters = cluster.addresses();
        let bench = ["--masters", &masters, "bench", load, "--json"];
        let mut said = String::new();
        // A store that a busy machine makes late is suspected for a moment, and what it holds misses.
        until("a bench in which nothing fails", async || {
            let ended = mcctl(&cluster, &[&bench[..], &shape[..]].concat()).await;
            said = ended.1;
            println!("{load}: {said}");
            ended.0 == 0
        })
        .await;
        // The document comes first, what it said meanwhile after it.
        let report = serde_json::Deserializer::from_str(&said).into_iter::<Value>().next().unwrap().unwrap();
        assert!(report["ops"].as_u64().unwrap() > 0, "{report}");
        assert_eq!((&report["failed"], &report["wrong"]), (&0.into(), &0.into()), "{report}");
    }
    until("only what was there before is there", async || status(&cluster).await.1["keys"] == 1).await;
    assert_eq!(client.get("mine").await.unwrap().as_deref(), Some(&b"value"[..]));
}
