//! Stores, and the segments of memory that they lend: `segments` uses `segment`, and the stores name segments by number.
//! `candidates` lists the segments of all stores, and whose memory they are.

mod candidates;
mod segment;
mod segments;

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use mc_types::{ClusterTime, GrantKey, MAX_SEGMENTS, STORE_NAME, STORE_TENANT, SegmentEpoch, StoreId};
use triomphe::Arc;

use crate::command::MountStore;
use crate::cow::CowMap;
use crate::key::TenantName;

pub(crate) use candidates::{Candidate, Candidates};
pub(crate) use segment::{Segment, Space, SpaceUsage};
pub(crate) use segments::Segments;

/// Maximum number of ended epochs that are remembered for each store.
pub(crate) const DEAD_EPOCHS_MAX: usize = 16;
/// Maximum number of stores without a mounted epoch that are remembered.
pub(crate) const ABSENT_STORES_MAX: usize = 1024;

/// Allowed bytes of a segment: room for at least one allocation, and offsets that fit 48 bits.
pub(crate) const SEGMENT_BYTES: RangeInclusive<u64> = mc_types::ALLOCATION_ALIGN..=1 << 48;
/// Maximum bytes of text in one mount, so that a store's record stays small.
pub(crate) const TEXT_MAX: usize = 8 << 10;
pub(crate) const ENDPOINTS_MAX: usize = 64;
pub(crate) const ATTRIBUTES_MAX: usize = 64;

/// A store: its mounted epoch, and its epochs that have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Store {
    pub(crate) mounted: Option<Mounted>,
    /// Ended epochs, oldest first.
    pub(crate) dead: Vec<SegmentEpoch>,
    /// Log index of the entry that dropped its last epoch.
    pub(crate) dropped_at: u64,
    /// While no epoch is mounted: the name in its last mount, if it was proven, from [`OWN_STORES_SINCE`](crate::OWN_STORES_SINCE) on.
    pub(crate) last_name: Option<ProvenName>,
}

/// The name that a store has proven by a certificate: those who can prove it, and no others, mount the store again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProvenName {
    pub(crate) name: String,
    /// The tenant whose memory the store was.
    pub(crate) owner: Option<TenantName>,
}

/// A mounted epoch of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) mount: MountStore,
    /// Cluster-wide numbers of its segments, ascending, those included that are unmounted.
    pub(crate) numbers: Vec<u32>,
    /// Key that the present one has replaced, if the store has changed it in this epoch.
    pub(crate) earlier_key: Option<EarlierKey>,
}

/// A grant key that another one has replaced. It is remembered beyond its end, so that a mount that arrives late does not bring it
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EarlierKey {
    pub(crate) key: GrantKey,
    /// Cluster time from which receipts under it count no more.
    pub(crate) until: ClusterTime,
}

impl Store {
    /// Whether it is not mounted, and was the memory of one tenant.
    fn was_owned(&self) -> bool {
        self.last_name.as_ref().is_some_and(|last| last.owner.is_some())
    }
}

impl Mounted {
    /// Lists the cluster-wide numbers of its segments.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.numbers.iter().copied()
    }

    /// Whether all its endpoints are TCP. The data plane's fence then makes it safe to reuse held bytes early.
    pub(crate) fn is_tcp_only(&self) -> bool {
        !self.mount.endpoints.is_empty() && self.mount.endpoints.iter().all(|e| e.transport == "tcp")
    }
}

/// Returns the tenant whose memory a store is, if it is mounted with the credential of one.
pub(crate) fn owner(mount: &MountStore) -> Option<TenantName> {
    let mut attributes = mount.endpoints.iter().flat_map(|endpoint| &endpoint.attributes);
    let (_, tenant) = attributes.find(|(name, _)| name == STORE_TENANT)?;
    Some(TenantName::new(tenant.as_bytes()))
}

/// Returns the name in a mount, if a certificate has proven it. A store that mounts without one may come back with one, which has another
/// name.
fn proven_name(mount: &MountStore) -> Option<ProvenName> {
    let mut attributes = mount.endpoints.iter().flat_map(|endpoint| &endpoint.attributes);
    let is_proven = attributes.any(|(name, _)| name == STORE_NAME);
    is_proven.then(|| ProvenName { name: mount.name.clone(), owner: owner(mount) })
}

/// Whether a mount is within the limits.
pub(crate) fn is_mountable(mount: &MountStore) -> bool {
    let endpoints = &mount.endpoints;
    let attributes = || endpoints.iter().flat_map(|e| &e.attributes);
    let text = mount.name.len()
        + mount.http.len()
        + endpoints.iter().map(|e| e.transport.len() + e.address.len()).sum::<usize>()
        + attributes().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    (1..=MAX_SEGMENTS).contains(&mount.segments.len())
        && mount.segments.iter().all(|bytes| *bytes == 0 || SEGMENT_BYTES.contains(bytes))
        && mount.segments.iter().any(|bytes| *bytes > 0)
        && endpoints.len() <= ENDPOINTS_MAX
        && attributes().count() <= ATTRIBUTES_MAX
        && text <= TEXT_MAX
}

/// All known stores.
#[derive(Clone)]
pub(crate) struct Stores {
    by_id: CowMap<StoreId, Arc<Store>>,
    absent: usize,
    /// Segments that can take puts, once they are asked for: gathering them for each entry would be linear in the stores.
    candidates: OnceLock<Arc<Candidates>>,
}

impl Stores {
    pub(crate) fn new() -> Self {
        Self { by_id: CowMap::new(), absent: 0, candidates: OnceLock::new() }
    }

    pub(crate) fn get(&self, id: StoreId) -> Option<&Store> {
        self.by_id.get(&id).map(|store| &**store)
    }

    pub(crate) fn mounted(&self, id: StoreId) -> Option<&Mounted> {
        self.get(id)?.mounted.as_ref()
    }

    /// Number of stores without a mounted epoch.
    pub(crate) fn absent(&self) -> usize {
        self.absent
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (StoreId, &Store)> {
        self.by_id.iter().map(|(&id, store)| (id, &**store))
    }

    /// Returns the segments of mounted stores, which come and go in the entries that change the stores.
    pub(crate) fn candidates(&self, segments: &Segments) -> &Arc<Candidates> {
        self.candidates.get_or_init(|| Arc::new(Candidates::of(self, segments)))
    }

    pub(crate) fn insert(&mut self, id: StoreId, store: Store) {
        self.candidates = OnceLock::new();
        self.absent += usize::from(store.mounted.is_none());
        if self.by_id.insert(id, Arc::new(store)).is_some_and(|old| old.mounted.is_none()) {
            self.absent -= 1;
        }
    }

    /// Adds the key that the present one has replaced; returns false if the store is not mounted.
    pub(crate) fn restore_earlier_key(&mut self, id: StoreId, earlier: EarlierKey) -> bool {
        let mounted = self.by_id.get_mut(&id).and_then(|store| Arc::make_mut(store).mounted.as_mut());
        mounted.map(|mounted| mounted.earlier_key = Some(earlier)).is_some()
    }

    /// Adds the name in the last mount of a store; returns false if the store is not known, or is mounted.
    pub(crate) fn restore_last_name(&mut self, id: StoreId, last: ProvenName) -> bool {
        let absent = self.by_id.get_mut(&id).filter(|store| store.mounted.is_none());
        absent.map(|store| Arc::make_mut(store).last_name = Some(last)).is_some()
    }

    /// Ends the mounted epoch of a store and returns it; `None` when another epoch or none is mounted. It `remembers` the store's
    /// name.
    pub(crate) fn end_epoch(
        &mut self,
        id: StoreId,
        epoch: SegmentEpoch,
        index: u64,
        remembers: bool,
    ) -> Option<Mounted> {
        self.mounted(id).filter(|mounted| mounted.mount.epoch == epoch)?;
        self.candidates = OnceLock::new();
        let store = Arc::make_mut(self.by_id.get_mut(&id)?);
        let mounted = store.mounted.take()?;
        if store.dead.len() >= DEAD_EPOCHS_MAX {
            store.dead.remove(0);
        }
        store.dead.push(epoch);
        store.dropped_at = index;
        store.last_name = if remembers { proven_name(&mounted.mount) } else { None };
        self.absent += 1;
        Some(mounted)
    }

    /// Forgets stores that have been without memory for longest, until at most [`ABSENT_STORES_MAX`] of them are left. Stores of
    /// tenants go first: a tenant that mounts one id after another frees no id of a common store.
    pub(crate) fn forget_excess(&mut self) {
        while self.absent > ABSENT_STORES_MAX {
            let oldest = self
                .iter()
                .filter(|(_, store)| store.mounted.is_none())
                .min_by_key(|(id, store)| (!store.was_owned(), store.dropped_at, *id))
                .map(|(id, _)| id);
            match oldest {
                Some(id) => drop(self.by_id.remove(&id)),
                None => return,
            }
            self.absent -= 1;
        }
    }

    pub(crate) fn is_dead(&self, id: StoreId, epoch: SegmentEpoch) -> bool {
        self.get(id).is_some_and(|store| store.dead.contains(&epoch))
    }
}
