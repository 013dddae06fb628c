use std::time::Duration;

use mc_tests::checker::{Action, Outcome};
use mc_tests::{Cluster, Fault, Faults, Mix, Recorder, Workload, digest, until};

fn workload(seed: u64) -> Workload {
    Workload::new(seed).pace(Duration::from_millis(2))
}

fn kill(cluster: &mut Cluster, master: usize, fault: &Fault) {
    cluster.masters[master].kill9();
    fault.happened();
}

#[tokio::test]
async fn the_leader_is_killed_again_and_again_under_load() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("the leader is killed", 3);
    let running = workload(1).start(&cluster.client_builder()).await;
    for _ in 0..3 {
        running.acknowledged(100).await;
        let leader = cluster.leader().await;
        kill(&mut cluster, leader, &fault);
        let took = running.acknowledged(1).await;
        println!("from the kill to the next acknowledged put: {took:?}");
        running.acknowledged(50).await;
        cluster.masters[leader].start();
        cluster.ready().await;
    }
    running.stop().await.assert_nothing_lost(&cluster);
}

#[tokio::test]
async fn all_masters_are_killed_at_once_with_snapshots_and_purges_every_thousand_entries() {
    let flags = ["--snapshot-log-entries", "1000", "--keep-log-entries", "100"];
    let mut cluster = Cluster::builder().master_args(flags).start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master is killed", 6);
    let purges = faults.plan_times("a master has a snapshot and has purged what it covers before a kill", 6);
    let mut purged = [0.0; 3];
    let running = Workload::growing(4).start(&cluster.client_builder()).await;
    for _ in 0..2 {
        running.acknowledged(1_500).await;
        for (master, purged) in purged.iter_mut().enumerate() {
            *purged = purged_beyond(&cluster, master, *purged + 1_000.0).await;
            if has_snapshot(&cluster.master_dir(master)) {
                purges.happened();
            }
        }
        kill_all_and_restart(&mut cluster, &fault).await;
    }
    running.acknowledged(100).await;
    running.stop().await.assert_nothing_lost(&cluster);
}

async fn kill_all_and_restart(cluster: &mut Cluster, fault: &Fault) {
    for master in 0..cluster.masters.len() {
        kill(cluster, master, fault);
    }
    cluster.masters.iter_mut().for_each(mc_tests::Process::start);
    cluster.ready().await;
}

/// Waits until a master has purged its log up to that entry or a later one; up to which.
async fn purged_beyond(cluster: &Cluster, master: usize, entry: f64) -> f64 {
    let mut purged = 0.0;
    until(format!("mc_raft_purged_index of master {} is {entry}", master + 1), async || {
        purged = cluster.metric(master, "mc_raft_purged_index").await.unwrap_or(0.0);
        purged >= entry
    })
    .await;
    purged
}

fn has_snapshot(dir: &std::path::Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| {
        entry.file_name().to_string_lossy().contains("snapshot")
            && (entry.path().is_file()
                || std::fs::read_dir(entry.path()).is_ok_and(|mut dir| dir.next().is_some()))
    })
}

#[tokio::test]
async fn a_store_that_is_suspect_in_the_final_reads_is_waited_for() {
    let cluster = Cluster::builder().masters(1).start().await;
    let running = workload(9).mix(Mix::GROWING).start(&cluster.client_builder()).await;
    running.acknowledged(50).await;
    let recorder = running.recorder().clone();
    cluster.stores[0].pause().await;
    until("the store is suspect", async || cluster.has_suspected_a_store()).await;
    let before = misses(&recorder);
    let resume = async {
        until("the final reads miss", async || misses(&recorder) > before + 10).await;
        cluster.stores[0].resume();
    };
    let (history, ()) = tokio::join!(running.stop(), resume);
    history.assert_nothing_lost(&cluster);
}

fn misses(recorder: &Recorder) -> usize {
    recorder.count(|operation| operation.outcome == Outcome::Miss)
}

/// The judgement itself is tested: a store that dies takes acknowledged values with it, which this kind of run must not
/// let through, suspicion or not.
#[tokio::test]
#[should_panic(expected = "an acknowledged value is gone")]
async fn a_run_in_which_acknowledged_values_were_lost_is_not_let_through() {
    let mut cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let running = workload(8).mix(Mix::GROWING).start(&cluster.client_builder()).await;
    running.acknowledged(50).await;
    let recorder = running.recorder().clone();
    // No load meanwhile, which could put the keys again.
    let before = running.stop().await;
    before.assert_nothing_lost(&cluster);
    cluster.stores[0].kill9();
    cluster.stores[0].start();
    cluster.ready().await;
    let settled = recorder.now();
    let client = cluster.client().await;
    for key in 0..64 {
        let (key, start) = (format!("key-{key}"), recorder.now());
        let read = client.get(&key).await.unwrap();
        let outcome = read.map_or(Outcome::Miss, |value| Outcome::Value(digest(&value)));
        recorder.record(99, &key, Action::Get, outcome, start);
    }
    recorder.history().settled_at(settled).assert_nothing_lost(&cluster);
}
