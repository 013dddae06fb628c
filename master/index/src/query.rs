//! Queries of the index.

use mc_types::{ClusterTime, GrantKey, PutId, SegmentEpoch, StoreId};
use smallvec::SmallVec;

use super::command::{Endpoint, PlacedReplica, PutMode};
use super::key::IndexKey;
use super::machine::State;
use super::objects::ObjectRef;
use super::settings::Settings;
use super::stores::Mounted;

/// A visible object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectView {
    /// The put that made it.
    pub version: PutId,
    /// Bytes.
    pub size: u64,
    /// CRC-64/NVME of the value.
    pub checksum: u64,
    /// Where it lies: at least one, of mounted epochs only.
    pub replicas: SmallVec<[PlacedReplica; 1]>,
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
    /// When it is ended.
    pub deadline: ClusterTime,
    /// The answer of its start.
    pub replicas: SmallVec<[PlacedReplica; 1]>,
}

/// A mounted store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreView<'a> {
    /// The store.
    pub store: StoreId,
    /// Its memory.
    pub epoch: SegmentEpoch,
    /// For people.
    pub name: &'a str,
    /// Where its bytes are served, in order of preference.
    pub endpoints: &'a [Endpoint],
    /// host:port of its HTTP.
    pub http: &'a str,
    /// Key of its grants.
    pub grant_key: &'a GrantKey,
    /// Bytes of each segment.
    pub segments: &'a [u64],
    /// Bytes that can be allocated.
    pub capacity: u64,
    /// Bytes allocated: objects, puts in flight and held bytes, each rounded up to the alignment.
    pub used: u64,
    /// Replicas of objects.
    pub objects: u64,
}

/// Bytes of a removed or replaced version that may still be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRange {
    /// Where; the order of the allocation is not kept and reads zero.
    pub place: PlacedReplica,
    /// When they may be reused.
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

    /// The lowest version that all members support.
    #[must_use]
    pub fn cluster_version(&self) -> u32 {
        self.cluster_version
    }

    /// The visible version of a key; `None` when there is none or no replica of it is left.
    #[must_use]
    pub fn get(&self, tenant: &str, key: &[u8]) -> Option<ObjectView> {
        let object = self.objects.get(&IndexKey::new(tenant, key)?)?;
        let replicas = self.placed(object);
        let ObjectRef { version, size, checksum, .. } = object;
        (!replicas.is_empty()).then_some(ObjectView { version, size, checksum, replicas })
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

    /// A put in flight.
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

    /// The mounted stores, by id.
    pub fn stores(&self) -> impl Iterator<Item = StoreView<'_>> {
        self.stores.iter().filter_map(|(_, store)| Some(self.view(store.mounted.as_ref()?)))
    }

    /// The ids of the mounted stores, without a look at what they hold.
    pub fn mounted(&self) -> impl Iterator<Item = (StoreId, SegmentEpoch)> + '_ {
        self.stores.iter().filter_map(|(store, it)| Some((store, it.mounted.as_ref()?.mount.epoch)))
    }

    /// The epoch under which a store is mounted.
    #[must_use]
    pub fn mounted_epoch(&self, store: StoreId) -> Option<SegmentEpoch> {
        Some(self.stores.mounted(store)?.mount.epoch)
    }

    /// The name that a mounted store gave itself.
    #[must_use]
    pub fn store_name(&self, store: StoreId) -> Option<&str> {
        Some(&self.stores.mounted(store)?.mount.name)
    }

    /// A mounted store.
    #[must_use]
    pub fn store(&self, store: StoreId) -> Option<StoreView<'_>> {
        Some(self.view(self.stores.mounted(store)?))
    }

    fn view<'a>(&'a self, mounted: &'a Mounted) -> StoreView<'a> {
        let mount = &mounted.mount;
        let (mut capacity, mut used, mut objects) = (0, 0, 0);
        for segment in mounted.numbers().filter_map(|number| self.segments.live(number)) {
            objects += segment.residents.len();
            if let Some(space) = &segment.space {
                capacity += space.alloc.capacity();
                used += space.alloc.used();
            }
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

    /// Objects in the index, those of dropped stores that are not swept yet included.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects.len()
    }

    /// Puts in flight.
    #[must_use]
    pub fn puts_in_flight(&self) -> u64 {
        self.puts.len_in_flight() as u64
    }

    /// Whether this epoch of a store has ended, for good. The last 16 of a store are remembered, and the last 1,024
    /// stores that have no memory mounted.
    #[must_use]
    pub fn epoch_is_dead(&self, store: StoreId, epoch: SegmentEpoch) -> bool {
        self.stores.is_dead(store, epoch)
    }

    /// Whether dropped stores left objects to sweep.
    #[must_use]
    pub fn needs_sweep(&self) -> bool {
        self.segments.next_to_sweep().is_some()
    }

    /// When the next put in flight ends by itself, or the next held bytes are free: a tick then does something.
    #[must_use]
    pub fn next_deadline(&self) -> Option<ClusterTime> {
        let held = self.segments.next_release();
        [self.puts.next_deadline(), held].into_iter().flatten().min()
    }

    /// Bytes that are held back from reuse in mounted stores.
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
