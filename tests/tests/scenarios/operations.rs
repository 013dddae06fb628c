//! Procedures of docs/operations, with its commands and in its order, while the pool is used.

use std::collections::BTreeSet;
use std::time::Duration;

use mc_tests::{Cluster, Fault, Faults, Running, Workload, eventually, http_get, is_ready, mcctl, until};
use serde_json::Value;

/// Entries that a master may lack and count as having caught up: under load nobody has all of them.
const SMALL_LAG: u64 = 100;
const LIST: [&str; 3] = ["--json", "members", "list"];

/// Gives a command until it ends with 0: on a busy machine masters and stores may miss each other for a moment, and what
/// changes the members may be asked again. What it said.
async fn well(cluster: &Cluster, args: &[&str]) -> String {
    eventually(format!("`mcctl {}` ends with 0", args.join(" ")), async || {
        let (code, said) = mcctl(cluster, args).await;
        (code == 0).then_some(said)
    })
    .await
}

/// The document that a command printed, in front of what it may have said besides.
fn document(said: &str) -> Value {
    let first = serde_json::Deserializer::from_str(said).into_iter::<Value>().next();
    first.and_then(Result::ok).unwrap_or_else(|| panic!("no JSON: {said}"))
}

/// `Upgrade`: what must be well before the first master is touched, and after the last one.
async fn all_is_well(cluster: &Cluster) {
    for command in [&["status"][..], &["members", "list"], &["upgrade", "status"]] {
        well(cluster, command).await;
    }
}

/// The master that `mcctl status` shows as the leader.
async fn leads(cluster: &Cluster) -> usize {
    let shown = document(&well(cluster, &["--json", "status"]).await);
    let leader = shown["leader"].as_str().expect("a pool that is well has a leader");
    let mut masters = 0..cluster.masters.len();
    masters.find(|master| cluster.master_address(*master) == leader).expect("it is one of the masters")
}

/// Entries of the leader's log that the master at a Raft address lacks, as `members list` printed it.
fn lag(listed: &str, raft: &str) -> Option<u64> {
    let listed = document(listed);
    let mut members = listed["members"].as_array()?.iter();
    members.find(|member| member["raft"] == raft)?["lag_entries"].as_u64()
}

/// The Raft addresses of the members that vote, whether all of them are well or not.
async fn voters(cluster: &Cluster) -> BTreeSet<String> {
    let listed = eventually("the members are listed", async || {
        let (code, said) = mcctl(cluster, &LIST).await;
        matches!(code, 0 | 1).then(|| document(&said))
    })
    .await;
    let members = listed["members"].as_array().expect("members").iter();
    let voters = members.filter(|member| member["role"] != "learner");
    voters.map(|member| member["raft"].as_str().expect("an address").to_owned()).collect()
}

fn raft_of_all(cluster: &Cluster) -> BTreeSet<String> {
    (0..cluster.masters.len()).map(|master| cluster.master_raft(master).to_owned()).collect()
}

/// `Upgrade`. There is one build: it is put in its own place.
async fn upgrade(cluster: &mut Cluster, running: &Running, restarted: &Fault) {
    all_is_well(cluster).await;
    let mut old: Vec<usize> = (0..cluster.masters.len()).collect();
    while !old.is_empty() {
        let leader = leads(cluster).await;
        // The leader last; it may have changed meanwhile.
        let next = old.iter().copied().find(|master| *master != leader).unwrap_or(leader);
        let status = cluster.masters[next].terminate().await;
        assert_eq!(status.code(), Some(0), "a master that is asked to stop stops well");
        cluster.masters[next].start();
        restarted.happened();
        until("it is ready", async || is_ready(cluster.master_http(next)).await).await;
        let raft = cluster.master_raft(next).to_owned();
        until(format!("all are heard, and {raft} lags by little"), async || {
            let (code, said) = mcctl(cluster, &LIST).await;
            code == 0 && lag(&said, &raft).is_some_and(|lag| lag <= SMALL_LAG)
        })
        .await;
        running.acknowledged(50).await;
        old.retain(|master| *master != next);
    }
    all_is_well(cluster).await;
    let said = well(cluster, &["upgrade", "finish"]).await;
    assert!(said.contains("the cluster version is") && said.contains("already"), "{said}");
}

/// `Replace a master whose machine is gone`: a master whose machine is gone for good, with another one in its place.
async fn replace(cluster: &mut Cluster, running: &Running, gone: &Fault) {
    let lost = leads(cluster).await;
    let old = cluster.master_raft(lost).to_owned();
    let before = raft_of_all(cluster);
    cluster.masters[lost].kill9();
    cluster.wipe_master(lost);
    gone.happened();
    running.acknowledged(50).await;

    // Other addresses, and a list that names the two others and itself.
    cluster.relocate(&[lost]);
    cluster.masters[lost].start();
    let new = cluster.master_raft(lost).to_owned();
    until("it waits to be taken in", async || {
        let answer = http_get(cluster.master_http(lost), "/readyz").await;
        answer.is_ok_and(|(code, why)| code == 503 && why.contains("waits to be taken in"))
    })
    .await;
    well(cluster, &["members", "add", &new]).await;
    let four: BTreeSet<String> = before.into_iter().chain([new]).collect();
    assert_eq!(voters(cluster).await, four, "the new one votes, and the dead one is still in");
    running.acknowledged(50).await;

    until("the dead one is removed", async || {
        let (code, said) = mcctl(cluster, &["members", "remove", &old]).await;
        // Of a first try nobody may have been told what became of it.
        code == 0 || said.contains("no member is")
    })
    .await;
    well(cluster, &["members", "list"]).await;
    assert_eq!(voters(cluster).await, raft_of_all(cluster));
    running.acknowledged(50).await;
}

#[tokio::test]
async fn all_masters_are_upgraded_and_one_is_replaced_as_the_guide_says() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let restarted = faults.plan_times("a master was restarted", 3);
    let gone = faults.plan("a master and its disk are gone for good");
    let load = Workload::growing(35).pace(Duration::from_millis(2));
    let running = load.start(&cluster.client_builder()).await;
    running.acknowledged(50).await;

    upgrade(&mut cluster, &running, &restarted).await;
    replace(&mut cluster, &running, &gone).await;

    running.stop().await.assert_nothing_lost(&cluster);
}
