//! Tenants: the usage and the quota of each, and its objects that `remove_all` made invisible.

use mc_types::ClusterTime;
use serde::{Deserialize, Serialize};

use crate::command::{Pin, Quota};
use crate::cow::CowMap;
use crate::key::TenantName;

/// Maximum number of tenants without a quota of their own that have something in the pool. A leader keeps an order of eviction for
/// each, where they have the default quota.
pub(crate) const UNREGISTERED_MAX: usize = 1 << 16;

impl Quota {
    /// Whether a tenant with this use may have one more object of so many bytes.
    pub(crate) fn allows(self, usage: &TenantUsage, bytes: u64) -> bool {
        let within = |limit: u64, wanted: u64| limit == 0 || wanted <= limit;
        let Share { count, bytes: used, .. } = usage.all();
        within(self.objects, count.saturating_add(1)) && within(self.bytes, used.saturating_add(bytes))
    }
}

/// Objects or puts of a tenant. Bytes are those of all replicas, each rounded up to the alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of objects or puts.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Part of the bytes that is hard-pinned.
    pub pinned: u64,
}

impl Share {
    pub(crate) fn of(bytes: u64, pin: Pin) -> Self {
        Self { count: 1, bytes, pinned: if pin.is_hard() { bytes } else { 0 } }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.pinned += other.pinned;
    }

    pub(crate) fn subtract(&mut self, other: Self) {
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

/// Mark of a `remove_all`: objects that were allocated earlier are gone, though their bytes are not freed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemovalMark {
    /// Order of the entry (see [`crate::allocation_order`]).
    pub(crate) before: u64,
    /// Time from which the bytes may be reused.
    pub(crate) reuse_at: ClusterTime,
}

/// A tenant that has something in the pool, is registered, or was cleared.
#[derive(Clone, Default)]
pub(crate) struct Tenant {
    /// Its own quota, if it is registered.
    pub(crate) quota: Option<Quota>,
    pub(crate) usage: TenantUsage,
    pub(crate) removed: Option<RemovalMark>,
}

impl Tenant {
    fn is_unused(&self) -> bool {
        self.quota.is_none() && self.usage == TenantUsage::default() && self.removed.is_none()
    }
}

/// All tenants that the index knows, by name.
#[derive(Clone)]
pub(crate) struct Tenants {
    by_name: CowMap<TenantName, Tenant>,
    /// Number of tenants with a mark.
    marked: usize,
    /// Number of tenants that are registered.
    registered: usize,
    /// Usage of all tenants together.
    total: TenantUsage,
}

impl Tenants {
    pub(crate) fn new() -> Self {
        Self { by_name: CowMap::new(), marked: 0, registered: 0, total: TenantUsage::default() }
    }

    pub(crate) fn get(&self, name: &TenantName) -> Option<&Tenant> {
        self.by_name.get(name)
    }

    pub(crate) fn usage(&self, name: &TenantName) -> TenantUsage {
        self.get(name).map_or_else(TenantUsage::default, |tenant| tenant.usage)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TenantName, &Tenant)> {
        self.by_name.iter()
    }

    /// Lists the tenants from a name on.
    pub(crate) fn iter_from(&self, name: TenantName) -> impl Iterator<Item = (&TenantName, &Tenant)> {
        self.by_name.iter_from(&name)
    }

    /// Number of tenants that are known.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether a tenant is known, or one more that is not registered may come.
    pub(crate) fn may_come(&self, name: &TenantName) -> bool {
        self.by_name.len() - self.registered < UNREGISTERED_MAX || self.get(name).is_some()
    }

    pub(crate) fn total(&self) -> TenantUsage {
        self.total
    }

    pub(crate) fn registered(&self) -> usize {
        self.registered
    }

    /// Changes the usage of a tenant. A tenant without any usage that is not registered is forgotten.
    pub(crate) fn charge(&mut self, name: TenantName, change: impl FnOnce(&mut TenantUsage)) {
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
        self.marked += usize::from(after.removed.is_some());
        self.marked -= usize::from(before.removed.is_some());
        self.registered += usize::from(after.quota.is_some());
        self.registered -= usize::from(before.quota.is_some());
        self.total.objects.add(after.usage.objects);
        self.total.objects.subtract(before.usage.objects);
        self.total.puts.add(after.usage.puts);
        self.total.puts.subtract(before.usage.puts);
    }

    pub(crate) fn set_quota(&mut self, name: TenantName, quota: Option<Quota>) {
        self.change(name, |tenant| tenant.quota = quota);
    }

    /// Makes the objects of a tenant that were allocated before `mark` invisible, and returns their number.
    pub(crate) fn mark_removed(&mut self, name: TenantName, mark: RemovalMark) -> u64 {
        self.change(name, |tenant| {
            let objects = std::mem::take(&mut tenant.usage.objects).count;
            if objects > 0 {
                let earlier = tenant.removed.map_or(ClusterTime(0), |earlier| earlier.reuse_at);
                tenant.removed = Some(RemovalMark { reuse_at: mark.reuse_at.max(earlier), ..mark });
            }
            objects
        })
    }

    /// Restores the mark of a snapshot.
    pub(crate) fn mark(&mut self, name: TenantName, mark: RemovalMark) {
        self.change(name, |tenant| tenant.removed = Some(mark));
    }

    /// Returns the mark that makes an object of this index key and allocation order invisible, if there is one.
    pub(crate) fn removal_mark(&self, index_key: &[u8], order: u64) -> Option<RemovalMark> {
        if self.marked == 0 {
            return None;
        }
        let mark = self.get(&TenantName::of_index_key(index_key))?.removed?;
        (order < mark.before).then_some(mark)
    }

    /// Whether objects may be left that a mark made invisible.
    pub(crate) fn has_marks(&self) -> bool {
        self.marked > 0
    }

    /// Forgets all marks, once no object is left that one of them made invisible.
    pub(crate) fn forget_marks(&mut self) {
        let marked = self.iter().filter(|(_, tenant)| tenant.removed.is_some());
        let names: Vec<TenantName> = marked.map(|(name, _)| *name).collect();
        for name in names {
            self.change(name, |tenant| tenant.removed = None);
        }
    }
}
