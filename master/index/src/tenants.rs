//! Tenants: the usage and the quota of each, and its objects that `remove_all` made invisible.

use mc_types::{ClusterTime, MAX_TENANT_LEN};
use serde::{Deserialize, Serialize};

use super::cow::CowMap;
use super::pin::Pin;

/// Maximum number of tenants without a quota of their own that have something in the pool. A leader keeps an order of eviction for
/// each, where they have the default quota.
pub(super) const UNREGISTERED_MAX: usize = 1 << 16;

/// Limits of what a tenant may have in the pool, puts in flight included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Bytes of all replicas, each rounded up to [`mc_types::ALLOCATION_ALIGN`]; 0 for no limit.
    pub bytes: u64,
    /// Objects; 0 for no limit.
    pub objects: u64,
}

impl Quota {
    /// No limit.
    pub const NONE: Self = Self { bytes: 0, objects: 0 };

    /// Whether it limits nothing.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Whether a tenant with this use may have one more object of so many bytes.
    pub(super) fn allows(self, usage: &TenantUsage, bytes: u64) -> bool {
        let within = |limit: u64, wanted: u64| limit == 0 || wanted <= limit;
        let Share { count, bytes: used, .. } = usage.all();
        within(self.objects, count.saturating_add(1)) && within(self.bytes, used.saturating_add(bytes))
    }
}

/// Objects or puts of a tenant. Bytes are those of all replicas, each rounded up to the alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of them.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Part of the bytes that is hard-pinned.
    pub pinned: u64,
}

impl Share {
    pub(super) fn of(bytes: u64, pin: Pin) -> Self {
        Self { count: 1, bytes, pinned: if pin.is_hard() { bytes } else { 0 } }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.pinned += other.pinned;
    }

    pub(super) fn subtract(&mut self, other: Self) {
        self.count -= other.count;
        self.bytes -= other.bytes;
        self.pinned -= other.pinned;
    }
}

/// Usage of the pool by a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantUsage {
    /// Objects, those of dropped stores and segments included until they are swept.
    pub objects: Share,
    /// Puts in flight.
    pub puts: Share,
}

impl TenantUsage {
    /// Objects and puts in flight together.
    #[must_use]
    pub fn all(&self) -> Share {
        let mut all = self.objects;
        all.add(self.puts);
        all
    }
}

/// A tenant's name, in place. A longer one is cut: callers check the length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantName {
    bytes: [u8; MAX_TENANT_LEN],
    len: u8,
}

impl TenantName {
    /// Returns the name in place, cut to [`MAX_TENANT_LEN`] bytes.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        let name = name.get(..MAX_TENANT_LEN).unwrap_or(name);
        let mut bytes = [0; MAX_TENANT_LEN];
        bytes[..name.len()].copy_from_slice(name);
        Self { bytes, len: u8::try_from(name.len()).unwrap_or_default() }
    }

    /// Reads the name at the start of an index key.
    pub(super) fn of_index_key(key: &[u8]) -> Self {
        let (len, rest) = key.split_first().unwrap_or((&0, &[]));
        Self::new(rest.get(..usize::from(*len)).unwrap_or_default())
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl std::fmt::Debug for TenantName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// Mark of a `remove_all`: objects that were allocated earlier are gone, though their bytes are not freed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RemovalMark {
    /// Order of the entry (see [`crate::allocation_order`]).
    pub(super) before: u64,
    /// Time from which the bytes may be reused.
    pub(super) reuse_at: ClusterTime,
}

/// A tenant that has something in the pool, is registered, or was cleared.
#[derive(Clone, Default)]
pub(super) struct Tenant {
    /// Its own quota, if it is registered.
    pub(super) quota: Option<Quota>,
    pub(super) usage: TenantUsage,
    pub(super) cleared: Option<RemovalMark>,
}

impl Tenant {
    fn is_unused(&self) -> bool {
        self.quota.is_none() && self.usage == TenantUsage::default() && self.cleared.is_none()
    }
}

/// All tenants that the index knows, by name.
#[derive(Clone)]
pub(super) struct Tenants {
    by_name: CowMap<TenantName, Tenant>,
    /// Number of tenants with a mark.
    marked: usize,
    /// Number of tenants that are registered.
    registered: usize,
    /// Usage of all tenants together.
    total: TenantUsage,
}

impl Tenants {
    pub(super) fn new() -> Self {
        Self { by_name: CowMap::new(), marked: 0, registered: 0, total: TenantUsage::default() }
    }

    pub(super) fn get(&self, name: &TenantName) -> Option<&Tenant> {
        self.by_name.get(name)
    }

    pub(super) fn usage(&self, name: &TenantName) -> TenantUsage {
        self.get(name).map_or_else(TenantUsage::default, |tenant| tenant.usage)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&TenantName, &Tenant)> {
        self.by_name.iter()
    }

    /// Number of tenants that are known.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether a tenant is known, or one more that is not registered may come.
    pub(super) fn may_come(&self, name: &TenantName) -> bool {
        self.by_name.len() - self.registered < UNREGISTERED_MAX || self.get(name).is_some()
    }

    pub(super) fn total(&self) -> TenantUsage {
        self.total
    }

    pub(super) fn registered(&self) -> usize {
        self.registered
    }

    /// Changes the usage of a tenant. A tenant without any usage that is not registered is forgotten.
    pub(super) fn charge(&mut self, name: TenantName, change: impl FnOnce(&mut TenantUsage)) {
        self.change(name, |tenant| change(&mut tenant.usage));
    }

    fn change<R>(&mut self, name: TenantName, change: impl FnOnce(&mut Tenant) -> R) -> R {
        let before = self.get(&name).cloned().unwrap_or_default();
        let mut after = before.clone();
        let result = change(&mut after);
        self.count(&before, &after);
        if after.is_unused() {
            self.by_name.remove(&name);
        } else {
            self.by_name.insert(name, after);
        }
        result
    }

    fn count(&mut self, before: &Tenant, after: &Tenant) {
        self.marked += usize::from(after.cleared.is_some());
        self.marked -= usize::from(before.cleared.is_some());
        self.registered += usize::from(after.quota.is_some());
        self.registered -= usize::from(before.quota.is_some());
        self.total.objects.add(after.usage.objects);
        self.total.objects.subtract(before.usage.objects);
        self.total.puts.add(after.usage.puts);
        self.total.puts.subtract(before.usage.puts);
    }

    pub(super) fn set_quota(&mut self, name: TenantName, quota: Option<Quota>) {
        self.change(name, |tenant| tenant.quota = quota);
    }

    /// Makes the objects of a tenant that were allocated before `mark` invisible, and returns their number.
    pub(super) fn clear(&mut self, name: TenantName, mark: RemovalMark) -> u64 {
        self.change(name, |tenant| {
            let objects = std::mem::take(&mut tenant.usage.objects).count;
            if objects > 0 {
                let earlier = tenant.cleared.map_or(ClusterTime(0), |earlier| earlier.reuse_at);
                tenant.cleared = Some(RemovalMark { reuse_at: mark.reuse_at.max(earlier), ..mark });
            }
            objects
        })
    }

    /// Restores the mark of a snapshot.
    pub(super) fn mark(&mut self, name: TenantName, mark: RemovalMark) {
        self.change(name, |tenant| tenant.cleared = Some(mark));
    }

    /// Returns the mark that makes an object of this index key and allocation order invisible, if there is one.
    pub(super) fn cleared(&self, index_key: &[u8], order: u64) -> Option<RemovalMark> {
        if self.marked == 0 {
            return None;
        }
        let mark = self.get(&TenantName::of_index_key(index_key))?.cleared?;
        (order < mark.before).then_some(mark)
    }

    /// Whether objects may be left that a mark made invisible.
    pub(super) fn has_marks(&self) -> bool {
        self.marked > 0
    }

    /// Forgets all marks, once no object is left that one of them made invisible.
    pub(super) fn forget_marks(&mut self) {
        let marked = self.iter().filter(|(_, tenant)| tenant.cleared.is_some());
        let names: Vec<TenantName> = marked.map(|(name, _)| *name).collect();
        for name in names {
            self.change(name, |tenant| tenant.cleared = None);
        }
    }
}
