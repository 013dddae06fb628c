//! The put protocol: start and end.

use std::collections::BTreeSet;
use std::time::Duration;

use mc_types::{Code, MAX_NAMED_STORES, MAX_TENANT_LEN, PutId, PutMode, StoreId};
use smallvec::SmallVec;

use super::EntryFacts;
use super::place::Placer;
use crate::alloc::allocated;
use crate::command::{Pin, PutEndItem, PutEnded, PutStartItem, PutStarted};
use crate::key::{IndexKey, KeyHash, TenantName};
use crate::objects::{Object, ObjectRef, PREFETCHED, Replica, prefetch};
use crate::puts::{Ended, Outcome, Put, PutReplica, PutState};
use crate::state::State;

impl PutStarted {
    pub(crate) fn refused(code: Code) -> Self {
        Self { code, replicas: SmallVec::new() }
    }

    fn of(put: &Put) -> Self {
        Self { code: Code::Ok, replicas: put.replicas.iter().map(|replica| replica.placed).collect() }
    }
}

impl PutEnded {
    pub(crate) fn refused(code: Code) -> Self {
        Self { code, replaced: None }
    }

    fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Visible { replaced } => Self { code: Code::Ok, replaced },
            Outcome::Exists => Self::refused(Code::ObjectAlreadyExists),
            Outcome::Failed => Self::refused(Code::TransferFail),
        }
    }
}

impl State {
    pub(crate) fn put_start(
        &mut self,
        entry: &EntryFacts<'_>,
        tenant: &str,
        items: &[PutStartItem],
    ) -> Vec<PutStarted> {
        let suspects: BTreeSet<StoreId> = entry.stamp.suspects.iter().copied().collect();
        let mut placer = Placer::new(self, &TenantName::new(tenant.as_bytes()), &suspects);
        let mut answers = Vec::with_capacity(items.len());
        for group in items.chunks(PREFETCHED) {
            let keys: Vec<_> = group.iter().map(|item| IndexKey::new(tenant, &item.key)).collect();
            prefetch(group.iter().map(|item| self.puts.prefetch(item.put)));
            prefetch(keys.iter().flatten().map(|key| self.objects.prefetch(key.hash())));
            for (item, key) in group.iter().zip(keys) {
                placer.begin_item(entry.stamp.seed, answers.len() as u64);
                answers.push(self.start_one(entry, tenant, item, key, &suspects, &mut placer));
            }
        }
        answers
    }

    fn start_one(
        &mut self,
        entry: &EntryFacts<'_>,
        tenant: &str,
        item: &PutStartItem,
        key: Option<IndexKey>,
        suspects: &BTreeSet<StoreId>,
        placer: &mut Placer,
    ) -> PutStarted {
        let refused = PutStarted::refused;
        let deadline_max = Duration::from_millis(self.settings.put_deadline_max_ms);
        let deadline = item.deadline.min(entry.now.after(deadline_max));
        if tenant.len() > MAX_TENANT_LEN || item.size == 0 || item.replicas == 0 || deadline <= entry.now {
            return refused(Code::InvalidParams);
        }
        // A search looks at each of them: a million ids in one entry would hold up every master for seconds.
        let named = item.preferred.len().max(item.avoid.len());
        if self.cluster_version >= 2 && named > MAX_NAMED_STORES {
            return refused(Code::InvalidParams);
        }
        let Some(key) = key else { return refused(Code::InvalidKey) };
        match self.known_put(entry.now, item.put) {
            Some(PutState::InFlight(put)) if put.key == key && put.size == item.size => {
                return PutStarted::of(&put);
            }
            Some(PutState::InFlight(_)) => return refused(Code::InvalidParams),
            Some(PutState::Ended(Ended { outcome: Outcome::Failed, .. })) => return refused(Code::PutGone),
            Some(PutState::Ended(_)) => return refused(Code::ObjectAlreadyExists),
            None => {}
        }
        if let Some(object) = self.visible(&key) {
            let stays = item.mode == PutMode::IfAbsent && self.is_present(object, suspects);
            if stays || object.version == item.put {
                return refused(Code::ObjectAlreadyExists);
            }
        }
        if placer.is_too_large(item.size) {
            return refused(Code::ObjectTooLarge);
        }
        let before = self.visible(&key).map_or(Pin::NONE, |object| object.pin);
        let pin = Pin::of(item.pin, before, entry.now);
        if let Err(code) = self.may_start(tenant, item, &key, pin) {
            return refused(code);
        }
        let replicas = match placer.place(self, entry, item) {
            Ok(replicas) => replicas,
            Err(code) => return refused(code),
        };
        let PutStartItem { size, mode, data_type, group, .. } = *item;
        let put = Put { key, size, mode, deadline, pin, data_type, group, replicas };
        let answer = PutStarted::of(&put);
        self.enter_put(item.put, put);
        answer
    }

    /// Checks the limits that do not depend on the place: of hard pins, tenants, groups and the index.
    fn may_start(&self, tenant: &str, item: &PutStartItem, key: &IndexKey, pin: Pin) -> Result<(), Code> {
        let bytes = allocated(item.size).saturating_mul(u64::from(item.replicas));
        if pin.is_hard() && !self.may_pin(tenant, bytes) {
            return Err(Code::NoAvailableHandle);
        }
        if !self.is_served(tenant) {
            return Err(Code::TenantNotRegistered);
        }
        if !self.quota_allows(tenant, bytes) {
            return Err(Code::TenantQuotaExceeded);
        }
        let may_join = |group| match self.cluster_version {
            ..2 => self.groups.has_room(group),
            _ => self.groups.takes(group, key.hash()),
        };
        if item.group.is_some_and(|group| !may_join(group)) {
            return Err(Code::GroupFull);
        }
        if self.is_at_cap() { Err(Code::NoAvailableHandle) } else { Ok(()) }
    }

    /// Ends puts. `facts` returns the end that an item asks for, and the log index of the allocation that was proven to be
    /// written, if it was.
    pub(crate) fn put_end<T>(
        &mut self,
        entry: &EntryFacts<'_>,
        items: &[T],
        facts: impl Fn(&T) -> (&PutEndItem, Option<u64>),
    ) -> Vec<PutEnded> {
        let suspects: BTreeSet<StoreId> = entry.stamp.suspects.iter().copied().collect();
        let mut answers = Vec::with_capacity(items.len());
        for group in items.chunks(PREFETCHED) {
            prefetch(group.iter().map(|item| self.puts.prefetch(facts(item).0.put)));
            prefetch(group.iter().map(|item| self.objects.prefetch(facts(item).0.key)));
            answers.extend(group.iter().map(|item| self.end_one(entry, facts(item), &suspects)));
        }
        answers
    }

    fn end_one(
        &mut self,
        entry: &EntryFacts<'_>,
        (item, proven): (&PutEndItem, Option<u64>),
        suspects: &BTreeSet<StoreId>,
    ) -> PutEnded {
        let gone = PutEnded::refused(Code::PutGone);
        let is_proven = |put: &Put| {
            proven.is_none_or(|index| put.replicas.iter().all(|replica| replica.placed.index == index))
        };
        let put = match self.known_put(entry.now, item.put) {
            Some(PutState::InFlight(put)) if put.key.hash() == item.key && is_proven(&put) => put,
            Some(PutState::InFlight(_)) => return gone,
            Some(PutState::Ended(ended)) => return PutEnded::of(ended.outcome),
            // The record of an ended put is forgotten at its deadline, or earlier when its shard is full. The object
            // still names the put that made it. A put that failed or came second then looks unknown.
            None if self.made(item.put, item.key) => {
                return PutEnded::of(Outcome::Visible { replaced: None });
            }
            None => return gone,
        };
        let outcome = self.settle_put(entry, &put, item, suspects);
        self.leave_put(&put);
        self.puts.end(item.put, Ended { outcome, deadline: put.deadline }, self.time);
        PutEnded::of(outcome)
    }

    /// Decides the outcome of a put whose writer is done, and makes the object visible or frees its bytes.
    fn settle_put(
        &mut self,
        entry: &EntryFacts<'_>,
        put: &Put,
        item: &PutEndItem,
        suspects: &BTreeSet<StoreId>,
    ) -> Outcome {
        let key = &put.key;
        let free = |state: &mut Self, replica: &PutReplica| {
            state.segments.free(replica.segment, replica.placed.offset, put.size);
            state.segments.unpin(replica.segment, put.size, put.pin);
        };
        let mut written: SmallVec<[Replica; 1]> = SmallVec::new();
        for (at, replica) in put.replicas.iter().enumerate() {
            let failed = item.failed.iter().any(|&failed| usize::from(failed) == at);
            if failed || self.segments.live(replica.segment).is_none() {
                free(self, replica);
                continue;
            }
            let PutReplica { segment, placed } = *replica;
            // A `remove_all` since the start removes what was visible then. The object is younger, and its order must
            // say so. To the fence, too, a higher order is right: it refuses the put's own late writes.
            let gone = self.tenants.removal_mark(key.bytes(), placed.index).is_some();
            let index = if gone { entry.order } else { placed.index };
            written.push(Replica { segment, offset: placed.offset, index });
        }
        if written.is_empty() {
            return Outcome::Failed;
        }
        let there = self.visible(key);
        if put.mode == PutMode::IfAbsent && there.is_some_and(|object| self.is_present(object, suspects)) {
            for replica in &written {
                self.segments.free(replica.segment, replica.offset, put.size);
                self.segments.unpin(replica.segment, put.size, put.pin);
            }
            return Outcome::Exists;
        }
        let replaced = there.map(|object| object.version);
        for replica in &written {
            self.segments.settle(replica.segment, replica.offset, key.shard());
        }
        let object = Object {
            version: item.put,
            size: put.size,
            checksum: item.checksum,
            reused: 0,
            pin: put.pin,
            data_type: put.data_type,
            group: put.group,
            replicas: written,
        };
        self.charge(key, &object);
        if let Some(old) = self.objects.insert(key, &object) {
            self.retire(key, &old, item.reuse_at);
        }
        self.groups.join(put.group, key.hash());
        Outcome::Visible { replaced }
    }

    /// Whether this put made a visible object with that key hash.
    fn made(&self, put: PutId, key: KeyHash) -> bool {
        self.objects.with_hash(key).any(|object| object.version == put && self.is_live(object))
    }

    /// Whether the object has a replica on a store that is not suspect.
    fn is_present(&self, object: ObjectRef<'_>, suspects: &BTreeSet<StoreId>) -> bool {
        let live = |replica: Replica| self.segments.live(replica.segment);
        object.replicas().filter_map(live).any(|segment| !suspects.contains(&segment.store))
    }
}
