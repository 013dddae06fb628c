use std::collections::{BTreeMap, BTreeSet};

use mc_types::{ClusterTime, GRANT_FORMAT, GrantKey, SegmentEpoch, SegmentNumber, StoreId};

use crate::command::{Endpoint, OWN_STORES_SINCE, PlacedReplica};
use crate::key::TenantName;
use crate::state::State;
use crate::stores::{Mounted, Space, SpaceUsage, owner};

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
    /// Part of the live bytes that puts in flight take.
    pub in_flight: u64,
}

/// Memory that objects compete for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Memory {
    /// The stores that take the objects of all tenants.
    Common,
    /// The stores of one tenant, which take its objects alone.
    OwnedBy(TenantName),
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
    /// Key that it has replaced lately: receipts under it still count.
    pub earlier_key: Option<&'a GrantKey>,
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

impl StoreView<'_> {
    /// Whether the store says with its mount that it reads grants of this format.
    #[must_use]
    pub fn reads_grants_of(&self, format: u8) -> bool {
        let mut formats = self
            .endpoints
            .iter()
            .flat_map(|endpoint| &endpoint.attributes)
            .filter(|(name, _)| name == GRANT_FORMAT);
        formats.any(|(_, newest)| newest.parse().is_ok_and(|newest: u32| newest >= format.into()))
    }
}

impl State {
    /// Sums up the bytes of the mounted stores that are not in `without`, which is sorted.
    #[must_use]
    pub fn usage(&self, without: &[StoreId]) -> Usage {
        let mut usage = self.segments.total();
        let others = without.iter().filter_map(|store| self.stores.mounted(*store));
        for number in others.flat_map(Mounted::numbers) {
            usage.subtract(self.segments.space(number).map_or_else(SpaceUsage::default, Space::usage));
        }
        let SpaceUsage { capacity, used, held, pinned, in_flight } = usage;
        Usage { capacity, live: used.saturating_sub(held), held, pinned, in_flight }
    }

    /// Returns the stores that are the memory of one tenant, with that tenant.
    pub(crate) fn owned_stores(&self) -> &BTreeMap<StoreId, TenantName> {
        const NONE: &BTreeMap<StoreId, TenantName> = &BTreeMap::new();
        if self.cluster_version < OWN_STORES_SINCE {
            return NONE;
        }
        &self.stores.candidates(&self.segments).owned
    }

    /// The tenant whose memory a store is, if it is the memory of one.
    #[must_use]
    pub fn owner(&self, store: StoreId) -> Option<TenantName> {
        self.owned_stores().get(&store).copied()
    }

    /// Whether a store is mounted that is the memory of this tenant.
    #[must_use]
    pub fn has_own_stores(&self, tenant: &TenantName) -> bool {
        self.owned_stores().values().any(|owner| owner == tenant)
    }

    /// Lists the tenants that have stores of their own.
    #[must_use]
    pub fn owners(&self) -> BTreeSet<TenantName> {
        self.owned_stores().values().copied().collect()
    }

    /// Lists the common stores and their epochs while there are stores of tenants, else none.
    #[must_use]
    pub fn common_stores(&self) -> Vec<(StoreId, SegmentEpoch)> {
        let owned = self.owned_stores();
        if owned.is_empty() {
            return Vec::new();
        }
        self.mounted().filter(|(store, _)| !owned.contains_key(store)).collect()
    }

    /// Lists the stores that are the memory of other tenants than this one, and those in `suspects`, sorted.
    #[must_use]
    pub fn stores_closed_to(&self, tenant: &TenantName, suspects: &[StoreId]) -> Vec<StoreId> {
        let others = self.owned_stores().iter().filter(|(_, owner)| *owner != tenant);
        sorted(others.map(|(store, _)| *store).chain(suspects.iter().copied()))
    }

    /// Lists the mounted stores that are not of this memory, and those in `suspects`, sorted.
    #[must_use]
    pub fn stores_outside(&self, memory: Memory, suspects: &[StoreId]) -> Vec<StoreId> {
        let owned = self.owned_stores();
        let suspects = suspects.iter().copied();
        match memory {
            Memory::Common => sorted(suspects.chain(owned.keys().copied())),
            Memory::OwnedBy(tenant) => {
                let stores = self.mounted().map(|(store, _)| store);
                sorted(suspects.chain(stores.filter(|store| owned.get(store) != Some(&tenant))))
            }
        }
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

    /// The name of a store and the tenant whose memory it is, if it is that of one: as it is mounted, or was last. `None` for a store that
    /// is not known.
    #[must_use]
    pub fn name_and_owner(&self, store: StoreId) -> Option<(&str, Option<TenantName>)> {
        let known = self.stores.get(store)?;
        let has_owners = self.cluster_version >= OWN_STORES_SINCE;
        match (&known.mounted, &known.last_name) {
            (Some(Mounted { mount, .. }), _) => Some((&mount.name, owner(mount).filter(|_| has_owners))),
            (None, last) => last.as_ref().map(|last| (last.name.as_str(), last.owner)),
        }
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
        let Mounted { mount, earlier_key, .. } = mounted;
        let earlier_key = earlier_key.as_ref();
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
            earlier_key: earlier_key.filter(|earlier| self.time < earlier.until).map(|earlier| &earlier.key),
            segments: &mount.segments,
            capacity,
            used,
            objects,
        }
    }

    /// Bytes of the largest mounted segment that takes objects of this tenant; 0 without stores.
    #[must_use]
    pub fn largest_segment(&self, tenant: &TenantName) -> u64 {
        let is_open = |store: &StoreId| self.owner(*store).is_none_or(|owner| owner == *tenant);
        let stores = self.stores.iter().filter(|(store, _)| is_open(store));
        let mounted = stores.filter_map(|(_, store)| store.mounted.as_ref());
        let spaces = mounted.flat_map(Mounted::numbers).filter_map(|number| self.segments.space(number));
        spaces.map(|space| space.alloc.capacity()).max().unwrap_or(0)
    }

    /// Whether this epoch of a store has ended, for good. The index remembers the last 16 ended epochs of a store, and
    /// the last 1,024 stores without mounted memory.
    #[must_use]
    pub fn epoch_is_dead(&self, store: StoreId, epoch: SegmentEpoch) -> bool {
        self.stores.is_dead(store, epoch)
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

/// Collects stores in the order of their ids, each once.
fn sorted(stores: impl Iterator<Item = StoreId>) -> Vec<StoreId> {
    stores.collect::<BTreeSet<_>>().into_iter().collect()
}
