//! Removal of objects: named ones, evicted ones, all of a tenant, and replicas on one store.

use std::collections::BTreeSet;

use mc_types::{ClusterTime, Code, PutId, StoreId};

use crate::command::{EvictItem, RemoveItem};
use crate::key::{GroupId, IndexKey, KeyHash};
use crate::objects::{Object, ObjectRef, PREFETCHED, Replica, prefetch};
use crate::state::State;

impl State {
    pub(crate) fn remove(&mut self, tenant: &str, item: &RemoveItem) -> Code {
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
    pub(crate) fn evict(&mut self, items: &[EvictItem], reuse_at: ClusterTime) -> Vec<Code> {
        let find = |item: &EvictItem| {
            let is_meant = |object: &ObjectRef<'_>| object.version == item.version && self.is_live(*object);
            let object = self.objects.with_hash(item.key).find(is_meant)?;
            Some((IndexKey::from_bytes(object.key)?, object.group))
        };
        let mut found: Vec<Option<(IndexKey, Option<GroupId>)>> = Vec::with_capacity(items.len());
        for group in items.chunks(PREFETCHED) {
            prefetch(group.iter().map(|item| self.objects.prefetch(item.key)));
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

    /// Drops the replicas of an object on one store.
    pub(crate) fn drop_replica(&mut self, tenant: &str, store: StoreId, item: &RemoveItem) -> Code {
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
    pub(crate) fn retire(&mut self, key: &IndexKey, object: &Object, reuse_at: ClusterTime) {
        self.discharge(key, object);
        self.leave_group(key, object);
        let mark = self.removal_mark_of(key, object);
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
}
