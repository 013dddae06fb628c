//! Removal of objects: named ones, evicted ones, all of a tenant, and replicas on one store.

use std::collections::BTreeSet;

use mc_types::{ClusterTime, Code, PutId, StoreId};

use super::command::{EvictItem, RemoveItem};
use super::groups::GroupId;
use super::key::{IndexKey, KeyHash};
use super::machine::{Entry, State};
use super::objects::{Object, ObjectRef, Replica};
use super::put::{TOUCHED, touch};
use super::tenants::{RemovalMark, TenantName};

/// Bit of the position in the objects up to which cleared ones are freed: a further pass is needed from the start, because
/// of a `remove_all` during this one.
const ONCE_MORE: u64 = 1 << 63;
/// Maximum number of objects and parts of the index that one sweep of cleared objects visits. Most are passed over.
pub(super) const VISITS_MAX: usize = 64 << 10;

impl State {
    pub(super) fn remove(&mut self, tenant: &str, item: &RemoveItem) -> Code {
        let Some(key) = IndexKey::new(tenant, &item.key) else { return Code::ObjectNotFound };
        let Some(object) = self.visible(&key) else {
            return Code::ObjectNotFound;
        };
        if object.version != item.version {
            return Code::VersionChanged;
        }
        if let Some(object) = self.objects.remove(&key) {
            self.retire(&key, &object, item.reuse_at);
        }
        Code::Ok
    }

    /// Evicts objects. All are judged before the first is removed, because the members of a group go together.
    pub(super) fn evict(&mut self, items: &[EvictItem], reuse_at: ClusterTime) -> Vec<Code> {
        let find = |item: &EvictItem| {
            let is_meant = |object: &ObjectRef<'_>| object.version == item.version && self.is_live(*object);
            let object = self.objects.with_hash(item.key).find(is_meant)?;
            Some((IndexKey::from_bytes(object.key)?, object.group))
        };
        let mut found: Vec<Option<(IndexKey, Option<GroupId>)>> = Vec::with_capacity(items.len());
        for group in items.chunks(TOUCHED) {
            touch(group.iter().map(|item| self.objects.touch(item.key)));
            found.extend(group.iter().map(find));
        }
        let stays = self.groups_that_stay(items, found.iter().flatten().filter_map(|(_, group)| *group));
        let evict = |found: Option<(IndexKey, Option<GroupId>)>| {
            let Some((key, group)) = found else { return Code::ObjectNotFound };
            if group.is_some_and(|group| stays.contains(&group)) {
                return Code::VersionChanged;
            }
            match self.objects.remove(&key) {
                Some(object) => {
                    self.retire(&key, &object, reuse_at);
                    Code::Ok
                }
                None => Code::ObjectNotFound,
            }
        };
        found.into_iter().map(evict).collect()
    }

    /// Returns those of the groups that stay: because the items do not name all of their members, or because a put is
    /// about to join them.
    fn groups_that_stay(
        &self,
        items: &[EvictItem],
        groups: impl Iterator<Item = GroupId>,
    ) -> BTreeSet<GroupId> {
        let mut groups: BTreeSet<GroupId> = groups.collect();
        if groups.is_empty() {
            return groups;
        }
        let mut named: Vec<(u64, PutId)> = items.iter().map(|it| (it.key.to_u64(), it.version)).collect();
        named.sort_unstable();
        let is_named = |(key, object): (KeyHash, ObjectRef<'_>)| {
            named.binary_search(&(key.to_u64(), object.version)).is_ok()
        };
        groups.retain(|&id| {
            let joining = self.groups.get(id).is_some_and(|group| group.joining > 0);
            joining || !self.members(id).all(is_named)
        });
        groups
    }

    /// Lists the visible members of a group.
    pub(super) fn members(&self, id: GroupId) -> impl Iterator<Item = (KeyHash, ObjectRef<'_>)> {
        let keys = self.groups.get(id).map(|group| &group.members[..]).unwrap_or_default();
        keys.iter().flat_map(move |&key| {
            let objects = self.objects.with_hash(key);
            objects
                .filter(move |object| object.group == Some(id) && KeyHash::of_index_key(object.key) == key)
                .filter(|object| self.is_live(*object))
                .map(move |object| (key, object))
        })
    }

    pub(super) fn remove_all(&mut self, entry: &Entry<'_>, tenant: &str, reuse_at: ClusterTime) -> u64 {
        if tenant.len() > mc_types::MAX_TENANT_LEN {
            return 0;
        }
        let mark = RemovalMark { before: entry.order, reuse_at };
        let goes_on = self.cluster_version >= 2 && self.tenants.has_marks();
        let removed = self.tenants.clear(TenantName::new(tenant.as_bytes()), mark);
        if removed > 0 {
            // A pass that is under way goes on, so that no tenant keeps the objects at its end from being freed.
            self.clear_from = if goes_on { self.clear_from | ONCE_MORE } else { 0 };
        }
        removed
    }

    /// Returns the mark of the `remove_all` that has removed this object, if one has.
    pub(super) fn cleared(&self, object: ObjectRef<'_>) -> Option<RemovalMark> {
        let order = || object.replicas().map(|replica| replica.index).min().unwrap_or_default();
        self.tenants.has_marks().then(|| self.tenants.cleared(object.key, order())).flatten()
    }

    /// Frees the bytes of at most `limit` objects that a `remove_all` has removed, and forgets the marks at the end.
    pub(super) fn sweep_cleared(&mut self, limit: u32) {
        if !self.tenants.has_marks() {
            return;
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (once_more, from) = (self.clear_from & ONCE_MORE, self.clear_from & !ONCE_MORE);
        let (mut doomed, mut visits, mut before, mut done) = (Vec::new(), 0, from, true);
        for (after, object) in self.objects.iter_from(from) {
            // Objects that share a position are in one slice.
            if after != before && (doomed.len() >= limit || visits >= VISITS_MAX) {
                done = false;
                break;
            }
            (visits, before) = (visits + 1, after);
            let Some(object) = object else { continue };
            if let Some(mark) = self.cleared(object) {
                doomed.extend(IndexKey::from_bytes(object.key).map(|key| (key, mark.reuse_at)));
            }
        }
        for (key, reuse_at) in doomed {
            if let Some(object) = self.objects.remove(&key) {
                self.retire(&key, &object, reuse_at);
            }
        }
        self.clear_from = if done { 0 } else { before | once_more };
        if done && once_more == 0 {
            self.tenants.forget_marks();
        }
    }

    /// Drops the replicas of an object on one store.
    pub(super) fn drop_replica(&mut self, tenant: &str, store: StoreId, item: &RemoveItem) -> Code {
        let Some(key) = IndexKey::new(tenant, &item.key) else { return Code::ObjectNotFound };
        let Some(object) = self.visible(&key) else { return Code::ObjectNotFound };
        if object.version != item.version {
            return Code::VersionChanged;
        }
        let lies_there = |r: &Replica| self.segments.live(r.segment).is_some_and(|it| it.store == store);
        let (dropped, kept): (Vec<Replica>, Vec<Replica>) = object.replicas().partition(lies_there);
        if dropped.is_empty() {
            return Code::ObjectNotFound;
        }
        if !kept.iter().any(|replica| self.segments.live(replica.segment).is_some()) {
            return self.remove(tenant, item);
        }
        let mut object = object.to_object();
        self.discharge(&key, &object);
        for replica in dropped {
            self.release(&key, replica, &object, item.reuse_at);
        }
        object.replicas = kept.into();
        self.charge(&key, &object);
        self.objects.insert(&key, &object);
        Code::Ok
    }

    /// Removes the replicas of an object that is no longer in the index; their bytes are held until `reuse_at`.
    pub(super) fn retire(&mut self, key: &IndexKey, object: &Object, reuse_at: ClusterTime) {
        self.discharge(key, object);
        self.leave_group(key, object);
        let mark = self.mark_over(key, object);
        let reuse_at = mark.map_or(reuse_at, |mark| mark.reuse_at.max(reuse_at));
        for &replica in &object.replicas {
            self.release(key, replica, object, reuse_at);
        }
    }

    /// Frees the bytes of a replica, or holds them until `reuse_at`.
    fn release(&mut self, key: &IndexKey, replica: Replica, object: &Object, reuse_at: ClusterTime) {
        self.segments.leave(replica.segment, replica.offset, key.shard());
        self.segments.unpin(replica.segment, object.size, object.pin);
        if reuse_at > self.time {
            self.segments.hold(replica.segment, replica.offset, object.size, reuse_at);
        } else {
            self.segments.free(replica.segment, replica.offset, object.size);
        }
    }

    /// Adds an object to the usage of its tenant, unless a `remove_all` has removed it.
    pub(super) fn charge(&mut self, key: &IndexKey, object: &Object) {
        if !self.is_cleared(key, object) {
            self.tenants.charge(key.tenant(), |usage| usage.objects.add(object.share()));
        }
    }

    /// Subtracts an object from the usage of its tenant, unless a `remove_all` has done so.
    pub(super) fn discharge(&mut self, key: &IndexKey, object: &Object) {
        if !self.is_cleared(key, object) {
            self.tenants.charge(key.tenant(), |usage| usage.objects.subtract(object.share()));
        }
    }

    /// Takes an object out of its group. One without a live replica is remembered as lost.
    pub(super) fn leave_group(&mut self, key: &IndexKey, object: &Object) {
        let is_live = |replica: &Replica| self.segments.live(replica.segment).is_some();
        if self.is_cleared(key, object) {
            self.groups.clear(object.group, key.hash());
        } else if object.replicas.iter().any(is_live) {
            self.groups.leave(object.group, key.hash());
        } else {
            self.groups.lose(object.group, key.hash(), self.cluster_version);
        }
    }

    fn is_cleared(&self, key: &IndexKey, object: &Object) -> bool {
        self.mark_over(key, object).is_some()
    }

    fn mark_over(&self, key: &IndexKey, object: &Object) -> Option<RemovalMark> {
        let order = object.replicas.iter().map(|replica| replica.index).min().unwrap_or_default();
        self.tenants.cleared(key.bytes(), order)
    }
}
