//! Limits of the pool and of its tenants, as the settings and quotas say.

use crate::command::{Quota, TenantPolicy};
use crate::key::TenantName;
use crate::query::{Memory, Usage};
use crate::security::Security;
use crate::state::State;
use crate::tenants::{Tenant, TenantUsage};

/// Memory of an object besides its record: its slot, its entries in the segments' lists, and unused space in the
/// containers. Measured with `cargo run --release -p mc-index --example apply 1000000`, which prints the resident memory
/// beside this estimate.
pub(crate) const OBJECT_OVERHEAD: u64 = 112;
/// Memory of a put in flight, an upper bound: the record, a key of average length and its entries in lists.
pub(crate) const PUT_BYTES: u64 = 512;
/// Memory of a group and its entry in the map, an upper bound without the list of its members.
pub(crate) const GROUP_BYTES: u64 = 160;
/// Memory of a tenant and its entry in the map, and of its order of eviction in the leader, an upper bound for one with few
/// objects.
pub(crate) const TENANT_BYTES: u64 = 2048;

/// A tenant with a quota, or with something in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantView {
    /// Its name; empty for the default tenant.
    pub name: TenantName,
    /// Its quota if it is registered.
    pub registered: Option<Quota>,
    /// Its objects and puts in the pool.
    pub usage: TenantUsage,
}

impl TenantView {
    fn new((&name, tenant): (&TenantName, &Tenant)) -> Self {
        Self { name, registered: tenant.quota, usage: tenant.usage }
    }
}

impl State {
    /// Whether so many bytes more of a tenant may be hard-pinned.
    #[must_use]
    pub fn may_pin(&self, tenant: &str, bytes: u64) -> bool {
        let limit = self.settings.hard_pin_limit;
        let name = TenantName::new(tenant.as_bytes());
        // Memory of the tenant's own must not let it pin all of the common one.
        let common = self.usage(&self.stores_outside(Memory::Common, &[]));
        let Usage { capacity, pinned, .. } = match common.capacity {
            0 => self.usage(&self.stores_closed_to(&name, &[])),
            _ => common,
        };
        let Quota { bytes: quota, .. } = self.quota(&name);
        let own = self.tenants.usage(&name).all().pinned;
        pinned.saturating_add(bytes) <= limit.of(capacity)
            && (quota == 0 || own.saturating_add(bytes) <= limit.of(quota))
    }

    /// Returns the quota of a tenant: its own, or the default one.
    #[must_use]
    pub fn quota(&self, tenant: &TenantName) -> Quota {
        self.tenants.get(tenant).and_then(|tenant| tenant.quota).unwrap_or(self.settings.default_quota)
    }

    /// Whether a tenant may put one more object, of so many bytes.
    #[must_use]
    pub fn quota_allows(&self, tenant: &str, bytes: u64) -> bool {
        if !self.has_quotas() {
            return true;
        }
        let name = TenantName::new(tenant.as_bytes());
        self.quota(&name).allows(&self.tenants.usage(&name), bytes)
    }

    /// Whether the cluster serves a tenant: a registered one, or any while there are not too many.
    #[must_use]
    pub fn is_served(&self, tenant: &str) -> bool {
        let name = TenantName::new(tenant.as_bytes());
        let may_come = || self.cluster_version < 2 || self.tenants.may_come(&name);
        tenant.is_empty()
            || self.settings.tenants == TenantPolicy::Any && may_come()
            || self.tenants.get(&name).is_some_and(|it| it.quota.is_some())
    }

    /// Returns the usage of a tenant.
    #[must_use]
    pub fn tenant_usage(&self, tenant: &TenantName) -> TenantUsage {
        self.tenants.usage(tenant)
    }

    /// Returns the usage of all tenants together. Objects that a `remove_all` has removed are not in it.
    #[must_use]
    pub fn total_usage(&self) -> TenantUsage {
        self.tenants.total()
    }

    /// Access settings.
    #[must_use]
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// Whether any tenant has a quota that limits it.
    #[must_use]
    pub fn has_quotas(&self) -> bool {
        !self.settings.default_quota.is_none() || self.tenants.registered() > 0
    }

    /// Number of changes of settings and quotas since this copy of the index began, by which a follower of the index knows that
    /// limits may be others.
    #[must_use]
    pub fn limits_changed(&self) -> u64 {
        self.limits_changed
    }

    /// Whether the tenant has a limiting quota, so that its objects have an eviction order of their own.
    #[must_use]
    pub fn has_quota(&self, tenant: &TenantName) -> bool {
        self.has_quotas() && !self.quota(tenant).is_none()
    }

    /// Lists the tenants that are registered or have something in the pool, by name.
    pub fn tenants(&self) -> impl Iterator<Item = TenantView> + '_ {
        self.tenants.iter().map(TenantView::new)
    }

    /// Lists those tenants from a name on, which need not be that of one.
    pub fn tenants_from(&self, name: TenantName) -> impl Iterator<Item = TenantView> + '_ {
        self.tenants.iter_from(name).map(TenantView::new)
    }

    /// Estimate of the memory that the index takes, in bytes. It follows from the objects, puts, groups and tenants alone, so
    /// it is the same on all masters.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        let tenants = if self.cluster_version >= 2 { self.tenants.len() as u64 } else { 0 };
        tenants * TENANT_BYTES
            + self.objects.record_bytes()
            + self.objects.len() * OBJECT_OVERHEAD
            + self.puts.len_in_flight() as u64 * PUT_BYTES
            + self.groups.len() as u64 * GROUP_BYTES
    }

    /// Whether the pool has as many objects, or its index takes as much memory, as the settings allow.
    #[must_use]
    pub fn is_at_cap(&self) -> bool {
        let over = |limit: u64, value: u64| limit > 0 && value >= limit;
        over(self.settings.max_objects, self.objects() + self.puts_in_flight())
            || over(self.settings.max_index_bytes, self.index_bytes())
    }
}
