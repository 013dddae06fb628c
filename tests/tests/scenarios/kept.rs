//! Stores whose memory outlives their processes.

use std::time::Duration;

use mc_client::{Client, Put};
use mc_tests::checker::Outcome;
use mc_tests::{
    Cluster, Faults, HugePages, RollDisk, RollOrder, SmallDisk, Workload, eventually, mcctl, passed_over,
    until, value,
};

const KEYS: usize = 20;

fn bytes(n: usize) -> Vec<u8> {
    value(&n.to_string(), 1, 100_000)
}

async fn fill(client: &Client) {
    for n in 0..KEYS {
        assert_eq!(client.put(n.to_string(), &bytes(n)).await.unwrap(), Put::Stored);
    }
}

/// Waits until all objects are there. Before the store is mounted again they miss.
async fn assert_all_there(cluster: &Cluster) {
    let client = cluster.client().await;
    for n in 0..KEYS {
        let got = eventually("it is there", async || client.get(n.to_string()).await.unwrap()).await;
        assert!(got[..] == bytes(n)[..], "object {n} has other bytes");
    }
}

fn starts(cluster: &Cluster, how: &str) -> usize {
    cluster.stores[0].output().matches(how).count()
}

#[tokio::test]
async fn masters_and_stores_are_rolled_under_load_without_a_lost_key() {
    let mut cluster = Cluster::builder().stores(2).keeps_memory().start().await;
    let mut faults = Faults::new();
    let rolled = faults.plan_times("a process was rolled", 5);
    let running = Workload::growing(36).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    running.acknowledged(100).await;
    for store in [0, 1] {
        let status = cluster.stores[store].terminate().await;
        assert_eq!(status.code(), Some(0));
        let said = cluster.stores[store].output();
        assert!(said.contains("leaving the memory in"), "{said}");
        cluster.stores[store].start();
        cluster.ready().await;
        rolled.happened();
        running.acknowledged(100).await;
    }
    cluster.roll(RollOrder::LeaderLast, RollDisk::Kept, |_| rolled.happened()).await;
    running.acknowledged(100).await;
    let history = running.stop().await;
    history.assert_nothing_lost(&cluster);
    println!("{} calls failed", history.outcomes(Outcome::Failed));
    assert_eq!(history.outcomes(Outcome::Unknown), 0);
}

/// A process that stands still has the directory until it is dead: two never serve one memory.
#[tokio::test]
async fn a_process_that_stands_still_keeps_its_memory_from_the_next_one() {
    let mut cluster = Cluster::builder().masters(1).keeps_memory().start().await;
    fill(&cluster.client().await).await;
    let first = cluster.stores[0].take();
    first.pause().await;
    // It has another port, as a container has another address, and the same directories.
    cluster.stores[0].set_arg("--http-listen", "127.0.0.1:0");
    cluster.stores[0].set_arg("--listen", "127.0.0.1:0");
    cluster.stores[0].start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(starts(&cluster, "warm start"), 0);
    drop(first);
    until("it goes on", async || starts(&cluster, "warm start") == 1).await;
    assert_all_there(&cluster).await;
}

#[tokio::test]
async fn a_store_that_restarts_while_its_masters_are_rescued_keeps_what_the_survivor_knows() {
    let mut cluster = Cluster::builder().masters(1).keeps_memory().start().await;
    fill(&cluster.client().await).await;
    cluster.stores[0].kill9();
    cluster.masters[0].kill9();
    let dir = cluster.master_dir(0);
    let rescue = ["members", "rescue", "--yes", "--data-dir", dir.to_str().unwrap()];
    let (code, said) = mcctl(&cluster, &rescue).await;
    assert_eq!(code, 0, "{said}");
    cluster.masters[0].start();
    cluster.stores[0].start();
    assert_all_there(&cluster).await;
    // Once more: the rescued index names the second process.
    cluster.stores[0].kill9();
    cluster.stores[0].start();
    assert_all_there(&cluster).await;
}

#[tokio::test]
async fn a_store_gets_more_memory_at_a_restart_and_its_memory_is_freed_by_one_command() {
    let mut cluster = Cluster::builder().masters(1).segment("8mb").keeps_memory().start().await;
    fill(&cluster.client().await).await;
    cluster.stores[0].kill9();
    cluster.stores[0].set_arg("--segment", "40mb");
    cluster.stores[0].start();
    assert_all_there(&cluster).await;
    let large = value("large", 1, 20 << 20);
    assert_eq!(cluster.client().await.put("large", &large).await.unwrap(), Put::Stored);

    let dir = cluster.memory_dir(0);
    let release = || {
        let mut command = std::process::Command::new(mc_tests::mcctl_exe());
        command.args(["run", "store", "--release"]).arg(&dir);
        let ended = command.output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (code, said) = release();
    assert!(code == Some(2) && said.contains("another process uses"), "{code:?}: {said}");
    cluster.stores[0].terminate().await;
    assert_eq!(release().0, Some(0));
    assert!(!dir.join("segment-0").exists() && !dir.join("page").exists());
    let (code, said) = release();
    assert!(code == Some(2) && said.contains("no memory of a store"), "{code:?}: {said}");
    cluster.stores[0].start();
    until("it starts with empty memory", async || starts(&cluster, "cold start: the directory is new") == 2)
        .await;
    cluster.ready().await;
    assert_eq!(cluster.client().await.get("large").await.unwrap(), None);
}

#[tokio::test]
async fn memory_of_huge_pages_is_kept_as_well() {
    let mut cluster = Cluster::builder().masters(1).segment("8mb").keeps_memory().prepare();
    // One page for the page file, four for the segment.
    let Some(_pages) = HugePages::mount(&cluster.memory_dir(0), 5) else {
        return passed_over("no huge pages can be set apart here");
    };
    cluster.masters[0].start();
    cluster.stores[0].set_arg("--segment", "7mb");
    cluster.stores[0].start();
    let ended = cluster.stores[0].ended().await;
    let said = cluster.stores[0].output();
    assert!(ended.code() == Some(2) && said.contains("no multiple of 2MiB"), "{ended:?}: {said}");
    cluster.stores[0].set_arg("--segment", "8mb");
    cluster.stores[0].start();
    cluster.ready().await;
    fill(&cluster.client().await).await;
    cluster.stores[0].kill9();
    cluster.stores[0].start();
    assert_all_there(&cluster).await;
    assert_eq!(starts(&cluster, "warm start"), 1);
}

#[tokio::test]
async fn a_file_system_without_room_is_named() {
    let mut cluster = Cluster::builder().masters(1).segment("64mb").keeps_memory().prepare();
    let Some(_disk) = SmallDisk::mount(&cluster.memory_dir(0), "8m") else {
        return passed_over("no file system can be mounted here");
    };
    cluster.stores[0].start();
    let ended = cluster.stores[0].ended().await;
    let said = cluster.stores[0].output();
    assert!(ended.code() == Some(2) && said.contains("give its file system more room"), "{ended:?}: {said}");
}
