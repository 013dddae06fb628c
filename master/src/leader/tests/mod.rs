mod grants;
mod refused;
mod restarts;
mod streams;
mod tenants;
pub(crate) mod upgrade;

use mc_index::{Endpoint, MountStore};
use mc_types::{GrantKey, SegmentEpoch, StoreId};

/// Key of the stores' grants.
pub(crate) const GRANT_KEY: GrantKey = GrantKey([0; 32]);

/// Returns the mount of a store with these segments, at addresses of TCP.
pub(crate) fn mount(id: u64, addresses: &[&str], segments: &[u64]) -> MountStore {
    let endpoint = |address: &&str| Endpoint {
        transport: "tcp".into(),
        address: (*address).to_owned(),
        attributes: Vec::new(),
    };
    MountStore {
        store: StoreId(id),
        epoch: SegmentEpoch(id),
        name: format!("store-{id}"),
        grant_key: GRANT_KEY,
        endpoints: addresses.iter().map(endpoint).collect(),
        segments: segments.to_vec(),
        http: String::new(),
    }
}
