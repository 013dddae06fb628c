//! The index as tables, and the few steps that keep several tables in agreement.

use mc_types::{ClusterTime, PutId};

use crate::command::Settings;
use crate::groups::Groups;
use crate::key::{GroupId, IndexKey, KeyHash};
use crate::key_values::KeyValues;
use crate::objects::{Object, ObjectRef, Objects, Replica};
use crate::puts::{Put, Puts};
use crate::security::Security;
use crate::stores::{Segments, Stores};
use crate::tenants::{RemovalMark, Tenants};

/// The index. A clone is cheap and immutable, so it can be encoded on another thread while entries are applied.
#[derive(Clone)]
pub struct State {
    pub(crate) time: ClusterTime,
    pub(crate) cluster_version: u32,
    pub(crate) settings: Settings,
    pub(crate) stores: Stores,
    pub(crate) segments: Segments,
    pub(crate) objects: Objects,
    pub(crate) puts: Puts,
    pub(crate) tenants: Tenants,
    pub(crate) groups: Groups,
    pub(crate) key_values: KeyValues,
    pub(crate) security: Security,
    /// Position in the objects from which those are to be freed that a `remove_all` has removed.
    pub(crate) sweep_from: u64,
    /// Share of the once-seen queue that a leader noted last, of 2^32; 0 if none did.
    pub(crate) once_share: u32,
    /// Number of changes of settings and quotas that were applied since this copy of the index began. No part of the index:
    /// `apply` decides nothing by it.
    pub(crate) limits_changed: u64,
}

impl State {
    /// An empty index.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            time: ClusterTime(0),
            cluster_version: 0,
            settings,
            stores: Stores::new(),
            segments: Segments::new(),
            objects: Objects::new(),
            puts: Puts::new(),
            tenants: Tenants::new(),
            groups: Groups::new(),
            key_values: KeyValues::new(),
            security: Security::default(),
            sweep_from: 0,
            once_share: 0,
            limits_changed: 0,
        }
    }

    /// Returns the object of a key if it has a replica in a live segment; one that only waits for the sweep has none.
    pub(crate) fn visible(&self, key: &IndexKey) -> Option<ObjectRef<'_>> {
        self.objects.get(key).filter(|object| self.is_live(*object))
    }

    /// Whether the object can be seen: it has a replica in a live segment, and no `remove_all` has removed it.
    pub(crate) fn is_live(&self, object: ObjectRef<'_>) -> bool {
        object.replicas().any(|replica| self.segments.live(replica.segment).is_some())
            && self.removal_mark(object).is_none()
    }

    /// Returns the mark of the `remove_all` that has removed this object, if one has.
    pub(crate) fn removal_mark(&self, object: ObjectRef<'_>) -> Option<RemovalMark> {
        let order = || object.replicas().map(|replica| replica.index).min().unwrap_or_default();
        self.tenants.has_marks().then(|| self.tenants.removal_mark(object.key, order())).flatten()
    }

    /// Lists the visible members of a group.
    pub(crate) fn members(&self, id: GroupId) -> impl Iterator<Item = (KeyHash, ObjectRef<'_>)> {
        let keys = self.groups.get(id).map(|group| &group.members[..]).unwrap_or_default();
        keys.iter().flat_map(move |&key| {
            let objects = self.objects.with_hash(key);
            objects
                .filter(move |object| object.group == Some(id) && KeyHash::of_index_key(object.key) == key)
                .filter(|object| self.is_live(*object))
                .map(move |object| (key, object))
        })
    }

    /// Adds a put in flight whose replicas are allocated.
    pub(crate) fn enter_put(&mut self, id: PutId, put: Put) {
        for replica in &put.replicas {
            self.segments.begin_put(replica.segment, put.size);
            self.segments.pin(replica.segment, put.size, put.pin);
        }
        self.groups.begin(put.group);
        self.tenants.charge(put.key.tenant(), |usage| usage.puts.add(put.share()));
        self.puts.start(id, put);
    }

    /// Stops counting a put in flight for its segments, its tenant and its group.
    pub(crate) fn leave_put(&mut self, put: &Put) {
        for replica in &put.replicas {
            self.segments.end_put(replica.segment, put.size);
        }
        self.groups.end(put.group);
        self.tenants.charge(put.key.tenant(), |usage| usage.puts.subtract(put.share()));
    }

    /// Adds an object to the usage of its tenant, unless a `remove_all` has removed it.
    pub(crate) fn charge(&mut self, key: &IndexKey, object: &Object) {
        if !self.is_removed(key, object) {
            self.tenants.charge(key.tenant(), |usage| usage.objects.add(object.share()));
        }
    }

    /// Subtracts an object from the usage of its tenant, unless a `remove_all` has done so.
    pub(crate) fn discharge(&mut self, key: &IndexKey, object: &Object) {
        if !self.is_removed(key, object) {
            self.tenants.charge(key.tenant(), |usage| usage.objects.subtract(object.share()));
        }
    }

    /// Takes an object out of its group. One without a live replica is remembered as lost.
    pub(crate) fn leave_group(&mut self, key: &IndexKey, object: &Object) {
        let is_live = |replica: &Replica| self.segments.live(replica.segment).is_some();
        if self.is_removed(key, object) {
            self.groups.leave_all(object.group, key.hash());
        } else if object.replicas.iter().any(is_live) {
            self.groups.leave(object.group, key.hash());
        } else {
            self.groups.lose(object.group, key.hash(), self.cluster_version);
        }
    }

    fn is_removed(&self, key: &IndexKey, object: &Object) -> bool {
        self.removal_mark_of(key, object).is_some()
    }

    pub(crate) fn removal_mark_of(&self, key: &IndexKey, object: &Object) -> Option<RemovalMark> {
        let order = object.replicas.iter().map(|replica| replica.index).min().unwrap_or_default();
        self.tenants.removal_mark(key.bytes(), order)
    }
}

impl std::fmt::Debug for State {
    /// Leaves out the objects: there may be millions.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("time", &self.time)
            .field("objects", &self.objects())
            .finish_non_exhaustive()
    }
}
