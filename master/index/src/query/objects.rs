use mc_types::{PutId, StoreId};
use smallvec::SmallVec;

use crate::command::{Pin, PlacedReplica};
use crate::key::{GroupId, IndexKey, KeyHash, TenantName};
use crate::objects::{ObjectRef, PREFETCHED, prefetch};
use crate::state::State;

/// A visible object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectView {
    /// Hash of its key, by which the eviction order knows it.
    pub key: KeyHash,
    /// The put that made it.
    pub version: PutId,
    /// Size of the value in bytes.
    pub size: u64,
    /// CRC-64/NVME of the value.
    pub checksum: u64,
    /// Its protection from eviction.
    pub pin: Pin,
    /// Tag that its put gave it.
    pub data_type: u8,
    /// Its group.
    pub group: Option<GroupId>,
    /// Places of its replicas: at least one, and in mounted segments only.
    pub replicas: SmallVec<[PlacedReplica; 1]>,
}

impl ObjectView {
    /// Returns the hash of the unit in which the object is evicted: of its group, or of its key.
    #[must_use]
    pub fn unit(&self) -> KeyHash {
        self.group.map_or(self.key, GroupId::unit)
    }
}

/// A visible object, found by the hash of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashedObject {
    /// Hash of its key.
    pub key: KeyHash,
    /// Its group.
    pub group: Option<GroupId>,
    /// The put that made it.
    pub version: PutId,
    /// Bytes of the value, and of each replica.
    pub size: u64,
    /// Its protection from eviction.
    pub pin: Pin,
    /// Order of its put (see [`allocation_order`](crate::allocation_order)).
    pub put_order: u64,
    /// Mounted store of each replica; at least one.
    pub stores: SmallVec<[StoreId; 1]>,
}

/// A group of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupView {
    /// Its visible members.
    pub members: Vec<HashedObject>,
    /// Number of members that were lost with their stores.
    pub lost: usize,
    /// Number of puts in flight that will join it.
    pub joining: u32,
}

/// Unit in which an object is evicted, and its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionUnit {
    /// Group, if it has one; it is evicted as a whole.
    pub group: Option<GroupId>,
    /// Tenant, by whose quota it is evicted.
    pub tenant: TenantName,
    /// Whether all replicas of the object lie on stores of the tenant's own.
    pub is_on_own_stores: bool,
}

/// Facts about a visible object by which a new leader orders it for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectAge {
    /// Hash of its key.
    pub key: KeyHash,
    /// Unit in which it is evicted.
    pub unit: EvictionUnit,
    /// Epoch of its last noted reuse (see [`crate::reuse_epoch`]); 0 if there was none.
    pub reused: u32,
    /// Order of its first allocation (see [`crate::allocation_order`]), by which objects were put.
    pub put: u64,
}

impl State {
    /// Returns the visible version of a key; `None` when there is none or no replica of it is left.
    #[must_use]
    pub fn get(&self, tenant: &str, key: &[u8]) -> Option<ObjectView> {
        self.object(&IndexKey::new(tenant, key)?)
    }

    /// Looks keys of a tenant up as [`Self::get`] does, and passes each with its version to `found`, in order.
    ///
    /// One look-up waits for memory most of its time. Here those of several keys wait together.
    pub fn get_each<'k>(
        &self,
        tenant: &str,
        mut keys: impl Iterator<Item = &'k [u8]>,
        mut found: impl FnMut(&'k [u8], Option<ObjectView>),
    ) {
        let mut group = Vec::with_capacity(keys.size_hint().0.min(PREFETCHED));
        loop {
            group.clear();
            group.extend(keys.by_ref().take(PREFETCHED).map(|key| (key, IndexKey::new(tenant, key))));
            if group.is_empty() {
                return;
            }
            // In two steps, because the processor looks only so far ahead: each reads what the one before has found.
            let hashes = || group.iter().filter_map(|(_, key)| Some(key.as_ref()?.hash()));
            prefetch(hashes().map(|hash| self.objects.prefetch_shard(hash)));
            prefetch(hashes().map(|hash| self.objects.prefetch(hash)));
            for (key, index_key) in &group {
                found(key, index_key.as_ref().and_then(|key| self.object(key)));
            }
        }
    }

    fn object(&self, key: &IndexKey) -> Option<ObjectView> {
        let object = self.objects.get(key)?;
        let replicas = self.placed(object);
        if replicas.is_empty() || self.removal_mark(object).is_some() {
            return None;
        }
        let ObjectRef { version, size, checksum, pin, data_type, group, .. } = object;
        Some(ObjectView { key: key.hash(), version, size, checksum, pin, data_type, group, replicas })
    }

    /// Returns the visible versions of keys with this hash: one, unless two keys share a hash.
    pub fn with_hash(&self, hash: KeyHash) -> impl Iterator<Item = HashedObject> + '_ {
        self.objects
            .with_hash(hash)
            .filter(move |object| KeyHash::of_index_key(object.key) == hash)
            .filter_map(move |object| self.hashed(hash, object))
    }

    /// Brings the memory into the processor's cache that looking these up with [`Self::with_hash`] is going to read.
    pub fn prefetch(&self, hashes: impl Iterator<Item = KeyHash>) {
        prefetch(hashes.map(|hash| self.objects.prefetch(hash)));
    }

    fn hashed(&self, key: KeyHash, object: ObjectRef<'_>) -> Option<HashedObject> {
        let lies_on = object.replicas().filter_map(|replica| self.segments.live(replica.segment));
        let stores: SmallVec<[StoreId; 1]> = lies_on.map(|segment| segment.store).collect();
        let ObjectRef { version, size, pin, group, .. } = object;
        let visible = !stores.is_empty() && self.removal_mark(object).is_none();
        let put_order = object.put_order();
        visible.then_some(HashedObject { key, group, version, size, pin, put_order, stores })
    }

    /// Returns a group; `None` when it has neither members nor puts in flight.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<GroupView> {
        let group = self.groups.get(id)?;
        let members: Vec<_> = self.members(id).filter_map(|(key, object)| self.hashed(key, object)).collect();
        let removed = |key: &&KeyHash| {
            self.objects.with_hash(**key).any(|it| it.group == Some(id) && self.removal_mark(it).is_some())
        };
        let removed_members =
            if self.tenants.has_marks() { group.members.iter().filter(removed).count() } else { 0 };
        let unreadable = group.members.len().saturating_sub(members.len() + removed_members);
        Some(GroupView { members, lost: group.lost.len() + unreadable, joining: group.joining })
    }

    /// Returns the group that the order of eviction knows by this hash (see [`GroupId::unit`]).
    #[must_use]
    pub fn group_of_unit(&self, unit: KeyHash) -> Option<GroupView> {
        self.group(self.groups.of_unit(unit)?)
    }

    /// Whether objects are evicted by other rules than their order of use: in groups, within quotas, or on stores of one tenant.
    #[must_use]
    pub fn has_units(&self) -> bool {
        self.groups.len() > 0 || self.has_quotas() || !self.owned_stores().is_empty()
    }

    /// Number of groups.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.groups.len() as u64
    }

    /// Returns the unit in which the object of a key is evicted; `None` when there is no object.
    #[must_use]
    pub fn unit_of(&self, hash: KeyHash) -> Option<EvictionUnit> {
        let mut objects = self.objects.with_hash(hash);
        let object = objects.find(|object| KeyHash::of_index_key(object.key) == hash)?;
        Some(self.eviction_unit(object))
    }

    fn eviction_unit(&self, object: ObjectRef<'_>) -> EvictionUnit {
        let (owned, tenant) = (self.owned_stores(), TenantName::of_index_key(object.key));
        let mut stores = object.replicas().filter_map(|it| Some(self.segments.live(it.segment)?.store));
        let is_own = |store| owned.get(&store) == Some(&tenant);
        let is_on_own_stores = !owned.is_empty() && stores.next().is_some_and(is_own) && stores.all(is_own);
        EvictionUnit { group: object.group, tenant, is_on_own_stores }
    }

    /// Lists when every visible object was put and last reused.
    pub fn ages(&self) -> impl Iterator<Item = ObjectAge> + '_ {
        self.objects.iter().filter(|object| self.is_live(*object)).map(|object| {
            let key = KeyHash::of_index_key(object.key);
            ObjectAge {
                key,
                unit: self.eviction_unit(object),
                reused: object.reused,
                put: object.put_order(),
            }
        })
    }

    /// Share of the once-seen queue that a leader noted last, of 2^32; `None` if none did.
    #[must_use]
    pub fn once_share(&self) -> Option<u32> {
        (self.once_share > 0).then_some(self.once_share)
    }

    fn placed(&self, object: ObjectRef<'_>) -> SmallVec<[PlacedReplica; 1]> {
        let mut placed = SmallVec::new();
        for replica in object.replicas() {
            if let Some(segment) = self.segments.live(replica.segment) {
                placed.push(PlacedReplica {
                    store: segment.store,
                    epoch: segment.epoch,
                    segment: segment.number,
                    offset: replica.offset,
                    len: object.size,
                    index: replica.index,
                });
            }
        }
        placed
    }

    /// Number of objects in the index, including those of dropped stores that are not swept yet.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects.len()
    }
}
