//! Answers of `apply` in each cluster version that a release has, held fixed: builds of two releases apply the same
//! entries while a cluster is upgraded.

use crate::support::{Rig, end, endpoint, mount, snapshot, start};
use mc_index::{
    EvictItem, GroupId, KeyHash, MountStore, Op, PutStartItem, Quota, RemoveItem, Settings, TenantPolicy,
};
use mc_types::{ClusterTime, PinAction, PutId, PutMode, Replication, SegmentEpoch, StoreId};
use xxhash_rust::xxh3::Xxh3;

/// Digest of what thousands of random entries answered and left behind, by cluster version. A version gets its line
/// once a release has it.
const ANSWERS: [(u32, u64); 1] = [(1, 11_480_789_858_908_233_238)];

#[test]
fn apply_answers_in_a_released_cluster_version_as_it_did() {
    for (version, released) in ANSWERS {
        let digest = answers(version);
        assert_eq!(
            digest, released,
            "\n`apply` gives other answers than the released builds of cluster version {version}: their masters would \
             diverge from this build's during a rolling upgrade. Decide by `self.cluster_version`: the old answer \
             while it is {version}, the new one from the next version on.\n"
        );
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Clients and a leader that propose entries at random.
struct Proposer {
    random: Random,
    rig: Rig,
    /// Every put so far, with the number of its key.
    puts: Vec<u64>,
}

fn answers(version: u32) -> u64 {
    let mut it = Proposer { random: Random(7), rig: Rig::new(), puts: Vec::new() };
    let mut digest = Xxh3::new();
    it.rig.apply(Op::SetClusterVersion(version));
    for _ in 0..6_000 {
        it.rig.now += it.random.below(300);
        it.rig.suspects = if it.random.one_in(5) { vec![it.store()] } else { vec![] };
        let op = it.op();
        digest.update(format!("{:?}", it.rig.apply(op)).as_bytes());
    }
    digest.update(&snapshot(&it.rig.state));
    digest.digest()
}

fn key(nth: u64) -> String {
    format!("key {nth}")
}

impl Proposer {
    fn store(&mut self) -> StoreId {
        StoreId(1 + self.random.below(4))
    }

    fn lease(&mut self) -> ClusterTime {
        let lease = [0, 0, 2_000, 20_000][self.random.below(4) as usize];
        ClusterTime(if lease == 0 { 0 } else { self.rig.now + lease })
    }

    fn op(&mut self) -> Op {
        let tenant = String::new();
        let count = 1 + self.random.below(6);
        match self.random.below(60) {
            0..20 => Op::PutStart { tenant, items: (0..count).map(|_| self.start()).collect() },
            20..38 => {
                let put = |it: &mut Self| {
                    let back = it.random.below(12).min(it.puts.len() as u64 - 1);
                    let put = it.puts.len() as u64 - back;
                    let key = key(it.puts[put as usize - 1]);
                    let failed = if it.random.one_in(9) {
                        [it.random.below(2) as u8][..].into()
                    } else {
                        [][..].into()
                    };
                    mc_index::PutEndItem { failed, reuse_at: it.lease(), ..end(u128::from(put), &key) }
                };
                if self.puts.is_empty() {
                    return Op::Tick;
                }
                Op::PutEnd { items: (0..count).map(|_| put(self)).collect() }
            }
            38..40 => {
                Op::PutRevoke { puts: vec![PutId(u128::from(self.random.below(self.puts.len() as u64)))] }
            }
            40..44 => Op::Remove { tenant, items: (0..count).map(|_| self.remove()).collect() },
            44..48 => {
                let reuse_at = self.lease();
                let items = (0..count).map(|_| self.remove());
                let evict = |it: RemoveItem| EvictItem { key: KeyHash::of("", &it.key), version: it.version };
                Op::Evict { items: items.map(evict).collect(), reuse_at }
            }
            48..50 => {
                let keys =
                    (0..count).map(|_| KeyHash::of("", key(self.random.below(16)).as_bytes())).collect();
                Op::NoteReuse { keys, epoch: self.random.below(9) as u32, once_share: 7 }
            }
            50 if self.random.one_in(4) => Op::RemoveAll { tenant, reuse_at: self.lease() },
            51 => {
                let store = self.store();
                Op::DropReplicas { tenant, store, items: (0..count).map(|_| self.remove()).collect() }
            }
            52..54 => Op::MountStore(self.mount()),
            54 => {
                let (store, epoch) = (self.store(), SegmentEpoch(self.random.below(40)));
                Op::DropStore { store, epoch }
            }
            55..57 => Op::Sweep { limit: self.random.below(5) as u32 },
            57 => {
                let (bytes, objects) = (100_000 * self.random.below(9), self.random.below(30));
                let quota = (!self.random.one_in(3)).then_some(Quota { bytes, objects });
                Op::SetTenant { tenant, quota }
            }
            58 => {
                let value = (!self.random.one_in(3)).then(|| vec![1, 2, 3].into());
                Op::SetKeyValue { key: vec![self.random.below(5) as u8], value }
            }
            59 => Op::SetSettings(Settings {
                tenants: if self.random.one_in(9) { TenantPolicy::Registered } else { TenantPolicy::Any },
                max_objects: if self.random.one_in(3) { 12 } else { 0 },
                max_index_bytes: if self.random.one_in(3) { 4_000 } else { 0 },
                ..Settings::default()
            }),
            _ => Op::Tick,
        }
    }

    fn start(&mut self) -> PutStartItem {
        let nth = self.random.below(16);
        self.puts.push(nth);
        let size = [1, 64, 1000, 4096, 20_000, 70_000][self.random.below(6) as usize];
        let until = ClusterTime(self.rig.now + self.random.below(30_000));
        let mut stores =
            |n: u64| (0..self.random.below(n)).map(|_| StoreId(1 + self.random.below(4))).collect::<Vec<_>>();
        let (preferred, avoid) = (stores(3), stores(2));
        PutStartItem {
            mode: if self.random.one_in(2) { PutMode::Upsert } else { PutMode::IfAbsent },
            replicas: 1 + self.random.below(3) as u8,
            deadline: ClusterTime(self.rig.now + 500 + self.random.below(20_000)),
            preferred: preferred.into(),
            avoid: avoid.into(),
            pin: match self.random.below(8) {
                0 => PinAction::Hard,
                1 => PinAction::Soft(until),
                2 => PinAction::Disable,
                _ => PinAction::Preserve,
            },
            replication: if self.random.one_in(4) { Replication::Strict } else { Replication::BestEffort },
            group: self.random.one_in(3).then(|| GroupId::of("", &[self.random.below(3) as u8])),
            ..start(self.puts.len() as u128, &key(nth), size)
        }
    }

    /// A version that is there, as a leader sees it, or one that is not.
    fn remove(&mut self) -> RemoveItem {
        let key = key(self.random.below(16));
        let version = self.rig.version(&key).filter(|_| !self.random.one_in(9)).unwrap_or(999_999);
        RemoveItem { key: key.into_bytes(), version: PutId(version), reuse_at: self.lease() }
    }

    fn mount(&mut self) -> MountStore {
        let segments: [&[u64]; 3] = [&[200_000], &[100_000, 150_000], &[64 * 1024, 8192]];
        let segments = segments[self.random.below(3) as usize];
        let mut mount = mount(self.store().0, self.random.below(40), segments);
        if self.random.one_in(4) {
            mount.endpoints.insert(0, endpoint("rdma"));
        }
        mount
    }
}
