//! The rules again, the naive way: everything in plain lists, every question answered by looking at all of them.
//!
//! Where to place is the one thing the model does not decide: it checks that a placement is right and adopts it.

use std::collections::{BTreeMap, BTreeSet};

use mc_index::{
    Command, EvictItem, GroupId, HeldRange, KeyHash, MountStore, Op, Pin, PinAction, PlacedReplica,
    PutEndItem, PutEnded, PutMode, PutStartItem, PutStarted, Quota, RemoveItem, Replication, Response,
    Settings, State, TenantName, TenantPolicy, allocation_order,
};
use mc_types::{ClusterTime, Code, PutId, SegmentEpoch, StoreId};

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
        self.mounted.get(&replica.store).is_some_and(|mount| mount.epoch == replica.epoch)
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

    /// Whether the answer was up to the placement.
    fn start(
        &mut self,
        index: u64,
        tenant: &str,
        item: &PutStartItem,
        answer: &PutStarted,
        suspects: &[StoreId],
        state: &State,
    ) -> bool {
        let key = (tenant.to_owned(), item.key.to_vec());
        let expected = self.start_code(&key, item, suspects);
        // Bytes of removed objects and of dropped stores may count as pinned until they are swept.
        let may_be_pins = answer.code == Code::NoAvailableHandle
            && self.pin(&key, item).is_hard()
            && (!self.cleared.is_empty() || state.needs_sweep());
        if may_be_pins && expected.is_some_and(|code| code != Code::Ok) {
            return false;
        }
        match expected {
            Some(code) => assert_eq!(answer.code, code, "{item:?}"),
            None if answer.code == Code::NoAvailableHandle => {}
            None if answer.code == Code::TenantQuotaExceeded => {
                let bytes = rounded(item.size) * u64::from(item.replicas);
                let most = self.usage(tenant, Count::Most);
                assert!(!allows(self.quota(tenant), most, bytes), "{item:?}");
                return false;
            }
            None => assert_eq!(answer.code, Code::Ok, "{item:?}"),
        }
        assert_eq!(answer.replicas.is_empty(), answer.code != Code::Ok);
        if answer.code != Code::Ok {
            return expected.is_none();
        }
        if expected == Some(Code::Ok) {
            assert_eq!(
                answer.replicas[..],
                self.puts[&item.put].replicas[..],
                "the same put, the same answer"
            );
            return false;
        }
        assert!(answer.replicas.len() <= usize::from(item.replicas));
        let mut stores = BTreeSet::new();
        for replica in &answer.replicas {
            assert!(self.is_mounted(replica) && stores.insert(replica.store), "{replica:?}");
            assert!(
                !suspects.contains(&replica.store) && !item.avoid.contains(&replica.store),
                "{replica:?}"
            );
            let bytes = self.mounted[&replica.store].segments[replica.segment as usize];
            assert!(replica.offset % 64 == 0 && replica.offset + rounded(item.size) <= bytes, "{replica:?}");
            assert_eq!((replica.len, replica.index), (item.size, allocation_order(TERM, index)));
            let taken_back = |held: &HeldRange| overlap(&held.place, replica);
            for held in self.held.iter().filter(|held| taken_back(held)) {
                assert!(self.is_tcp_only(held.place.store), "{held:?} is overwritten by {replica:?}");
            }
        }
        // Bytes of a removed object that were given to this put had been freed.
        let given = |cleared: &Cleared| answer.replicas.iter().any(|it| overlap(&cleared.place, it));
        self.cleared.retain(|cleared| !given(cleared));
        let deadline_max = ClusterTime(self.time.0 + self.settings.put_deadline_max_ms);
        let put = Put {
            pin: self.pin(&key, item),
            key,
            size: item.size,
            mode: item.mode,
            data_type: item.data_type,
            group: item.group,
            deadline: item.deadline.min(deadline_max),
            replicas: answer.replicas.to_vec(),
        };
        self.puts.insert(item.put, put);
        true
    }

    /// The code, unless it depends on what is free; `Ok` for a put that is in flight.
    fn start_code(&self, key: &Key, item: &PutStartItem, suspects: &[StoreId]) -> Option<Code> {
        if item.size == 0 || item.replicas == 0 || item.deadline <= self.time {
            return Some(Code::InvalidParams);
        }
        if item.key.is_empty() {
            return Some(Code::InvalidKey);
        }
        if self.puts.contains_key(&item.put) {
            return Some(Code::Ok);
        }
        if let Some((ended, _)) = self.ended.get(&item.put) {
            let failed = ended.code == Code::TransferFail;
            return Some(if failed { Code::PutGone } else { Code::ObjectAlreadyExists });
        }
        if self.visible(key).is_some_and(|object| object.version == item.put) {
            return Some(Code::ObjectAlreadyExists);
        }
        if item.mode == PutMode::IfAbsent && self.is_present(key, suspects) {
            return Some(Code::ObjectAlreadyExists);
        }
        let largest = self.mounted.values().flat_map(|m| &m.segments).map(|bytes| bytes / 64 * 64).max();
        if largest.is_some_and(|largest| item.size > largest) {
            return Some(Code::ObjectTooLarge);
        }
        let bytes = rounded(item.size) * u64::from(item.replicas);
        if self.pin(key, item).is_hard() && !self.may_pin(&key.0, bytes) {
            return Some(Code::NoAvailableHandle);
        }
        if self.settings.tenants == TenantPolicy::Registered
            && !key.0.is_empty()
            && !self.quotas.contains_key(&key.0)
        {
            return Some(Code::TenantNotRegistered);
        }
        if !allows(self.quota(&key.0), self.usage(&key.0, Count::Least), bytes) {
            return Some(Code::TenantQuotaExceeded);
        }
        None
    }

    /// The pin that the object of this put gets.
    fn pin(&self, key: &Key, item: &PutStartItem) -> Pin {
        let before = self.visible(key).map_or(Pin::NONE, |object| object.pin);
        match item.pin {
            PinAction::Preserve if before.soft_until().is_some_and(|until| until <= self.time) => Pin::NONE,
            PinAction::Preserve => before,
            PinAction::Soft { until } if Pin::soft(until).soft_until() > Some(self.time) => Pin::soft(until),
            PinAction::Soft { .. } | PinAction::Disable => Pin::NONE,
            PinAction::Hard => Pin::HARD,
        }
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

    /// Whether so many bytes more may be hard-pinned, as far as the model can tell: bytes of removed objects may still
    /// count.
    fn may_pin(&self, tenant: &str, bytes: u64) -> bool {
        let segments = self.mounted.values().flat_map(|mount| &mount.segments);
        let capacity = segments.map(|bytes| bytes / 64 * 64).sum();
        let limit = self.settings.hard_pin_limit;
        let own = |count| self.usage(tenant, count).2;
        let quota = self.quota(tenant).bytes;
        self.hard_pinned() + bytes <= limit.of(capacity)
            && (quota == 0 || own(Count::Least) + bytes <= limit.of(quota))
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

    /// Held bytes that the state gave to puts are no longer held. What is left must be what the state says.
    fn forgive_taken_back(&mut self, state: &State) {
        let still: Vec<HeldRange> = state.held().collect();
        let taken: Vec<_> = self.held.iter().filter(|held| !still.contains(held)).copied().collect();
        for held in taken {
            assert!(self.is_tcp_only(held.place.store), "{held:?} was taken back");
            self.held.retain(|other| *other != held);
        }
    }

    /// Fewer replicas than asked for is only right when no other store has an empty segment that is large enough, nor
    /// held bytes that can be taken back. A put that must have all replicas may be refused while some would fit.
    fn check_refusal(&self, item: &PutStartItem, answer: &PutStarted, suspects: &[StoreId], state: &State) {
        let refused = answer.code == Code::NoAvailableHandle;
        let short = refused || answer.code == Code::Ok && answer.replicas.len() < usize::from(item.replicas);
        // Bytes of removed objects and of dropped stores may count as pinned until they are swept.
        let unswept = !self.cleared.is_empty() || state.needs_sweep();
        let may_be_pins = refused && unswept && item.pin != PinAction::Disable;
        if !short || may_be_pins {
            return;
        }
        let has_room = |mount: &&MountStore| {
            !suspects.contains(&mount.store)
                && !item.avoid.contains(&mount.store)
                && answer.replicas.iter().all(|r| r.store != mount.store)
                && mount.segments.iter().enumerate().any(|(number, &bytes)| {
                    let here = |r: &PlacedReplica| {
                        (r.store, r.epoch, r.segment as usize) == (mount.store, mount.epoch, number)
                    };
                    let cleared = self.cleared.iter().any(|cleared| here(&cleared.place));
                    let empty = !cleared && !self.in_use().any(|r| here(&r));
                    let held = self.held.iter().any(|held| here(&held.place));
                    empty && bytes >= rounded(item.size)
                        || held && self.is_tcp_only(mount.store) && bytes / 64 * 64 >= item.size
                })
        };
        let room = self.mounted.values().filter(has_room).count();
        let needed = match item.replication {
            Replication::BestEffort => 1,
            Replication::Strict => usize::from(item.replicas),
        };
        assert!(room < needed, "{room} stores have room for {item:?}: {answer:?}");
        assert!(refused || item.replication == Replication::BestEffort, "{item:?}: {answer:?}");
    }

    fn end(&mut self, item: &PutEndItem, suspects: &[StoreId]) -> PutEnded {
        let answer = |code, replaced| PutEnded { code, replaced };
        let is_of = |key: &Key| KeyHash::of(&key.0, &key.1) == item.key;
        let Some(put) = self.puts.get(&item.put).cloned() else {
            if let Some((ended, _)) = self.ended.get(&item.put) {
                return ended.clone();
            }
            let mut named = self.objects.keys().filter(|key| is_of(key)).filter_map(|key| self.visible(key));
            let made = named.any(|object| object.version == item.put);
            return answer(if made { Code::Ok } else { Code::PutGone }, None);
        };
        let key = put.key.clone();
        if !is_of(&key) {
            return answer(Code::PutGone, None);
        }
        let written: Vec<_> = (0..)
            .zip(&put.replicas)
            .filter(|(at, replica)| !item.failed.contains(at) && self.is_mounted(replica))
            .map(|(_, replica)| *replica)
            .collect();
        let ended = if written.is_empty() {
            answer(Code::TransferFail, None)
        } else if put.mode == PutMode::IfAbsent && self.is_present(&key, suspects) {
            answer(Code::ObjectAlreadyExists, None)
        } else {
            let replaced = self.visible(&key).map(|object| object.version);
            self.hold(&key, item.reuse_at);
            let (size, checksum) = (put.size, item.checksum);
            let object = Object {
                version: item.put,
                size,
                checksum,
                reused: 0,
                pin: put.pin,
                data_type: put.data_type,
                group: put.group,
                replicas: written,
            };
            if let Some(group) = put.group {
                self.lost.entry(group).or_default().remove(&key);
            }
            self.objects.insert(key, object);
            answer(Code::Ok, replaced)
        };
        self.puts.remove(&item.put);
        self.ended.insert(item.put, (ended.clone(), put.deadline));
        ended
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

    /// Adopts the order of replicas whose put began before a `remove_all` and ended by this entry: they are younger than
    /// the objects that it removed. The state does that only while objects are left to sweep.
    fn adopt_order(&mut self, order: u64, state: &State) {
        for (key, object) in &mut self.objects {
            let Some(seen) = state.get(&key.0, &key.1) else { continue };
            for replica in &mut object.replicas {
                let same = |it: &&PlacedReplica| PlacedReplica { index: replica.index, ..**it } == *replica;
                if seen.replicas.iter().find(same).is_some_and(|it| it.index == order) {
                    replica.index = order;
                }
            }
        }
    }

    fn revoke(&mut self, put: PutId) -> Code {
        if self.ended.contains_key(&put) {
            return Code::InvalidWrite;
        }
        self.puts.remove(&put);
        Code::Ok
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
        if mount.segments.contains(&0) || mount.segments.is_empty() {
            return Code::InvalidParams;
        }
        if self.dead.contains(&(mount.store, mount.epoch)) {
            return Code::StoreEpochDead;
        }
        if let Some(old) = self.mounted.get(&mount.store).cloned() {
            if old.epoch != mount.epoch {
                self.drop_store(old.store, old.epoch);
            } else if old.segments != mount.segments {
                return Code::InvalidParams;
            }
        }
        self.mounted.insert(mount.store, mount.clone());
        Code::Ok
    }

    fn drop_store(&mut self, store: StoreId, epoch: SegmentEpoch) {
        if self.mounted.get(&store).is_some_and(|mount| mount.epoch == epoch) {
            self.mounted.remove(&store);
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

    /// The state must say what the model says.
    fn compare(&self, state: &State) {
        assert_eq!(state.time(), self.time);
        assert_eq!(*state.settings(), self.settings);
        assert_eq!(state.cluster_version(), self.cluster_version);
        assert_eq!(state.puts_in_flight(), self.puts.len() as u64);
        for &(store, epoch) in &self.dead {
            assert!(state.epoch_is_dead(store, epoch));
        }
        let mut visible = 0;
        for (key, object) in &self.objects {
            let live: Vec<_> = object.replicas.iter().copied().filter(|r| self.is_mounted(r)).collect();
            let seen = state.get(&key.0, &key.1);
            assert_eq!(seen.is_some(), !live.is_empty(), "{key:?}");
            if let Some(seen) = seen {
                visible += 1;
                assert_eq!(
                    (seen.version, seen.size, seen.checksum, seen.pin),
                    (object.version, object.size, object.checksum, object.pin)
                );
                assert_eq!((seen.data_type, seen.group), (object.data_type, object.group));
                assert_eq!(seen.replicas[..], live[..]);
            }
        }
        let swept = !state.needs_sweep();
        assert!(state.objects() == visible || !swept && state.objects() > visible, "objects are counted");
        for (id, put) in &self.puts {
            let seen = state.put(*id).expect("the put is in flight");
            assert_eq!((seen.tenant, seen.key), (put.key.0.as_bytes(), &put.key.1[..]));
            assert_eq!((seen.size, seen.mode, seen.deadline), (put.size, put.mode, put.deadline));
        }
        let mut held: Vec<_> = state.held().collect();
        let mut expected = self.held.clone();
        let order = |h: &HeldRange| (h.place.store, h.place.segment, h.place.offset);
        held.sort_by_key(order);
        expected.sort_by_key(order);
        assert_eq!(held, expected, "held bytes");
        let deadlines = self.puts.values().map(|p| p.deadline).chain(self.held.iter().map(|h| h.reuse_at));
        assert_eq!(state.next_deadline(), deadlines.min());
        self.compare_stores(state);
        let bytes =
            |ranges: &mut dyn Iterator<Item = PlacedReplica>| ranges.map(|r| rounded(r.len)).sum::<u64>();
        let held = bytes(&mut self.held.iter().map(|held| held.place));
        let usage = state.usage(&[]);
        let (live, pinned) = (bytes(&mut self.in_use()) - held, self.hard_pinned());
        let cleared = || self.cleared.iter().filter(|it| self.is_mounted(&it.place));
        let most = live + bytes(&mut cleared().map(|it| it.place));
        let most_pinned = pinned + bytes(&mut cleared().filter(|it| it.pin.is_hard()).map(|it| it.place));
        assert_eq!(usage.held, held);
        assert!((live..=most).contains(&usage.live) && (pinned..=most_pinned).contains(&usage.pinned));
        for (key, object) in self.objects.iter().filter(|(key, _)| self.visible(key).is_some()) {
            let found: Vec<_> = state.with_hash(KeyHash::of(&key.0, &key.1)).collect();
            let live = object.replicas.iter().filter(|r| self.is_mounted(r)).map(|r| r.store);
            assert_eq!(found.len(), 1, "{key:?}");
            assert_eq!((found[0].version, found[0].size), (object.version, object.size));
            assert_eq!(found[0].stores.to_vec(), live.collect::<Vec<_>>());
        }
        let ages: BTreeMap<_, _> =
            state.ages().map(|age| (age.key.to_u64(), (age.reused, age.put))).collect();
        let visible_objects = self.objects.iter().filter(|(key, _)| self.visible(key).is_some());
        let expected = visible_objects.map(|(key, object)| {
            let put = object.replicas.iter().map(|replica| replica.index).min().unwrap();
            (KeyHash::of(&key.0, &key.1).to_u64(), (object.reused, put))
        });
        assert_eq!(ages, expected.collect());
        assert_eq!(state.once_share(), self.once_share);
        self.compare_listing(state);
    }

    fn compare_tenants(&self, state: &State) {
        let mut names: BTreeSet<&str> = self.objects.keys().map(|key| &key.0[..]).collect();
        names.extend(self.puts.values().map(|put| &put.key.0[..]));
        names.extend(self.quotas.keys().map(|name| &name[..]));
        for view in state.tenants() {
            let name = std::str::from_utf8(view.name.as_bytes()).unwrap();
            assert_eq!(view.registered, self.quotas.get(name).copied());
            let known = names.contains(name) || !self.cleared.is_empty() || state.needs_sweep();
            assert!(known, "{name}");
        }
        for name in names {
            let all = state.tenant_usage(&TenantName::new(name.as_bytes())).all();
            let seen = (all.count, all.bytes, all.pinned);
            let (least, most) = (self.usage(name, Count::Least), self.usage(name, Count::Most));
            let between = |seen, least, most| (least..=most).contains(&seen);
            assert!(
                between(seen.0, least.0, most.0)
                    && between(seen.1, least.1, most.1)
                    && between(seen.2, least.2, most.2),
                "{seen:?} is not from {least:?} to {most:?}"
            );
            assert!(state.needs_sweep() || seen == least, "{seen:?} instead of {least:?}");
        }
        for (key, value) in &self.key_values {
            assert_eq!(state.key_value(key), Some(&value[..]));
        }
    }

    /// Notes a group that has neither visible members nor puts.
    fn note_if_forgotten(&mut self, group: GroupId) {
        let mut members = self.objects.iter().filter(|(_, object)| object.group == Some(group));
        let visible = members.any(|(key, _)| self.visible(key).is_some());
        if !visible && !self.puts.values().any(|put| put.group == Some(group)) {
            self.forgotten.insert(group);
        }
    }

    fn compare_groups(&mut self, state: &State) {
        let in_objects = self.objects.values().filter_map(|object| object.group);
        let groups: BTreeSet<GroupId> =
            in_objects.chain(self.puts.values().filter_map(|put| put.group)).collect();
        self.lost.retain(|group, _| groups.contains(group));
        for group in groups {
            self.note_if_forgotten(group);
            let of_group = || self.objects.iter().filter(|(_, object)| object.group == Some(group));
            let (visible, lost): (Vec<_>, Vec<_>) =
                of_group().partition(|(key, _)| self.visible(key).is_some());
            let joining = self.puts.values().filter(|put| put.group == Some(group)).count();
            let seen = state.group(group).unwrap_or_default();
            let mut members: Vec<_> =
                seen.members.iter().map(|member| (member.key.to_u64(), member.version)).collect();
            members.sort_unstable();
            let mut expected: Vec<_> = visible
                .iter()
                .map(|(key, object)| (KeyHash::of(&key.0, &key.1).to_u64(), object.version))
                .collect();
            expected.sort_unstable();
            assert_eq!((members, seen.joining as usize), (expected, joining));
            if !self.forgotten.contains(&group) {
                let mut all: BTreeSet<&Key> = lost.iter().map(|(key, _)| *key).collect();
                all.extend(self.lost.get(&group).into_iter().flatten());
                assert_eq!(seen.lost, all.len(), "{group:?}");
            }
        }
    }

    /// Pages of two keys name every visible object once.
    fn compare_listing(&self, state: &State) {
        for prefix in [&b""[..], b"kkk"] {
            let (mut listed, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let page = state.list("t", prefix, at, 2, usize::MAX);
                listed.extend(page.objects.into_iter().map(|object| (object.key, object.size)));
                from = page.next;
            }
            listed.sort();
            let visible = self.objects.iter().filter(|(key, _)| self.visible(key).is_some());
            let visible = visible.filter(|(key, _)| key.0 == "t" && key.1.starts_with(prefix));
            let mut expected: Vec<_> = visible.map(|(key, object)| (key.1.clone(), object.size)).collect();
            expected.sort();
            assert_eq!(listed, expected);
        }
    }

    fn compare_stores(&self, state: &State) {
        let mut ranges: Vec<_> = self.in_use().collect();
        ranges.sort_by_key(|r| (r.store, r.segment, r.offset));
        for pair in ranges.windows(2) {
            assert!(!overlap(&pair[0], &pair[1]), "{pair:?}");
        }
        assert_eq!(state.stores().count(), self.mounted.len());
        for store in state.stores() {
            let mount = &self.mounted[&store.store];
            assert_eq!((store.epoch, store.name, store.http), (mount.epoch, &*mount.name, &*mount.http));
            assert_eq!((store.endpoints, store.segments), (&mount.endpoints[..], &mount.segments[..]));
            let here = |r: &&PlacedReplica| r.store == store.store;
            let used: u64 = ranges.iter().filter(here).map(|r| rounded(r.len)).sum();
            let cleared = self.cleared.iter().map(|cleared| &cleared.place).filter(here);
            let most = used + cleared.map(|r| rounded(r.len)).sum::<u64>();
            assert!((used..=most).contains(&store.used), "used = objects + puts in flight + held + cleared");
            assert_eq!(store.capacity, mount.segments.iter().map(|bytes| bytes / 64 * 64).sum::<u64>());
            let objects = self.objects.values().flat_map(|object| &object.replicas);
            let objects = objects.filter(|r| here(r) && self.is_mounted(r)).count() as u64;
            let most = objects + self.cleared.iter().filter(|it| here(&&it.place)).count() as u64;
            assert!((objects..=most).contains(&store.objects));
        }
    }
}
