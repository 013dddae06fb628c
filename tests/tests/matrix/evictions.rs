//! A pool that evicts all the time, and its evictions as a master's log has them.

use std::collections::BTreeMap;
use std::ops::Range;

use mc_client::{Admin, ByteSize};
use mc_index::{Command, Op, PutEndItem};
use mc_log::{EntryPayload, LogOptions, LogStore, Proposal, RaftLogReader as _, SledOptions};
use mc_tests::checker::Digest;
use mc_tests::{Cluster, ClusterBuilder, Ledger, Logged, Mix, Workload, tenant_key, until};

use crate::needs::Needs;
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
const MIX: Mix = Mix { put: 16, upsert: 6, pin: 2, get: 4, remove: 2, group: 3, ..Mix::NONE };

/// Quota of a tenant: a fraction of what it would have otherwise, and of the pool.
const QUOTA: ByteSize = ByteSize(6 << 20);
/// The same, where the watermarks of the full pool count for quotas, too: a tenant keeps 0.9 MiB, a quarter of what the pool does.
const QUOTA_OF_FULL_POOL: ByteSize = ByteSize(32 << 20);
/// Calls of engines with few reads. There are no bursts and no clears: a call that is dropped leaves the pin of its key uncertain.
const MIX_OF_TENANTS: Mix = Mix {
    put: 40,
    upsert: 20,
    pin: 10,
    get: 6,
    exist: 4,
    remove: 4,
    batch: 2,
    session: 4,
    group: 8,
    ..Mix::NONE
};

/// A cause of evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The pool is full.
    Pool,
    /// The pool has room, and two of three tenants are at their quotas.
    Tenants,
    /// The pool is full, and two of three tenants are at their quotas.
    PoolAndTenants,
}

impl Full {
    /// Whether the pool is full.
    pub(crate) fn is_of_pool(self) -> bool {
        matches!(self, Self::Pool | Self::PoolAndTenants)
    }

    /// Adds what makes the pool evict.
    pub(crate) fn workload(self, workload: Workload) -> Workload {
        let workload = workload.keys(KEYS).sizes(SIZES).ledger(Ledger::Unread);
        let quota = match self {
            Self::Pool => return workload.mix(MIX),
            Self::Tenants => QUOTA,
            Self::PoolAndTenants => QUOTA_OF_FULL_POOL,
        };
        let tenants = [("red", Some(quota)), ("blue", Some(quota)), ("", None)];
        workload.clients(3).tenants(tenants).mix(MIX_OF_TENANTS)
    }
}

pub(crate) fn cluster(cluster: ClusterBuilder) -> ClusterBuilder {
    cluster.segment("128mb").master_args(LEASE)
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

/// Ends the leader, and returns the puts and the evictions that its log tells of, and who needed room.
pub(crate) async fn logged(cluster: &mut Cluster) -> (Vec<Logged>, Needs) {
    let leader = cluster.leader().await;
    // Not with `kill -9`: an entry may be committed by the others before it is on this disk.
    cluster.masters[leader].terminate().await;
    let dir = cluster.master_dir(leader).join("log");
    let opened = LogStore::open_sled(dir, SledOptions::default(), LogOptions::default()).await;
    let (log, found) = opened.expect("the log of a master that has ended");
    assert!(found.purged.is_none(), "the log no longer begins with its first entry");
    let entries = log.reader().try_get_log_entries(..).await.expect("entries that can be read");
    log.close().await;
    let (mut replay, mut needs) = (Replay::new(), Needs::default());
    let mut logged = Vec::new();
    for entry in &entries {
        let evicted = replay.apply(entry);
        let EntryPayload::Normal(Proposal(bytes)) = &entry.payload else { continue };
        let op = Command::decode(bytes).expect("a command of this build").op;
        needs.applied(&evicted, replay.state());
        let name = |it: &Evicted| tenant_key(&it.tenant, &it.key);
        logged.extend(evicted.iter().map(|it| Logged::Evicted(name(it), Digest(it.object.checksum))));
        let written = |end: &PutEndItem| Logged::Written(Digest(end.checksum));
        match op {
            Op::PutEnd { items } => logged.extend(items.iter().map(written)),
            Op::PutEndProven { items } => logged.extend(items.iter().map(|item| written(&item.end))),
            _ => {}
        }
    }
    (logged, needs)
}
