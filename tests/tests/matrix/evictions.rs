//! A pool that evicts all the time, and its evictions as a master's log has them.

use std::collections::BTreeMap;
use std::ops::Range;

use mc_client::Admin;
use mc_index::{Command, Op};
use mc_log::{Entry, EntryPayload, LogOptions, LogStore, Proposal, RaftLogReader as _, SledOptions};
use mc_tests::checker::Digest;
use mc_tests::{Cluster, ClusterBuilder, Ledger, Logged, Mix, Workload, tenant_key, until};

use crate::replay::{Evicted, Replay};

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
const MIX: Mix = Mix { put: 8, upsert: 3, get: 2, remove: 1, ..Mix::NONE };

pub(crate) fn cluster(cluster: ClusterBuilder) -> ClusterBuilder {
    cluster.segment("128mb").master_args(LEASE)
}

pub(crate) fn workload(workload: Workload) -> Workload {
    workload.keys(KEYS).sizes(SIZES).mix(MIX).ledger(Ledger::Unread)
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

/// Ends the leader, and returns the puts and the evictions that its log tells of.
pub(crate) async fn logged(cluster: &mut Cluster) -> Vec<Logged> {
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
    let mut logged = Vec::new();
    for entry in &entries {
        let evicted = replay.apply(entry).into_iter();
        let name = |it: &Evicted| tenant_key(&it.tenant, &it.key);
        logged.extend(evicted.map(|it| Logged::Evicted(name(&it), Digest(it.object.checksum))));
        logged.extend(written(entry));
    }
    logged
}

/// Returns the puts that an entry ends.
fn written(entry: &Entry) -> Vec<Logged> {
    let EntryPayload::Normal(Proposal(bytes)) = &entry.payload else { return Vec::new() };
    match Command::decode(bytes).expect("a command of this build").op {
        Op::PutEnd { items } => items.iter().map(|item| Logged::Written(Digest(item.checksum))).collect(),
        _ => Vec::new(),
    }
}
