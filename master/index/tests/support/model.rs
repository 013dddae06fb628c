//! The rules again, the naive way: everything in plain lists, every question answered by looking at all of them.
//!
//! Where to place is the one thing the model does not decide: it checks that a placement is right and adopts it.

use std::collections::{BTreeMap, BTreeSet};

use mc_index::{
    Command, EvictItem, HeldRange, KeyHash, MountStore, Op, Pin, PinAction, PlacedReplica, PutEndItem,
    PutEnded, PutMode, PutStartItem, PutStarted, RemoveItem, Response, Settings, State, allocation_order,
};
use mc_types::{ClusterTime, Code, PutId, SegmentEpoch, StoreId};

use super::TERM;

type Key = (String, Vec<u8>);

#[derive(Clone, Debug)]
struct Object {
    version: PutId,
    size: u64,
    checksum: u64,
    reused: u32,
    pin: Pin,
    replicas: Vec<PlacedReplica>,
}

#[derive(Clone, Debug)]
struct Put {
    key: Key,
    size: u64,
    mode: PutMode,
    deadline: ClusterTime,
    pin: Pin,
    replicas: Vec<PlacedReplica>,
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
        let bound = !matches!(command.op, Op::Tick | Op::SetSettings(_) | Op::SetClusterVersion(_));
        if bound && command.stamp.term != TERM {
            assert_eq!(*response, Response::WrongTerm);
            return;
        }
        self.time = self.time.max(command.stamp.now);
        let now = self.time;
        self.puts.retain(|_, put| put.deadline > now);
        self.ended.retain(|_, (_, deadline)| *deadline > now);
        self.held.retain(|held| held.reuse_at > now);
        let suspects = &command.stamp.suspects;
        match (&command.op, response) {
            (Op::Tick, Response::Done) => {}
            (Op::PutStart { tenant, items }, Response::PutStarted(answers)) => {
                assert_eq!(items.len(), answers.len());
                let mut placed = Vec::new();
                for pair in items.iter().zip(answers) {
                    if self.start(index, tenant, pair.0, pair.1, suspects) {
                        placed.push(pair);
                    }
                }
                self.forgive_taken_back(state);
                for (item, answer) in placed {
                    self.check_refusal(item, answer, suspects);
                }
            }
            (Op::PutEnd { items }, Response::PutEnded(answers)) => {
                let expected: Vec<_> = items.iter().map(|item| self.end(item, suspects)).collect();
                assert_eq!(*answers, expected);
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
                let expected: Vec<_> = items.iter().map(|item| self.evict(item, *reuse_at)).collect();
                assert_eq!(*codes, expected);
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
        self.compare(state);
    }

    /// Whether the answer was up to the placement.
    fn start(
        &mut self,
        index: u64,
        tenant: &str,
        item: &PutStartItem,
        answer: &PutStarted,
        suspects: &[StoreId],
    ) -> bool {
        let key = (tenant.to_owned(), item.key.to_vec());
        let expected = self.start_code(&key, item, suspects);
        match expected {
            Some(code) => assert_eq!(answer.code, code, "{item:?}"),
            None if answer.code == Code::NoAvailableHandle => {}
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
        let deadline_max = ClusterTime(self.time.0 + self.settings.put_deadline_max_ms);
        let put = Put {
            pin: self.pin(&key, item),
            key,
            size: item.size,
            mode: item.mode,
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
        if self.pin(key, item).is_hard() && !self.may_pin(item.size * u64::from(item.replicas)) {
            return Some(Code::NoAvailableHandle);
        }
        let largest = self.mounted.values().flat_map(|m| &m.segments).map(|bytes| bytes / 64 * 64).max();
        (largest.is_some_and(|largest| item.size > largest)).then_some(Code::ObjectTooLarge)
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

    fn may_pin(&self, bytes: u64) -> bool {
        let segments = self.mounted.values().flat_map(|mount| &mount.segments);
        let capacity = segments.map(|bytes| bytes / 64 * 64).sum();
        self.hard_pinned() + bytes <= self.settings.hard_pin_limit.of(capacity)
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
    /// held bytes that can be taken back.
    fn check_refusal(&self, item: &PutStartItem, answer: &PutStarted, suspects: &[StoreId]) {
        let short = answer.code == Code::NoAvailableHandle
            || answer.code == Code::Ok && answer.replicas.len() < usize::from(item.replicas);
        if !short {
            return;
        }
        let others = self.mounted.values().filter(|mount| {
            !suspects.contains(&mount.store)
                && !item.avoid.contains(&mount.store)
                && answer.replicas.iter().all(|r| r.store != mount.store)
        });
        for mount in others {
            for (number, &bytes) in mount.segments.iter().enumerate() {
                let here = |r: &PlacedReplica| {
                    (r.store, r.epoch, r.segment as usize) == (mount.store, mount.epoch, number)
                };
                let empty = !self.in_use().any(|r| here(&r));
                assert!(!empty || bytes < rounded(item.size), "room in {mount:?} for {item:?}: {answer:?}");
                let held = self.held.iter().any(|held| here(&held.place));
                let helps = held && self.is_tcp_only(mount.store) && bytes / 64 * 64 >= item.size;
                assert!(!helps, "held bytes in {mount:?} for {item:?}");
            }
        }
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
            let object =
                Object { version: item.put, size, checksum, reused: 0, pin: put.pin, replicas: written };
            self.objects.insert(key, object);
            answer(Code::Ok, replaced)
        };
        self.puts.remove(&item.put);
        self.ended.insert(item.put, (ended.clone(), put.deadline));
        ended
    }

    /// Takes the object out; its bytes are held until then.
    fn hold(&mut self, key: &Key, reuse_at: ClusterTime) {
        let Some(object) = self.objects.remove(key) else { return };
        for replica in object.replicas {
            if reuse_at > self.time && self.is_mounted(&replica) {
                self.held.push(HeldRange { place: PlacedReplica { index: 0, ..replica }, reuse_at });
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

    fn evict(&mut self, item: &EvictItem, reuse_at: ClusterTime) -> Code {
        let named = |key: &&Key| KeyHash::of(&key.0, &key.1) == item.key;
        let key = self.objects.keys().find(named).cloned();
        let Some(key) = key.filter(|key| self.visible(key).is_some_and(|it| it.version == item.version))
        else {
            return Code::ObjectNotFound;
        };
        self.hold(&key, reuse_at);
        Code::Ok
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
        assert_eq!(
            (usage.held, usage.live, usage.pinned),
            (held, bytes(&mut self.in_use()) - held, self.hard_pinned()),
            "bytes by their state"
        );
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

    /// Pages of two keys name every visible object once.
    fn compare_listing(&self, state: &State) {
        for prefix in [&b""[..], b"kkk"] {
            let (mut listed, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let page = state.list("t", prefix, at, 2, usize::MAX);
                listed.extend(page.keys);
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
            assert_eq!(store.used, used, "used = objects + puts in flight + held");
            assert_eq!(store.capacity, mount.segments.iter().map(|bytes| bytes / 64 * 64).sum::<u64>());
            let objects = self.objects.values().flat_map(|object| &object.replicas);
            assert_eq!(store.objects, objects.filter(|r| here(r) && self.is_mounted(r)).count() as u64);
        }
    }
}
