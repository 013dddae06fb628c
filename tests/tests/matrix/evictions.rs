//! A pool that evicts all the time, and its evictions as a master's log has them.

use std::collections::BTreeMap;
use std::ops::Range;

use mc_client::Admin;
use mc_log::{LogOptions, LogStore, RaftLogReader as _, SledOptions};
use mc_tests::checker::Digest;
use mc_tests::{Cluster, ClusterBuilder, Mix, Workload, until};

use crate::replay::Replay;

/// Shares of the pool between which eviction keeps it: some 3.5 MiB. Above them is room for the bytes that a leader holds
/// back from reuse while reads that an earlier leader allowed may still run.
const WATERMARKS: [(&str, &str); 2] =
    [("eviction-low-watermark", "0.025"), ("eviction-high-watermark", "0.03")];
/// The shortest lease: a leased object is not evicted.
const LEASE: [&str; 2] = ["--read-lease", "5s"];
/// Three times the bytes that the pool keeps.
const KEYS: u64 = 500;
const SIZES: Range<u64> = 8 << 10..32 << 10;
/// Few reads, which lease.
const MIX: Mix = Mix { put: 8, upsert: 3, get: 2, exist: 0, remove: 1 };

pub(crate) fn cluster(cluster: ClusterBuilder) -> ClusterBuilder {
    cluster.segment("128mb").master_args(LEASE)
}

pub(crate) fn workload(workload: Workload) -> Workload {
    workload.keys(KEYS).sizes(SIZES).mix(MIX)
}

/// Makes the pool small.
pub(crate) async fn set_watermarks(cluster: &Cluster) {
    let admin = Admin::connect(&cluster.addresses()).await.expect("addresses");
    for (name, value) in WATERMARKS {
        until("the watermark is set", async || admin.set_config(name, value).await.is_ok()).await;
    }
}

/// Waits until a leader evicts.
pub(crate) async fn go_on(cluster: &Cluster) {
    let mut before = BTreeMap::new();
    until("the pool evicts", async || {
        let Some(leader) = cluster.find_leader().await else { return false };
        let evicted = cluster.metric_sum(leader, "mc_evicted_objects_total").await;
        evicted > *before.entry(leader).or_insert(evicted)
    })
    .await;
}

/// Ends the leader, and returns the evictions that its log tells of: keys and values.
pub(crate) async fn logged(cluster: &mut Cluster) -> Vec<(String, Digest)> {
    let leader = cluster.leader().await;
    // Not with `kill -9`: an entry may be committed by the others before it is on this disk.
    cluster.masters[leader].terminate().await;
    let dir = cluster.master_dir(leader).join("log");
    let opened = LogStore::open_sled(dir, SledOptions::default(), LogOptions::default()).await;
    let (log, found) = opened.expect("the log of a master that has ended");
    assert!(found.purged.is_none(), "the log no longer begins with its first entry");
    let entries = log.reader().try_get_log_entries(..).await.expect("entries that can be read");
    log.close().await;
    let mut replay = Replay::new();
    let evicted = entries.iter().flat_map(|entry| replay.apply(entry));
    evicted.map(|evicted| (evicted.key, Digest(evicted.object.checksum))).collect()
}
