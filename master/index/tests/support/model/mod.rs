//! The rules again, the naive way: everything in plain lists, every question answered by looking at all of them.
//!
//! Where to place is the one thing the model does not decide: it checks that a placement is right and adopts it.

mod compare;
mod puts;

use std::collections::{BTreeMap, BTreeSet};

use mc_index::{
    Command, EvictItem, GroupId, HeldRange, KeyHash, MountStore, Op, Pin, PlacedReplica, PutEnded, Quota,
    RemoveItem, Response, Settings, State, allocation_order,
};
use mc_types::{ClusterTime, Code, GrantKey, PutId, PutMode, SegmentEpoch, StoreId};

use super::TERM;

type Key = (String, Vec<u8>);

/// Which replicas in dropped stores count: none, or all.
#[derive(Clone, Copy)]
enum Count {
    Least,
    Most,
}

fn allows(quota: Quota, (objects, used, _): (u64, u64, u64), bytes: u64) -> bool {
    (quota.objects == 0 || objects < quota.objects) && (quota.bytes == 0 || used + bytes <= quota.bytes)
}

#[derive(Clone, Debug)]
struct Object {
    version: PutId,
    size: u64,
    checksum: u64,
    reused: u32,
    pin: Pin,
    data_type: u8,
    group: Option<GroupId>,
    replicas: Vec<PlacedReplica>,
}

#[derive(Clone, Debug)]
struct Put {
    key: Key,
    size: u64,
    mode: PutMode,
    deadline: ClusterTime,
    pin: Pin,
    data_type: u8,
    group: Option<GroupId>,
    replicas: Vec<PlacedReplica>,
}

/// A replica of an object that was removed with all others, whose bytes are freed some time later.
#[derive(Clone, Copy, Debug)]
struct Cleared {
    place: PlacedReplica,
    reuse_at: ClusterTime,
    pin: Pin,
}

pub struct Model {
    time: ClusterTime,
    settings: Settings,
    cluster_version: u32,
    mounted: BTreeMap<StoreId, MountStore>,
    /// Grant keys that were replaced, and until when receipts under them count.
    earlier_keys: BTreeMap<StoreId, (GrantKey, ClusterTime)>,
    dead: BTreeSet<(StoreId, SegmentEpoch)>,
    objects: BTreeMap<Key, Object>,
    puts: BTreeMap<PutId, Put>,
    ended: BTreeMap<PutId, (PutEnded, ClusterTime)>,
    held: Vec<HeldRange>,
    once_share: Option<u32>,
    cleared: Vec<Cleared>,
    quotas: BTreeMap<String, Quota>,
    key_values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Members that were lost with their stores and replaced since in another group or in none.
    lost: BTreeMap<GroupId, BTreeSet<Key>>,
    /// Groups that had neither visible members nor puts at some time. How many lost members they remember depends on
    /// the sweep.
    forgotten: BTreeSet<GroupId>,
}

fn rounded(len: u64) -> u64 {
    len.div_ceil(64) * 64
}

fn overlap(a: &PlacedReplica, b: &PlacedReplica) -> bool {
    (a.store, a.epoch, a.segment) == (b.store, b.epoch, b.segment)
        && a.offset < b.offset + rounded(b.len)
        && b.offset < a.offset + rounded(a.len)
}

impl Model {
    pub fn new() -> Self {
        Self {
            time: ClusterTime(0),
            settings: Settings::default(),
            cluster_version: 0,
            mounted: BTreeMap::new(),
            earlier_keys: BTreeMap::new(),
            dead: BTreeSet::new(),
            objects: BTreeMap::new(),
            puts: BTreeMap::new(),
            ended: BTreeMap::new(),
            held: Vec::new(),
            once_share: None,
            cleared: Vec::new(),
            quotas: BTreeMap::new(),
            key_values: BTreeMap::new(),
            lost: BTreeMap::new(),
            forgotten: BTreeSet::new(),
        }
    }

    fn is_mounted(&self, replica: &PlacedReplica) -> bool {
        self.mounted
            .get(&replica.store)
            .is_some_and(|mount| mount.epoch == replica.epoch && mount.segments[replica.segment as usize] > 0)
    }

    fn is_tcp_only(&self, store: StoreId) -> bool {
        self.mounted.get(&store).is_some_and(|mount| mount.endpoints.iter().all(|e| e.transport == "tcp"))
    }

    fn visible(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key).filter(|object| object.replicas.iter().any(|r| self.is_mounted(r)))
    }

    fn is_present(&self, key: &Key, suspects: &[StoreId]) -> bool {
        let trusted = |r: &PlacedReplica| self.is_mounted(r) && !suspects.contains(&r.store);
        self.visible(key).is_some_and(|object| object.replicas.iter().any(trusted))
    }

    pub fn version(&self, key: &[u8]) -> Option<PutId> {
        self.visible(&("t".to_owned(), key.to_vec())).map(|object| object.version)
    }

    /// Applies the command, checks the state's answer, and the state after it.
    pub fn check(&mut self, index: u64, command: &Command, response: &Response, state: &State) {
        let bound = !matches!(
            command.op,
            Op::Tick
                | Op::SetSettings(_)
                | Op::SetClusterVersion(_)
                | Op::SetTenant { .. }
                | Op::SetKeyValue { .. }
                | Op::SetSecurity(_)
        );
        if bound && command.stamp.term != TERM {
            assert_eq!(*response, Response::WrongTerm);
            return;
        }
        self.time = self.time.max(command.stamp.now);
        let now = self.time;
        let ended: Vec<_> = self.puts.values().filter(|put| put.deadline <= now).map(|it| it.group).collect();
        self.puts.retain(|_, put| put.deadline > now);
        for group in ended.into_iter().flatten() {
            self.note_if_forgotten(group);
        }
        self.ended.retain(|_, (_, deadline)| *deadline > now);
        self.held.retain(|held| held.reuse_at > now);
        let suspects = &command.stamp.suspects;
        match (&command.op, response) {
            (Op::Tick, Response::Done) => {}
            (Op::PutStart { tenant, items }, Response::PutStarted(answers)) => {
                assert_eq!(items.len(), answers.len());
                let mut placed = Vec::new();
                for pair in items.iter().zip(answers) {
                    if self.start(index, tenant, pair.0, pair.1, suspects, state) {
                        placed.push(pair);
                    }
                }
                self.forgive_taken_back(state);
                for (item, answer) in placed {
                    self.check_refusal(item, answer, suspects, state);
                }
            }
            (Op::PutEnd { items }, Response::PutEnded(answers)) => {
                let expected: Vec<_> = items.iter().map(|item| self.end(item, suspects)).collect();
                assert_eq!(*answers, expected);
                self.adopt_order(allocation_order(TERM, index), state);
            }
            (Op::PutRevoke { puts }, Response::Codes(codes)) => {
                let expected: Vec<_> = puts.iter().map(|&put| self.revoke(put)).collect();
                assert_eq!(*codes, expected);
            }
            (Op::Remove { tenant, items }, Response::Codes(codes)) => {
                let expected: Vec<_> = items.iter().map(|item| self.remove(tenant, item)).collect();
                assert_eq!(*codes, expected);
            }
            (Op::Evict { items, reuse_at }, Response::Codes(codes)) => {
                assert_eq!(*codes, self.evict(items, *reuse_at));
            }
            (Op::RemoveAll { tenant, reuse_at }, Response::Removed(count)) => {
                self.remove_all(tenant, *reuse_at, *count);
            }
            (Op::DropReplicas { tenant, store, items }, Response::Codes(codes)) => {
                let drop = |item| self.drop_replicas(tenant, *store, item);
                let expected: Vec<_> = items.iter().map(drop).collect();
                assert_eq!(*codes, expected);
            }
            (Op::SetTenant { tenant, quota }, Response::Codes(codes)) => {
                self.set_tenant(tenant, *quota, codes[0]);
            }
            (Op::SetKeyValue { key, value }, Response::Codes(codes)) => {
                let code = match (key.is_empty(), value) {
                    (true, _) => Code::InvalidKey,
                    (false, None) if !self.key_values.contains_key(key) => Code::ObjectNotFound,
                    (false, _) => Code::Ok,
                };
                assert_eq!(codes[..], [code]);
                match value {
                    Some(value) if code == Code::Ok => {
                        self.key_values.insert(key.clone(), value.to_vec());
                    }
                    _ => drop(self.key_values.remove(key)),
                }
            }
            (Op::NoteReuse { keys, epoch, once_share }, Response::Done) => {
                self.once_share = Some(*once_share).filter(|share| *share > 0);
                for (key, object) in &mut self.objects {
                    if keys.contains(&KeyHash::of(&key.0, &key.1)) {
                        object.reused = object.reused.max(*epoch);
                    }
                }
            }
            (Op::MountStore(mount), Response::Codes(codes)) => assert_eq!(codes[..], [self.mount(mount)]),
            (Op::DropStore { store, epoch }, Response::Codes(codes)) => {
                self.drop_store(*store, *epoch);
                assert_eq!(codes[..], [Code::Ok]);
            }
            (Op::Sweep { .. }, Response::Swept { more }) => assert_eq!(*more, state.needs_sweep()),
            (Op::SetSettings(settings), Response::Done) => self.settings = settings.clone(),
            (Op::SetClusterVersion(version), Response::Done) => {
                self.cluster_version = self.cluster_version.max(*version);
            }
            (op, response) => panic!("{op:?} answered {response:?}"),
        }
        self.forgive_cleared(state);
        self.compare(state);
        self.compare_tenants(state);
        self.compare_groups(state);
    }

    fn hard_pinned(&self) -> u64 {
        let objects = self.objects.values().filter(|it| it.pin.is_hard()).flat_map(|it| &it.replicas);
        let puts = self.puts.values().filter(|it| it.pin.is_hard()).flat_map(|it| &it.replicas);
        objects
            .chain(puts)
            .filter(|replica| self.is_mounted(replica))
            .map(|replica| rounded(replica.len))
            .sum()
    }

    fn quota(&self, tenant: &str) -> Quota {
        self.quotas.get(tenant).copied().unwrap_or(self.settings.default_quota)
    }

    /// Objects and puts of a tenant, their bytes, and the hard-pinned ones of these. The sweep decides which of the
    /// replicas in dropped stores count.
    fn usage(&self, tenant: &str, count: Count) -> (u64, u64, u64) {
        let mut usage = (0, 0, 0);
        let mut add = |replicas: usize, size: u64, pin: Pin| {
            let bytes = rounded(size) * replicas as u64;
            usage = (usage.0 + 1, usage.1 + bytes, usage.2 + if pin.is_hard() { bytes } else { 0 });
        };
        for (_, object) in self.objects.iter().filter(|(key, _)| key.0 == tenant) {
            let live = object.replicas.iter().filter(|replica| self.is_mounted(replica)).count();
            match count {
                Count::Most => add(object.replicas.len(), object.size, object.pin),
                Count::Least if live > 0 => add(live, object.size, object.pin),
                Count::Least => {}
            }
        }
        for put in self.puts.values().filter(|put| put.key.0 == tenant) {
            add(put.replicas.len(), put.size, put.pin);
        }
        usage
    }

    /// Takes the object out; its bytes are held until then.
    fn hold(&mut self, key: &Key, reuse_at: ClusterTime) {
        let lost = self.visible(key).is_none();
        let Some(object) = self.objects.remove(key) else { return };
        if let Some(group) = object.group.filter(|_| lost) {
            self.lost.entry(group).or_default().insert(key.clone());
        }
        for replica in object.replicas {
            if reuse_at > self.time && self.is_mounted(&replica) {
                self.held.push(HeldRange { place: PlacedReplica { index: 0, ..replica }, reuse_at });
            }
        }
    }

    fn remove(&mut self, tenant: &str, item: &RemoveItem) -> Code {
        let key = (tenant.to_owned(), item.key.to_vec());
        match self.visible(&key) {
            None => Code::ObjectNotFound,
            Some(object) if object.version != item.version => Code::VersionChanged,
            Some(_) => {
                self.hold(&key, item.reuse_at);
                Code::Ok
            }
        }
    }

    fn evict(&mut self, items: &[EvictItem], reuse_at: ClusterTime) -> Vec<Code> {
        let is_named = |key: &Key, object: &Object| {
            let hash = KeyHash::of(&key.0, &key.1);
            items.iter().any(|item| item.key == hash && item.version == object.version)
        };
        let visible = || self.objects.iter().filter(|(key, _)| self.visible(key).is_some());
        let stays = |group: GroupId| {
            let mut members = visible().filter(|(_, object)| object.group == Some(group));
            members.any(|(key, object)| !is_named(key, object))
                || self.puts.values().any(|put| put.group == Some(group))
        };
        let verdicts: Vec<_> = items
            .iter()
            .map(|item| {
                let meant = |(key, object): &(&Key, &Object)| {
                    KeyHash::of(&key.0, &key.1) == item.key && object.version == item.version
                };
                let Some((key, object)) = visible().find(meant) else { return Err(Code::ObjectNotFound) };
                match object.group.is_some_and(stays) {
                    true => Err(Code::VersionChanged),
                    false => Ok(key.clone()),
                }
            })
            .collect();
        let evict = |verdict: Result<Key, Code>| match verdict {
            Ok(key) if self.objects.contains_key(&key) => {
                self.hold(&key, reuse_at);
                Code::Ok
            }
            Ok(_) => Code::ObjectNotFound,
            Err(code) => code,
        };
        verdicts.into_iter().map(evict).collect()
    }

    fn remove_all(&mut self, tenant: &str, reuse_at: ClusterTime, count: u64) {
        let all: Vec<Key> = self.objects.keys().filter(|key| key.0 == tenant).cloned().collect();
        let visible = all.iter().filter(|key| self.visible(key).is_some()).count() as u64;
        assert!((visible..=all.len() as u64).contains(&count), "{count} of {visible} to {}", all.len());
        for key in all {
            let Some(object) = self.objects.remove(&key) else { continue };
            let Object { pin, replicas, group, .. } = object;
            // Members that it had lost earlier are forgotten with the sweep.
            self.forgotten.extend(group);
            self.cleared.extend(replicas.into_iter().map(|place| Cleared { place, reuse_at, pin }));
        }
    }

    /// Bytes of cleared objects that the state has held, or has freed for good.
    fn forgive_cleared(&mut self, state: &State) {
        let swept = !state.needs_sweep();
        let cleared = std::mem::take(&mut self.cleared);
        for it in cleared {
            if !self.is_mounted(&it.place) {
                continue;
            }
            // A put of the same key may have replaced it before the sweep came, and holds its bytes for longer.
            let place = PlacedReplica { index: 0, ..it.place };
            let is_it = |held: &HeldRange| held.place == place && held.reuse_at >= it.reuse_at;
            let now_held = state.held().find(is_it).filter(|held| !self.held.contains(held));
            if let Some(held) = now_held {
                self.held.push(held);
            } else if !swept {
                self.cleared.push(it);
            } else {
                assert!(it.reuse_at <= self.time, "{it:?} was freed early");
            }
        }
    }

    fn drop_replicas(&mut self, tenant: &str, store: StoreId, item: &RemoveItem) -> Code {
        let key = (tenant.to_owned(), item.key.to_vec());
        let Some(object) = self.visible(&key).cloned() else { return Code::ObjectNotFound };
        if object.version != item.version {
            return Code::VersionChanged;
        }
        let there = |r: &&PlacedReplica| r.store == store && self.is_mounted(r);
        let dropped: Vec<_> = object.replicas.iter().filter(there).copied().collect();
        let kept: Vec<_> = object.replicas.iter().filter(|r| !dropped.contains(r)).copied().collect();
        if dropped.is_empty() {
            return Code::ObjectNotFound;
        }
        if !kept.iter().any(|replica| self.is_mounted(replica)) {
            self.hold(&key, item.reuse_at);
            return Code::Ok;
        }
        for replica in dropped.into_iter().filter(|_| item.reuse_at > self.time) {
            let place = PlacedReplica { index: 0, ..replica };
            self.held.push(HeldRange { place, reuse_at: item.reuse_at });
        }
        self.objects.insert(key, Object { replicas: kept, ..object });
        Code::Ok
    }

    fn set_tenant(&mut self, tenant: &str, quota: Option<Quota>, code: Code) {
        match quota {
            Some(quota) => {
                assert_eq!(code, Code::Ok);
                self.quotas.insert(tenant.to_owned(), quota);
            }
            None if !self.quotas.contains_key(tenant) => assert_eq!(code, Code::TenantNotRegistered),
            None => {
                let count = if code == Code::Ok { Count::Least } else { Count::Most };
                assert_eq!(self.usage(tenant, count).0 == 0, code == Code::Ok, "{code:?}");
                if code == Code::Ok {
                    self.quotas.remove(tenant);
                }
            }
        }
    }

    fn mount(&mut self, mount: &MountStore) -> Code {
        if mount.segments.iter().all(|bytes| *bytes == 0) {
            return Code::InvalidParams;
        }
        if self.dead.contains(&(mount.store, mount.epoch)) {
            return Code::StoreEpochDead;
        }
        if let Some(old) = self.mounted.get(&mount.store).cloned() {
            if old.epoch != mount.epoch {
                self.drop_store(old.store, old.epoch);
            } else {
                let at = |number: usize| mount.segments.get(number).copied();
                let kept = |(number, &old)| at(number).is_some_and(|new| new == old || new == 0);
                if !old.segments.iter().enumerate().all(kept) {
                    return Code::InvalidParams;
                }
                if self.cluster_version >= 4 && process(mount) < process(&old) {
                    return Code::InvalidParams;
                }
                if old.grant_key != mount.grant_key {
                    let was_replaced =
                        self.earlier_keys.get(&mount.store).is_some_and(|(key, _)| *key == mount.grant_key);
                    if self.cluster_version < 3 || was_replaced {
                        return Code::InvalidParams;
                    }
                    let until = ClusterTime(self.time.0 + 120_000);
                    self.earlier_keys.insert(mount.store, (old.grant_key, until));
                }
            }
        }
        self.mounted.insert(mount.store, mount.clone());
        let held = std::mem::take(&mut self.held);
        self.held = held.into_iter().filter(|held| self.is_mounted(&held.place)).collect();
        Code::Ok
    }

    fn drop_store(&mut self, store: StoreId, epoch: SegmentEpoch) {
        if self.mounted.get(&store).is_some_and(|mount| mount.epoch == epoch) {
            self.mounted.remove(&store);
            self.earlier_keys.remove(&store);
            self.dead.insert((store, epoch));
            self.held.retain(|held| held.place.store != store);
        }
    }

    /// Everything that is allocated in mounted epochs.
    fn in_use(&self) -> impl Iterator<Item = PlacedReplica> {
        let objects = self.objects.values().flat_map(|object| object.replicas.iter().copied());
        let puts = self.puts.values().flat_map(|put| put.replicas.iter().copied());
        let held = self.held.iter().map(|held| held.place);
        objects.chain(puts).chain(held).filter(|replica| self.is_mounted(replica))
    }

    /// Notes a group that has neither visible members nor puts.
    fn note_if_forgotten(&mut self, group: GroupId) {
        let mut members = self.objects.iter().filter(|(_, object)| object.group == Some(group));
        let visible = members.any(|(key, _)| self.visible(key).is_some());
        if !visible && !self.puts.values().any(|put| put.group == Some(group)) {
            self.forgotten.insert(group);
        }
    }
}

/// The number of the process that mounts, among those of the epoch.
fn process(mount: &MountStore) -> u64 {
    let said = mount
        .endpoints
        .iter()
        .flat_map(|endpoint| &endpoint.attributes)
        .find(|(name, _)| name == "incarnation");
    said.map_or(1, |(_, number)| number.parse().unwrap())
}
