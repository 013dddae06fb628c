use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_client::{ByteSize, Client, Quota};

use crate::until;

/// Pause between two looks at what tenants have.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Keys of one page of a listing.
const PAGE: u32 = 1000;

/// A tenant of a workload, and the bytes that it may have.
#[derive(Clone, Debug, Default)]
pub(super) struct Tenant {
    /// Empty: the default tenant.
    pub(super) name: String,
    pub(super) quota: Option<ByteSize>,
}

impl Tenant {
    /// Gives the tenant its quota.
    pub(super) async fn register(&self, client: &Client) {
        let Some(quota) = self.quota else { return };
        let admin = client.admin();
        until(format!("tenant {} has a quota", self.name), async || {
            admin.set_tenant(&self.name, Quota::default().with_bytes(quota)).await.is_ok()
        })
        .await;
    }

    /// Panics if the masters ever say that the tenant has more than its quota, until `stop` is set.
    pub(super) async fn watch(self, client: Client, stop: Arc<AtomicBool>) {
        let Some(quota) = self.quota else { return };
        let admin = client.admin();
        while !stop.load(Ordering::Relaxed) {
            let tenants = admin.tenants().await.unwrap_or_default();
            if let Some(it) = tenants.iter().find(|tenant| tenant.name == self.name) {
                assert!(it.bytes.0 + it.bytes_in_flight.0 <= quota.0, "beyond its quota of {quota}: {it:?}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asserts that the tenant's objects, counted one by one, fit into its quota. `client` is one of the tenant.
    pub(super) async fn assert_fits(&self, client: &Client) {
        let Some(quota) = self.quota else { return };
        let (mut bytes, mut from) = (0, None);
        loop {
            let page = client.list_keys("", from, PAGE).await.expect("a leader answers");
            bytes += page.keys.iter().map(|key| key.size.0).sum::<u64>();
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert!(bytes <= quota.0, "tenant {} has {bytes} bytes, its quota is {quota}", self.name);
    }
}

/// Returns the tenant's key that has this name in a history, if it is one of the tenant's.
pub(super) fn key_of<'a>(tenant: &str, name: &'a str) -> Option<&'a str> {
    match name.split_once(':') {
        Some((of, key)) => (of == tenant).then_some(key),
        None => tenant.is_empty().then_some(name),
    }
}

/// Returns the name in a history of a tenant's key, which is another key for each tenant.
pub fn tenant_key(tenant: &str, key: &str) -> String {
    if tenant.is_empty() { key.to_owned() } else { format!("{tenant}:{key}") }
}
