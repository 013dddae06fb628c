//! A master whose disk has no room for a snapshot, its own or one that it is sent. The disk is a small file system in
//! memory. To mount one takes a right that not everybody has; where none can be mounted these tests are passed over.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mc_client::{Client, Put, PutOptions};
use mc_tests::{Cluster, SmallDisk, eventually, passed_over, until};

/// Objects with long keys: a snapshot of them is larger than [`LEFT`], by far, and the log of their puts too.
const KEYS: usize = 5_000;
const SNAPSHOT: u64 = 14 << 20;
/// Free bytes of a disk without room for puts: the log goes on.
const LEFT: u64 = 12 << 20;
const REMOVED: usize = 400;
const BATCH: usize = 128;

fn small_disk(at: &Path, size: &str) -> Option<SmallDisk> {
    let disk = SmallDisk::mount(at, size);
    if disk.is_none() {
        passed_over("no file system can be mounted here");
    }
    disk
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|n| format!("{n:-<4000}")).collect()
}

async fn put_all(client: &Client, keys: &[String]) {
    for keys in keys.chunks(BATCH) {
        let puts: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &b"value"[..])).collect();
        for put in client.batch_put(&puts, &PutOptions::default()).await {
            assert_eq!(put.unwrap(), Put::Stored);
        }
    }
}

async fn all_are_there(client: &Client, keys: &[String]) {
    until("every key that was put is there", async || {
        client.batch_exist(keys).await.iter().all(|there| matches!(there, Ok(true)))
    })
    .await;
}

/// Snapshot files of one kind in a master's data directory, oldest first.
fn files(cluster: &Cluster, master: usize, kind: &str) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(cluster.master_dir(master).join("snapshots"));
    let paths = folder.into_iter().flatten().flatten().map(|file| file.path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|ext| ext == kind)).collect();
    paths.sort();
    paths
}

/// Of a snapshot that was not taken nothing is left.
fn assert_snapshots(cluster: &Cluster, master: usize, are: &[PathBuf]) {
    assert_eq!(files(cluster, master, "snapshot"), are);
    let partial = files(cluster, master, "partial");
    assert!(partial.is_empty(), "{partial:?}");
}

/// How often a master has said that a snapshot does not fit.
fn refusals(cluster: &Cluster, master: usize, what: &str) -> usize {
    let output = cluster.masters[master].output();
    output.lines().filter(|line| line.contains(what) && line.contains("does not fit")).count()
}

async fn figure(cluster: &Cluster, master: usize, name: &str) -> f64 {
    eventually("it tells its figures", async || cluster.metric(master, name).await).await
}

async fn start(cluster: &mut Cluster) {
    for process in cluster.masters.iter_mut().chain(&mut cluster.stores) {
        if !process.is_running() {
            process.start();
        }
    }
    cluster.ready().await;
}

#[tokio::test]
async fn a_follower_takes_a_snapshot_that_did_not_fit_once_there_is_room() {
    const FOLLOWER: usize = 0;
    const SENT: &str = "a snapshot from the leader was not taken";
    let mut cluster = Cluster::builder()
        .segment("16mb")
        .master_args(["--disk-reserve", "16mb", "--snapshot-log-entries", "16", "--keep-log-entries", "10"])
        .prepare();
    let Some(disk) = small_disk(&cluster.master_dir(FOLLOWER), "128m") else { return };
    start(&mut cluster).await;

    // While it is away, the others put what its log lacks into a snapshot.
    cluster.masters[FOLLOWER].kill9();
    let leader = cluster.leader().await;
    let client = cluster.client().await;
    let before = figure(&cluster, leader, "mc_raft_committed_index").await;
    let keys = keys();
    put_all(&client, &keys).await;
    until("the leader has purged what the follower lacks", async || {
        let newest = files(&cluster, leader, "snapshot").pop();
        let bytes = newest.and_then(|path| path.metadata().ok()).map_or(0, |file| file.len());
        bytes > SNAPSHOT && figure(&cluster, leader, "mc_raft_purged_index").await > before
    })
    .await;
    assert_snapshots(&cluster, FOLLOWER, &[]);
    disk.fill(LEFT);
    cluster.masters[FOLLOWER].start();
    // Again and again, of which it does not die.
    until("it refuses the snapshot", async || refusals(&cluster, FOLLOWER, SENT) > 1).await;
    cluster.masters[FOLLOWER].assert_not_ended();
    assert_snapshots(&cluster, FOLLOWER, &[]);
    all_are_there(&client, &keys).await;

    disk.empty();
    until("it takes the snapshot", async || {
        cluster.masters[FOLLOWER].output().contains("took a snapshot from the leader")
    })
    .await;
    until("it has every key", async || {
        cluster.status(FOLLOWER).await.is_some_and(|status| status.keys == KEYS as u64)
    })
    .await;
    all_are_there(&client, &keys).await;
}

#[tokio::test]
async fn a_master_that_has_no_room_for_its_snapshot_goes_on_and_takes_it_once_there_is() {
    const OWN: &str = "snapshot not taken";
    let mut cluster = Cluster::builder()
        .masters(1)
        .segment("16mb")
        .master_args(["--disk-reserve", "16mb", "--keep-log-entries", "10"])
        .prepare();
    let Some(disk) = small_disk(&cluster.master_dir(0), "192m") else { return };
    start(&mut cluster).await;
    let client = cluster.client().await;
    let keys = keys();
    put_all(&client, &keys).await;

    // Its first one.
    cluster.masters[0].terminate().await;
    assert_snapshots(&cluster, 0, &[]);
    cluster.masters[0].add_args(["--snapshot-log-bytes", "1mb"]);
    disk.fill(LEFT);
    start(&mut cluster).await;
    until("it has no room for its first snapshot", async || refusals(&cluster, 0, OWN) > 0).await;
    all_are_there(&client, &keys).await;
    assert_snapshots(&cluster, 0, &[]);
    assert!(figure(&cluster, 0, "mc_raft_purged_index").await < 1.0, "purged without a snapshot");

    disk.empty();
    until("it takes its first snapshot", async || {
        files(&cluster, 0, "snapshot").len() == 1 && figure(&cluster, 0, "mc_raft_purged_index").await > 0.0
    })
    .await;

    // The next one. The first is what it starts with meanwhile, and all of the log since.
    let first = files(&cluster, 0, "snapshot");
    let purged = figure(&cluster, 0, "mc_raft_purged_index").await;
    cluster.masters[0].terminate().await;
    cluster.masters[0].add_args(["--snapshot-log-entries", "3"]);
    disk.fill(LEFT);
    start(&mut cluster).await;
    assert!(client.connected(Duration::from_secs(60)).await);
    let (removed, kept) = keys.split_at(REMOVED);
    let before = refusals(&cluster, 0, OWN);
    for result in client.batch_remove(removed, true).await {
        assert!(result.unwrap());
    }
    until("it has no room for the next snapshot", async || refusals(&cluster, 0, OWN) > before).await;
    assert_snapshots(&cluster, 0, &first);
    assert!(figure(&cluster, 0, "mc_raft_purged_index").await <= purged, "purged without a snapshot");
    cluster.masters[0].kill9();
    start(&mut cluster).await;
    assert!(client.connected(Duration::from_secs(60)).await);
    all_are_there(&client, kept).await;

    disk.empty();
    until("it takes the next snapshot", async || {
        files(&cluster, 0, "snapshot").len() == 2
            && figure(&cluster, 0, "mc_raft_purged_index").await > purged
    })
    .await;
    cluster.masters[0].kill9();
    start(&mut cluster).await;
    all_are_there(&client, kept).await;
    for there in client.batch_exist(removed).await {
        assert!(!there.unwrap(), "it was removed");
    }
    until("puts go on", async || {
        matches!(client.put("put at last", b"value").await, Ok(Put::Stored | Put::AlreadyExists))
    })
    .await;
}
