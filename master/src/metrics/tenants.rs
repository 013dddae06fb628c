//! Gauges of tenants, of which there may be any number: the number of their series is bounded.

use std::collections::BTreeMap;

use mc_index::{Quota, TenantView};
use mc_process::metrics::Registry;
use metrics::Gauge;
use parking_lot::Mutex;

/// Maximum number of tenants with series of their own, over the life of the process.
const TENANTS_MAX: usize = 100;
/// Label of the default tenant.
const DEFAULT: &str = "(default)";
/// Label of the sum of all tenants without series of their own.
const OTHERS: &str = "(others)";

/// Use and quota of each tenant.
pub(super) struct TenantGauges {
    registry: Registry,
    by_name: Mutex<BTreeMap<String, Gauges>>,
}

struct Gauges {
    objects: Gauge,
    bytes: Gauge,
    quota_objects: Gauge,
    quota_bytes: Gauge,
}

/// Use of a tenant, puts in flight included, and its quota, as shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantSample {
    pub(crate) name: String,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) quota: Quota,
}

impl TenantSample {
    pub(crate) fn new(view: &TenantView, quota: Quota) -> Self {
        let all = view.usage.all();
        let name = String::from_utf8_lossy(view.name.as_bytes()).into_owned();
        Self { name, objects: all.count, bytes: all.bytes, quota }
    }
}

impl TenantGauges {
    pub(super) fn new(registry: Registry) -> Self {
        let by_name = [DEFAULT, OTHERS].map(|name| (name.to_owned(), Gauges::new(&registry, name)));
        Self { by_name: Mutex::new(by_name.into()), registry }
    }

    /// Shows the present use. Tenants get series of their own in the order in which they come, the largest first.
    pub(super) fn show(&self, mut tenants: Vec<TenantSample>) {
        let mut by_name = self.by_name.lock();
        tenants.sort_by_key(|tenant| std::cmp::Reverse(tenant.bytes));
        by_name.values().for_each(|gauges| gauges.set(&TenantSample::default()));
        let mut others = TenantSample::default();
        for tenant in tenants {
            let name = if tenant.name.is_empty() { DEFAULT } else { &tenant.name };
            if !by_name.contains_key(name) && by_name.len() < TENANTS_MAX + 2 {
                by_name.insert(name.to_owned(), Gauges::new(&self.registry, name));
            }
            match by_name.get(name).filter(|_| name != OTHERS) {
                Some(gauges) => gauges.set(&tenant),
                None => {
                    others.objects += tenant.objects;
                    others.bytes += tenant.bytes;
                }
            }
        }
        if let Some(gauges) = by_name.get(OTHERS) {
            gauges.set(&others);
        }
    }
}

impl Gauges {
    fn new(registry: &Registry, tenant: &str) -> Self {
        let gauge = |name, help| registry.gauge(name, help, &[("tenant", tenant)]);
        Self {
            objects: gauge("mc_tenant_objects", "Objects of a tenant, puts in flight included"),
            bytes: gauge("mc_tenant_bytes", "Bytes of a tenant's replicas, puts in flight included"),
            quota_objects: gauge("mc_tenant_quota_objects", "Quota of a tenant's objects; 0: no limit"),
            quota_bytes: gauge("mc_tenant_quota_bytes", "Quota of a tenant's bytes; 0: no limit"),
        }
    }

    fn set(&self, tenant: &TenantSample) {
        self.objects.set(tenant.objects as f64);
        self.bytes.set(tenant.bytes as f64);
        self.quota_objects.set(tenant.quota.objects as f64);
        self.quota_bytes.set(tenant.quota.bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: String, bytes: u64) -> TenantSample {
        TenantSample { name, objects: 1, bytes, quota: Quota::NONE }
    }

    #[test]
    fn series_are_bounded_and_what_is_gone_is_zero() {
        let registry = Registry::new();
        let gauges = TenantGauges::new(registry.clone());
        gauges.show((0..1000).map(|n| sample(format!("t{n:03}"), n)).collect());
        let page = registry.render();
        let series = |page: &str| page.lines().filter(|line| line.starts_with("mc_tenant_bytes{")).count();
        assert_eq!(series(&page), TENANTS_MAX + 2);
        assert!(page.contains("mc_tenant_bytes{tenant=\"t999\"} 999"), "the largest are shown");
        assert!(page.contains(&format!("mc_tenant_objects{{tenant=\"{OTHERS}\"}} 900")));
        gauges.show(vec![sample(String::new(), 7), sample("new".into(), 1)]);
        let page = registry.render();
        assert_eq!(series(&page), TENANTS_MAX + 2);
        assert!(page.contains("mc_tenant_bytes{tenant=\"t999\"} 0"));
        assert!(page.contains("mc_tenant_bytes{tenant=\"(default)\"} 7"));
        assert!(page.contains("mc_tenant_bytes{tenant=\"(others)\"} 1"));
    }
}
