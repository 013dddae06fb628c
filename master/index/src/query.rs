//! Queries of the index.

use mc_types::{ClusterTime, GrantKey, PutId, SegmentEpoch, SegmentNumber, StoreId};
use smallvec::SmallVec;

use super::command::{Endpoint, PlacedReplica, PutMode};
use super::groups::GroupId;
use super::key::{IndexKey, KeyHash};
use super::machine::State;
use super::objects::ObjectRef;
use super::pin::Pin;
use super::put::{TOUCHED, touch};
use super::settings::Settings;
use super::stores::Mounted;
use super::tenants::TenantName;

/// A visible object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectView {
    /// Hash of its key, by which the eviction order knows it.
    pub key: KeyHash,
    /// The put that made it.
    pub version: PutId,
    /// Bytes.
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
pub struct UnitOf {
    /// Group, if it has one; it is evicted as a whole.
    pub group: Option<GroupId>,
    /// Tenant, by whose quota it is evicted.
    pub tenant: TenantName,
}

/// Facts about a visible object by which a new leader orders it for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectAge {
    /// Hash of its key.
    pub key: KeyHash,
    /// Unit in which it is evicted.
    pub unit: UnitOf,
    /// Epoch of its last noted reuse (see [`crate::reuse_epoch`]); 0 if there was none.
    pub reused: u32,
    /// Order of its first allocation (see [`crate::allocation_order`]), by which objects were put.
    pub put: u64,
}

impl UnitOf {
    fn new(object: ObjectRef<'_>) -> Self {
        Self { group: object.group, tenant: TenantName::of_index_key(object.key) }
    }
}

/// Bytes of mounted stores by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that can be allocated.
    pub capacity: u64,
    /// Bytes of objects and of puts in flight, each rounded up to the alignment.
    pub live: u64,
    /// Bytes of removed versions that are held back from reuse.
    pub held: u64,
    /// Part of the live bytes that is hard-pinned.
    pub pinned: u64,
}

/// A put in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutView<'a> {
    /// Tenant, in bytes.
    pub tenant: &'a [u8],
    /// Key.
    pub key: &'a [u8],
    /// Bytes.
    pub size: u64,
    /// Behaviour when the key exists.
    pub mode: PutMode,
    /// Time at which it is given up if it has not ended.
    pub deadline: ClusterTime,
    /// Replicas, as the answer of its start lists them.
    pub replicas: SmallVec<[PlacedReplica; 1]>,
}

/// A mounted store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreView<'a> {
    /// The store.
    pub store: StoreId,
    /// Epoch of its memory.
    pub epoch: SegmentEpoch,
    /// Human-readable name.
    pub name: &'a str,
    /// Endpoints that serve its bytes, in order of preference.
    pub endpoints: &'a [Endpoint],
    /// host:port of its HTTP server.
    pub http: &'a str,
    /// Key that seals its grants.
    pub grant_key: &'a GrantKey,
    /// Bytes of each segment by number, 0 for one that was unmounted.
    pub segments: &'a [u64],
    /// Bytes that can be allocated.
    pub capacity: u64,
    /// Bytes allocated: objects, puts in flight and held bytes, each rounded up to the alignment.
    pub used: u64,
    /// Number of replicas of objects.
    pub objects: u64,
}

/// A segment of a mounted store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentView {
    /// Number within its store.
    pub number: SegmentNumber,
    /// Bytes that can be allocated.
    pub capacity: u64,
    /// Bytes allocated: objects, puts in flight and held bytes, each rounded up to the alignment.
    pub used: u64,
    /// Number of replicas of objects.
    pub objects: u64,
}

/// Bytes of a removed or replaced version that may still be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRange {
    /// Place of the bytes. The order of their allocation is not kept, so its `index` is zero.
    pub place: PlacedReplica,
    /// Time from which they may be reused.
    pub reuse_at: ClusterTime,
}

impl State {
    /// Cluster time as of the last applied entry.
    #[must_use]
    pub fn time(&self) -> ClusterTime {
        self.time
    }

    /// The replicated settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The cluster version: the lowest version that all members support.
    #[must_use]
    pub fn cluster_version(&self) -> u32 {
        self.cluster_version
    }

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
        let mut group = Vec::with_capacity(keys.size_hint().0.min(TOUCHED));
        loop {
            group.clear();
            group.extend(keys.by_ref().take(TOUCHED).map(|key| (key, IndexKey::new(tenant, key))));
            if group.is_empty() {
                return;
            }
            // In two steps, because the processor looks only so far ahead: each reads what the one before has found.
            let hashes = || group.iter().filter_map(|(_, key)| Some(key.as_ref()?.hash()));
            touch(hashes().map(|hash| self.objects.touch_shard(hash)));
            touch(hashes().map(|hash| self.objects.touch(hash)));
            for (key, index_key) in &group {
                found(key, index_key.as_ref().and_then(|key| self.object(key)));
            }
        }
    }

    fn object(&self, key: &IndexKey) -> Option<ObjectView> {
        let object = self.objects.get(key)?;
        let replicas = self.placed(object);
        if replicas.is_empty() || self.cleared(object).is_some() {
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
    pub fn touch(&self, hashes: impl Iterator<Item = KeyHash>) {
        touch(hashes.map(|hash| self.objects.touch(hash)));
    }

    fn hashed(&self, key: KeyHash, object: ObjectRef<'_>) -> Option<HashedObject> {
        let lies_on = object.replicas().filter_map(|replica| self.segments.live(replica.segment));
        let stores: SmallVec<[StoreId; 1]> = lies_on.map(|segment| segment.store).collect();
        let ObjectRef { version, size, pin, group, .. } = object;
        let visible = !stores.is_empty() && self.cleared(object).is_none();
        let put_order = object.put_order();
        visible.then_some(HashedObject { key, group, version, size, pin, put_order, stores })
    }

    /// Returns a group; `None` when it has neither members nor puts in flight.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<GroupView> {
        let group = self.groups.get(id)?;
        let members: Vec<_> = self.members(id).filter_map(|(key, object)| self.hashed(key, object)).collect();
        let removed = |key: &&KeyHash| {
            self.objects.with_hash(**key).any(|it| it.group == Some(id) && self.cleared(it).is_some())
        };
        let cleared = if self.tenants.has_marks() { group.members.iter().filter(removed).count() } else { 0 };
        let unreadable = group.members.len().saturating_sub(members.len() + cleared);
        Some(GroupView { members, lost: group.lost.len() + unreadable, joining: group.joining })
    }

    /// Returns the group that the order of eviction knows by this hash (see [`GroupId::unit`]).
    #[must_use]
    pub fn group_of_unit(&self, unit: KeyHash) -> Option<GroupView> {
        self.group(self.groups.of_unit(unit)?)
    }

    /// Whether objects are evicted by other rules than their order of use: in groups, or within quotas.
    #[must_use]
    pub fn has_units(&self) -> bool {
        self.groups.len() > 0 || self.has_quotas()
    }

    /// Number of groups.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.groups.len() as u64
    }

    /// Returns the unit in which the object of a key is evicted; `None` when there is no object.
    #[must_use]
    pub fn unit_of(&self, hash: KeyHash) -> Option<UnitOf> {
        let mut objects = self.objects.with_hash(hash);
        let object = objects.find(|object| KeyHash::of_index_key(object.key) == hash)?;
        Some(UnitOf::new(object))
    }

    /// Lists when every visible object was put and last reused.
    pub fn ages(&self) -> impl Iterator<Item = ObjectAge> + '_ {
        self.objects.iter().filter(|object| self.is_live(*object)).map(|object| {
            let key = KeyHash::of_index_key(object.key);
            ObjectAge { key, unit: UnitOf::new(object), reused: object.reused, put: object.put_order() }
        })
    }

    /// Share of the once-seen queue that a leader noted last, of 2^32; `None` if none did.
    #[must_use]
    pub fn once_share(&self) -> Option<u32> {
        (self.once_share > 0).then_some(self.once_share)
    }

    /// Sums up the bytes of the mounted stores that are not in `without`, which is sorted.
    #[must_use]
    pub fn usage(&self, without: &[StoreId]) -> Usage {
        let mut usage = Usage::default();
        for (store, known) in self.stores.iter() {
            let Some(mounted) = &known.mounted else { continue };
            if without.binary_search(&store).is_ok() {
                continue;
            }
            for space in mounted.numbers().filter_map(|number| self.segments.space(number)) {
                usage.capacity += space.alloc.capacity();
                usage.live += space.alloc.used().saturating_sub(space.held_bytes);
                usage.held += space.held_bytes;
                usage.pinned += space.pinned_bytes;
            }
        }
        usage
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

    /// Returns a put in flight.
    #[must_use]
    pub fn put(&self, put: PutId) -> Option<PutView<'_>> {
        let put = self.puts.in_flight(put)?;
        let (&tenant_len, rest) = put.key.bytes().split_first()?;
        let (tenant, key) = rest.split_at_checked(usize::from(tenant_len))?;
        Some(PutView {
            tenant,
            key,
            size: put.size,
            mode: put.mode,
            deadline: put.deadline,
            replicas: put.replicas.iter().map(|replica| replica.placed).collect(),
        })
    }

    /// Lists the mounted stores, by id.
    pub fn stores(&self) -> impl Iterator<Item = StoreView<'_>> {
        self.stores.iter().filter_map(|(_, store)| Some(self.view(store.mounted.as_ref()?)))
    }

    /// Lists the ids and epochs of the mounted stores, without visiting their segments.
    pub fn mounted(&self) -> impl Iterator<Item = (StoreId, SegmentEpoch)> + '_ {
        self.stores.iter().filter_map(|(store, it)| Some((store, it.mounted.as_ref()?.mount.epoch)))
    }

    /// The epoch under which a store is mounted.
    #[must_use]
    pub fn mounted_epoch(&self, store: StoreId) -> Option<SegmentEpoch> {
        Some(self.stores.mounted(store)?.mount.epoch)
    }

    /// Returns a mounted store.
    #[must_use]
    pub fn store(&self, store: StoreId) -> Option<StoreView<'_>> {
        Some(self.view(self.stores.mounted(store)?))
    }

    /// Lists the segments of a mounted store, in the order of their numbers within it; none if it is not mounted.
    pub fn store_segments(&self, store: StoreId) -> impl Iterator<Item = SegmentView> + '_ {
        self.stores.mounted(store).into_iter().flat_map(|mounted| self.segments_of(mounted))
    }

    fn segments_of<'a>(&'a self, mounted: &'a Mounted) -> impl Iterator<Item = SegmentView> + 'a {
        let live = mounted.numbers().filter_map(|number| self.segments.live(number));
        live.map(|segment| SegmentView {
            number: segment.number,
            capacity: segment.space.as_ref().map_or(0, |space| space.alloc.capacity()),
            used: segment.space.as_ref().map_or(0, |space| space.alloc.used()),
            objects: segment.residents.len(),
        })
    }

    fn view<'a>(&'a self, mounted: &'a Mounted) -> StoreView<'a> {
        let mount = &mounted.mount;
        let (mut capacity, mut used, mut objects) = (0, 0, 0);
        for segment in self.segments_of(mounted) {
            capacity += segment.capacity;
            used += segment.used;
            objects += segment.objects;
        }
        StoreView {
            store: mount.store,
            epoch: mount.epoch,
            name: &mount.name,
            endpoints: &mount.endpoints,
            http: &mount.http,
            grant_key: &mount.grant_key,
            segments: &mount.segments,
            capacity,
            used,
            objects,
        }
    }

    /// Number of objects in the index, including those of dropped stores that are not swept yet.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects.len()
    }

    /// Whether a put of this key of a tenant is in flight: it was started, and nothing has ended it yet.
    ///
    /// A put whose deadline has come is in flight until an entry gives it up. Each entry does so for 1,024 puts or more, and a
    /// leader makes one every second. Keys are told apart by their hashes of 64 bits alone.
    #[must_use]
    pub fn is_being_written(&self, tenant: &str, key: &[u8]) -> bool {
        self.puts.is_being_written(KeyHash::of(tenant, key))
    }

    /// Bytes of the largest mounted segment; 0 without stores.
    #[must_use]
    pub fn largest_segment(&self) -> u64 {
        let mounted = self.stores.iter().filter_map(|(_, store)| store.mounted.as_ref());
        let spaces = mounted.flat_map(Mounted::numbers).filter_map(|number| self.segments.space(number));
        spaces.map(|space| space.alloc.capacity()).max().unwrap_or(0)
    }

    /// Bytes of the replicas of puts in flight, each rounded up to the alignment.
    #[must_use]
    pub fn in_flight_bytes(&self) -> u64 {
        self.puts.bytes_in_flight()
    }

    /// Number of puts in flight.
    #[must_use]
    pub fn puts_in_flight(&self) -> u64 {
        self.puts.len_in_flight() as u64
    }

    /// Whether this epoch of a store has ended, for good. The index remembers the last 16 ended epochs of a store, and
    /// the last 1,024 stores without mounted memory.
    #[must_use]
    pub fn epoch_is_dead(&self, store: StoreId, epoch: SegmentEpoch) -> bool {
        self.stores.is_dead(store, epoch)
    }

    /// Whether objects of dropped stores, or objects that a `remove_all` has removed, are left to sweep.
    #[must_use]
    pub fn needs_sweep(&self) -> bool {
        self.segments.next_to_sweep().is_some() || self.tenants.has_marks()
    }

    /// Time of the next put deadline or release of held bytes, at which a tick has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<ClusterTime> {
        let held = self.segments.next_release();
        [self.puts.next_deadline(), held].into_iter().flatten().min()
    }

    /// Lists the bytes in mounted stores that are held back from reuse.
    pub fn held(&self) -> impl Iterator<Item = HeldRange> {
        self.segments.iter().flat_map(|(_, segment)| {
            segment.space.iter().flat_map(|space| space.held.iter()).map(|(&(reuse_at, offset), &len)| {
                HeldRange {
                    place: PlacedReplica {
                        store: segment.store,
                        epoch: segment.epoch,
                        segment: segment.number,
                        offset,
                        len,
                        index: 0,
                    },
                    reuse_at,
                }
            })
        })
    }
}
