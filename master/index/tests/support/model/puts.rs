//! The rules of puts.

use std::collections::BTreeSet;

use mc_index::{
    HeldRange, KeyHash, MountStore, Pin, PlacedReplica, PutEndItem, PutEnded, PutStartItem, PutStarted,
    State, TenantPolicy, allocation_order,
};
use mc_types::{ClusterTime, Code, PinAction, PutId, PutMode, Replication, StoreId};

use super::{Cleared, Count, Key, Model, Object, Put, TERM, allows, overlap, rounded};

impl Model {
    /// Whether the answer was up to the placement.
    pub(super) fn start(
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
        if self.cluster_version >= 2 && (item.preferred.len() > 64 || item.avoid.len() > 64) {
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
            PinAction::Soft(until) if Pin::soft(until).soft_until() > Some(self.time) => Pin::soft(until),
            PinAction::Soft(_) | PinAction::Disable => Pin::NONE,
            PinAction::Hard => Pin::HARD,
        }
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

    /// Held bytes that the state gave to puts are no longer held. What is left must be what the state says.
    pub(super) fn forgive_taken_back(&mut self, state: &State) {
        let still: Vec<HeldRange> = state.held().collect();
        let taken: Vec<_> = self.held.iter().filter(|held| !still.contains(held)).copied().collect();
        for held in taken {
            assert!(self.is_tcp_only(held.place.store), "{held:?} was taken back");
            self.held.retain(|other| *other != held);
        }
    }

    /// Fewer replicas than asked for is only right when no other store has an empty segment that is large enough, nor
    /// held bytes that can be taken back. A put that must have all replicas may be refused while some would fit.
    pub(super) fn check_refusal(
        &self,
        item: &PutStartItem,
        answer: &PutStarted,
        suspects: &[StoreId],
        state: &State,
    ) {
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

    pub(super) fn end(&mut self, item: &PutEndItem, suspects: &[StoreId]) -> PutEnded {
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

    /// Adopts the order of replicas whose put began before a `remove_all` and ended by this entry: they are younger than
    /// the objects that it removed. The state does that only while objects are left to sweep.
    pub(super) fn adopt_order(&mut self, order: u64, state: &State) {
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

    pub(super) fn revoke(&mut self, put: PutId) -> Code {
        if self.ended.contains_key(&put) {
            return Code::InvalidWrite;
        }
        self.puts.remove(&put);
        Code::Ok
    }
}
