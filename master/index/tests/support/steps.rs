//! Random command sequences: steps name keys, puts and stores by small numbers, so that they meet.

use mc_index::{
    Command, EvictItem, GroupId, KeyHash, Op, PutEndItem, PutStartItem, Quota, RemoveItem, Settings, Stamp,
    TenantPolicy,
};
use mc_types::{
    ClusterTime, GrantKey, PinAction, PutId, PutMode, Replication, STORE_INCARNATION, SegmentEpoch, StoreId,
};
use proptest::prelude::*;

use super::{TERM, endpoint, mount};

const KEYS: u8 = 10;
const TENANT: &str = "t";
const STORES: u64 = 4;
const SIZES: [u64; 6] = [1, 64, 1000, 4096, 70_000, 1 << 20];

/// The commands of one log entry.
#[derive(Clone, Debug)]
pub struct Step {
    /// Time since the entry before.
    pub ms: u64,
    pub seed: u64,
    /// Bit per store.
    pub suspects: u8,
    /// Stamped by another term's leader.
    pub stale: bool,
    pub act: Act,
}

#[derive(Clone, Debug)]
pub enum Act {
    Tick,
    Start(Vec<Start>),
    End(Vec<End>),
    Revoke(Vec<u8>),
    Remove(Vec<Remove>),
    Evict { items: Vec<Remove>, lease: u64 },
    Note { keys: Vec<u8>, epoch: u32, once_share: u32 },
    RemoveAll { lease: u64 },
    DropReplicas { store: u64, items: Vec<Remove> },
    Tenant(Option<(u64, u64)>),
    KeyValue { key: u8, value: Option<u8> },
    Mount { store: u64, epoch: u64, layout: u8, rdma: bool, renamed: bool, key: u8, process: u64 },
    Drop { store: u64, epoch: u64 },
    Sweep(u32),
    Settings { put_deadline_max_ms: u64, registered: bool, objects: u64 },
    Version(u32),
}

#[derive(Clone, Debug)]
pub struct Start {
    /// Below the number of puts so far: that one again. Else a new one.
    put: u8,
    key: u8,
    size: u8,
    upsert: bool,
    replicas: u8,
    deadline: u64,
    preferred: Option<u64>,
    avoid: Option<u64>,
    pin: u8,
    strict: bool,
    data_type: u8,
    /// 0 for none.
    group: u8,
}

#[derive(Clone, Debug)]
pub struct End {
    /// Counted from the newest.
    put: u8,
    wrong_key: bool,
    failed: u8,
    lease: u64,
}

#[derive(Clone, Debug)]
pub struct Remove {
    key: u8,
    wrong_version: bool,
    lease: u64,
}

fn lease() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..3000u64, Just(20_000)]
}

fn start() -> impl Strategy<Value = Start> {
    let put = prop_oneof![1 => 0..4u8, 6 => Just(u8::MAX)];
    // Those of a batch mostly come due together.
    let deadline = prop_oneof![1 => 0..300u64, 2 => 1000..60_000u64, 4 => Just(2_000)];
    let sizes = prop_oneof![8 => 0..5u8, 1 => 5..7u8];
    let store = || prop::option::weighted(0.2, 1..=STORES);
    let tags = (0..8u8, prop::bool::weighted(0.2), 0..3u8, 0..4u8);
    (put, 0..KEYS, sizes, any::<bool>(), 0..4u8, deadline, store(), store(), tags).prop_map(
        |(put, key, size, upsert, replicas, deadline, preferred, avoid, tags)| {
            let replicas = replicas.max(u8::from(key > 0));
            let (pin, strict, data_type, group) = tags;
            Start {
                put,
                key,
                size,
                upsert,
                replicas,
                deadline,
                preferred,
                avoid,
                pin,
                strict,
                data_type,
                group,
            }
        },
    )
}

fn act() -> impl Strategy<Value = Act> {
    let end = (0..12u8, prop::bool::weighted(0.05), 0..16u8, lease()).prop_map(
        |(put, wrong_key, failed, lease)| {
            // Most writes succeed.
            let failed = if failed < 12 { 0 } else { failed & 7 };
            End { put, wrong_key, failed, lease }
        },
    );
    let remove = || {
        (0..KEYS, prop::bool::weighted(0.2), lease()).prop_map(|(key, wrong_version, lease)| Remove {
            key,
            wrong_version,
            lease,
        })
    };
    let process = prop_oneof![6 => Just(1u64), 1 => 2..4u64];
    let mounted = (
        1..=STORES,
        0..6u64,
        0..4u8,
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.1),
        grant_key(),
        process,
    );
    prop_oneof![
        4 => Just(Act::Tick),
        24 => prop::collection::vec(start(), 1..5).prop_map(Act::Start),
        20 => prop::collection::vec(end, 1..5).prop_map(Act::End),
        3 => prop::collection::vec(0..8u8, 1..3).prop_map(Act::Revoke),
        8 => prop::collection::vec(remove(), 1..4).prop_map(Act::Remove),
        6 => (prop::collection::vec(remove(), 1..4), lease())
            .prop_map(|(items, lease)| Act::Evict { items, lease }),
        3 => (prop::collection::vec(0..KEYS, 0..4), 0..5u32, 0..3u32)
            .prop_map(|(keys, epoch, once_share)| Act::Note { keys, epoch, once_share }),
        8 => mounted.prop_map(|(store, epoch, layout, rdma, renamed, key, process)| {
            Act::Mount { store, epoch, layout, rdma, renamed, key, process }
        }),
        2 => (1..=STORES, 0..6u64).prop_map(|(store, epoch)| Act::Drop { store, epoch }),
        4 => (0..5u32).prop_map(Act::Sweep),
        1 => (1000..100_000u64, prop::bool::weighted(0.2), prop_oneof![3 => Just(0), 1 => 1..8u64]).prop_map(
            |(put_deadline_max_ms, registered, objects)| Act::Settings {
                put_deadline_max_ms,
                registered,
                objects,
            }
        ),
        1 => lease().prop_map(|lease| Act::RemoveAll { lease }),
        3 => (1..=STORES, prop::collection::vec(remove(), 1..4))
            .prop_map(|(store, items)| Act::DropReplicas { store, items }),
        2 => prop::option::of((prop_oneof![Just(0), 5_000..200_000u64], 0..8u64)).prop_map(Act::Tenant),
        1 => (0..3u8, prop::option::of(any::<u8>()))
            .prop_map(|(key, value)| Act::KeyValue { key, value }),
        1 => (0..5u32).prop_map(Act::Version),
    ]
}

/// Byte of which a grant key consists: mostly that of other mounts.
fn grant_key() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(7), 1 => 8..10u8]
}

pub fn steps(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let suspects = prop_oneof![3 => Just(0u8), 1 => 0..16u8];
    let step = (0..800u64, any::<u64>(), suspects, prop::bool::weighted(0.03), act())
        .prop_map(|(ms, seed, suspects, stale, act)| Step { ms, seed, suspects, stale, act });
    prop::collection::vec(step, count)
}

/// Turns steps into commands, remembering the puts so far.
pub struct Script {
    now: u64,
    puts: Vec<(PutId, Vec<u8>, u64)>,
}

impl Script {
    pub fn new() -> Self {
        Self { now: 0, puts: Vec::new() }
    }

    /// `seen` is the version of a key as the leader sees it.
    pub fn command(&mut self, step: &Step, seen: impl Fn(&[u8]) -> Option<PutId>) -> Command {
        self.now += step.ms;
        let suspects =
            (1..=STORES).filter(|&store| step.suspects >> (store - 1) & 1 == 1).map(StoreId).collect();
        let term = if step.stale { TERM - 1 } else { TERM };
        let stamp = Stamp { now: ClusterTime(self.now), term, seed: step.seed, suspects };
        Command { stamp, op: self.op(&step.act, seen) }
    }

    fn op(&mut self, act: &Act, seen: impl Fn(&[u8]) -> Option<PutId>) -> Op {
        let tenant = TENANT.to_owned();
        match act {
            Act::Tick => Op::Tick,
            Act::Start(items) => {
                let items = items.iter().map(|item| self.start(item)).collect();
                Op::PutStart { tenant, items }
            }
            Act::End(items) => {
                let items = items.iter().map(|item| self.end(item)).collect();
                Op::PutEnd { items }
            }
            Act::Revoke(puts) => Op::PutRevoke { puts: puts.iter().map(|&put| self.recent(put).0).collect() },
            Act::Remove(items) => {
                Op::Remove { tenant, items: items.iter().map(|item| self.remove(item, &seen)).collect() }
            }
            Act::Evict { items, lease } => {
                let evict = |item: &Remove| {
                    let key = key(item.key);
                    let version = if item.wrong_version { None } else { seen(&key) };
                    EvictItem { key: KeyHash::of(TENANT, &key), version: version.unwrap_or(PutId(u128::MAX)) }
                };
                Op::Evict { items: items.iter().map(evict).collect(), reuse_at: self.after(*lease) }
            }
            Act::Note { keys, epoch, once_share } => {
                let keys = keys.iter().map(|nth| KeyHash::of(TENANT, &key(*nth))).collect();
                Op::NoteReuse { keys, epoch: *epoch, once_share: *once_share }
            }
            &Act::Mount { store, epoch, layout, rdma, renamed, key, process } => {
                let layouts: [&[u64]; 4] = [&[1 << 20], &[150_000, 300_000], &[8192], &[40_000, 0]];
                let mut mount = mount(store, epoch, layouts[usize::from(layout)]);
                // Segments come and go, in an order in which some mounts are refused.
                if epoch < 5 {
                    mount.segments = layouts[(epoch % 3) as usize].to_vec();
                    match layout {
                        0 => {}
                        1 => mount.segments.push(20_000),
                        2 => mount.segments.extend([20_000, 64_000]),
                        _ => {
                            mount.segments[0] = 0;
                            mount.segments.push(20_000);
                        }
                    }
                }
                if rdma {
                    mount.endpoints.insert(0, endpoint("rdma"));
                }
                if renamed {
                    mount.name.push('x');
                }
                mount.grant_key = GrantKey([key; 32]);
                if process > 1 {
                    let number = (STORE_INCARNATION.to_owned(), process.to_string());
                    mount.endpoints[0].attributes.push(number);
                }
                Op::MountStore(mount)
            }
            &Act::Drop { store, epoch } => {
                Op::DropStore { store: StoreId(store), epoch: SegmentEpoch(epoch) }
            }
            &Act::Sweep(limit) => Op::Sweep { limit },
            &Act::Settings { put_deadline_max_ms, registered, objects } => {
                let tenants = if registered { TenantPolicy::Registered } else { TenantPolicy::Any };
                let default_quota = Quota { bytes: 0, objects };
                Op::SetSettings(Settings {
                    put_deadline_max_ms,
                    tenants,
                    default_quota,
                    ..Settings::default()
                })
            }
            &Act::RemoveAll { lease } => Op::RemoveAll { tenant, reuse_at: self.after(lease) },
            Act::DropReplicas { store, items } => {
                let items = items.iter().map(|item| self.remove(item, &seen)).collect();
                Op::DropReplicas { tenant, store: StoreId(*store), items }
            }
            &Act::Tenant(quota) => {
                let quota = quota.map(|(bytes, objects)| Quota { bytes, objects });
                Op::SetTenant { tenant, quota }
            }
            &Act::KeyValue { key: nth, value } => {
                Op::SetKeyValue { key: key(nth), value: value.map(|value| vec![value].into()) }
            }
            &Act::Version(version) => Op::SetClusterVersion(version),
        }
    }

    fn remove(&self, item: &Remove, seen: impl Fn(&[u8]) -> Option<PutId>) -> RemoveItem {
        let key = key(item.key);
        let version = if item.wrong_version { None } else { seen(&key) };
        RemoveItem { key, version: version.unwrap_or(PutId(u128::MAX)), reuse_at: self.after(item.lease) }
    }

    fn after(&self, ms: u64) -> ClusterTime {
        ClusterTime(if ms == 0 { 0 } else { self.now + ms })
    }

    /// The nth newest put; one that never was when there are not so many.
    fn recent(&self, nth: u8) -> (PutId, Vec<u8>) {
        let nth = self.puts.len().checked_sub(1 + usize::from(nth));
        nth.map_or((PutId(u128::MAX), key(0)), |nth| (self.puts[nth].0, self.puts[nth].1.clone()))
    }

    fn start(&mut self, item: &Start) -> PutStartItem {
        let again = self.puts.len().checked_sub(1 + usize::from(item.put)).map(|nth| self.puts[nth].clone());
        let size = SIZES.get(usize::from(item.size)).copied().unwrap_or(0);
        let (put, key, size) = again.unwrap_or_else(|| {
            let put = (PutId(1 + self.puts.len() as u128), key(item.key), size);
            self.puts.push(put.clone());
            put
        });
        PutStartItem {
            put,
            key: key.into(),
            size,
            mode: if item.upsert { PutMode::Upsert } else { PutMode::IfAbsent },
            replicas: item.replicas,
            deadline: ClusterTime(self.now + item.deadline),
            preferred: item.preferred.map(StoreId).into_iter().collect(),
            avoid: item.avoid.map(StoreId).into_iter().collect(),
            pin: match item.pin {
                0 => PinAction::Hard,
                1 => PinAction::Disable,
                2 => PinAction::Soft(ClusterTime(self.now + item.deadline)),
                _ => PinAction::Preserve,
            },
            replication: if item.strict { Replication::Strict } else { Replication::BestEffort },
            data_type: item.data_type,
            group: (item.group > 0).then(|| GroupId::of(TENANT, &[item.group])),
        }
    }

    fn end(&self, item: &End) -> PutEndItem {
        let (put, right) = self.recent(item.put);
        PutEndItem {
            put,
            key: KeyHash::of(TENANT, &if item.wrong_key { key(KEYS) } else { right }),
            checksum: item.lease ^ 0xabc,
            failed: (0..3u8).filter(|at| item.failed >> at & 1 == 1).collect(),
            reuse_at: self.after(item.lease),
        }
    }
}

fn key(nth: u8) -> Vec<u8> {
    // Number zero is empty, which is refused.
    vec![b'k'; usize::from(nth)]
}
