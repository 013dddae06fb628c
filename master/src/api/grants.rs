use bytes::Bytes;
use mc_proto::v1;
use mc_types::{Access, ClusterId, ClusterTime, Grant, GrantKey, GrantedRange, SegmentEpoch, StoreId};

use mc_index::{PlacedReplica, State, StoreView};

/// Collects the placements of one reply and seals one grant per store for all of them.
pub(crate) struct Grants<'a> {
    state: &'a State,
    cluster: ClusterId,
    access: Access,
    expires: ClusterTime,
    stores: Vec<PerStore>,
}

struct PerStore {
    store: StoreId,
    epoch: SegmentEpoch,
    /// Both as they travel, shared by all replicas there.
    store_id: Bytes,
    epoch_id: Bytes,
    key: GrantKey,
    endpoints: Vec<v1::Endpoint>,
    ranges: Vec<GrantedRange>,
}

impl<'a> Grants<'a> {
    pub(crate) fn new(state: &'a State, cluster: ClusterId, access: Access, expires: ClusterTime) -> Self {
        Self { state, cluster, access, expires, stores: Vec::new() }
    }

    /// Adds a replica; `None` when its store is not mounted with that epoch any more.
    pub(crate) fn add(&mut self, replica: &PlacedReplica) -> Option<v1::Replica> {
        let at = match self.stores.iter().position(|s| s.store == replica.store && s.epoch == replica.epoch) {
            Some(at) => at,
            None => {
                let view = self.state.store(replica.store).filter(|view| view.epoch == replica.epoch)?;
                self.stores.push(PerStore {
                    store: replica.store,
                    epoch: replica.epoch,
                    store_id: bytes(&replica.store.to_bytes()),
                    epoch_id: bytes(&replica.epoch.to_bytes()),
                    key: *view.grant_key,
                    endpoints: endpoints(&view),
                    ranges: Vec::new(),
                });
                self.stores.len() - 1
            }
        };
        let store = &mut self.stores[at];
        store.ranges.push(GrantedRange {
            segment: replica.segment,
            offset: replica.offset,
            len: replica.len,
            index: replica.index,
        });
        Some(v1::Replica {
            store_id: store.store_id.clone(),
            segment: replica.segment,
            epoch: store.epoch_id.clone(),
            offset: replica.offset,
            length: replica.len,
            grant: u32::try_from(at).ok()?,
            range: u32::try_from(store.ranges.len() - 1).ok()?,
        })
    }

    /// Seals what was collected, in the order that the replicas refer to.
    pub(crate) fn seal(self) -> Vec<v1::StoreGrant> {
        let Self { cluster, access, expires, stores, .. } = self;
        stores
            .into_iter()
            .map(|PerStore { store, epoch, store_id, epoch_id, key, endpoints, ranges }| v1::StoreGrant {
                store_id,
                epoch: epoch_id,
                grant: Grant { cluster, store, epoch, access, expires, ranges }.seal(&key),
                endpoints,
            })
            .collect()
    }
}

/// A store's endpoints as they travel.
pub(crate) fn endpoints(store: &StoreView<'_>) -> Vec<v1::Endpoint> {
    let endpoint = |endpoint: &mc_index::Endpoint| v1::Endpoint {
        transport: endpoint.transport.clone(),
        address: endpoint.address.clone(),
        attributes: endpoint.attributes.iter().cloned().collect(),
    };
    store.endpoints.iter().map(endpoint).collect()
}

pub(crate) fn bytes(of: &[u8]) -> Bytes {
    Bytes::copy_from_slice(of)
}
