use std::collections::HashMap;

use bytes::Bytes;
use mc_index::{Endpoint, PlacedReplica, State};
use mc_types::{Access, ClusterId, ClusterTime, Grant, GrantKey, GrantedRange, SegmentEpoch, StoreId};

/// A replica and its place in the grants of the same answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantedReplica {
    pub(crate) placed: PlacedReplica,
    /// Index of the store's grant in the list of grants.
    pub(crate) grant: u32,
    /// Index of the replica's range in that grant.
    pub(crate) range: u32,
}

/// Permission to touch ranges of one store's memory, sealed for that store.
#[derive(Clone, Debug)]
pub(crate) struct StoreGrant {
    pub(crate) store: StoreId,
    pub(crate) epoch: SegmentEpoch,
    pub(crate) grant: Bytes,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Collects the placements of one call and seals one grant per store for all of them.
pub(super) struct Grants<'a> {
    state: &'a State,
    cluster: ClusterId,
    access: Access,
    expires: ClusterTime,
    /// Number of grants that are before these in the answer.
    before: usize,
    stores: Vec<PerStore<'a>>,
    /// Place of each store in that list.
    places: HashMap<(StoreId, SegmentEpoch), usize>,
}

struct PerStore<'a> {
    store: StoreId,
    epoch: SegmentEpoch,
    key: GrantKey,
    endpoints: &'a [Endpoint],
    ranges: Vec<GrantedRange>,
}

impl<'a> Grants<'a> {
    /// Grants for a call whose answer has the grants `sealed` of other calls before.
    pub(super) fn after(
        sealed: &[StoreGrant],
        state: &'a State,
        cluster: ClusterId,
        access: Access,
        expires: ClusterTime,
    ) -> Self {
        let before = sealed.len();
        Self { state, cluster, access, expires, before, stores: Vec::new(), places: HashMap::new() }
    }

    /// Adds a replica. Returns `None` if its store is no longer mounted with the replica's epoch.
    pub(super) fn add(&mut self, replica: &PlacedReplica) -> Option<GrantedReplica> {
        let at = match self.places.get(&(replica.store, replica.epoch)) {
            Some(at) => *at,
            None => {
                let view = self.state.store(replica.store).filter(|view| view.epoch == replica.epoch)?;
                self.stores.push(PerStore {
                    store: replica.store,
                    epoch: replica.epoch,
                    key: *view.grant_key,
                    endpoints: view.endpoints,
                    ranges: Vec::new(),
                });
                let at = self.stores.len() - 1;
                self.places.insert((replica.store, replica.epoch), at);
                at
            }
        };
        let ranges = &mut self.stores[at].ranges;
        ranges.push(GrantedRange {
            segment: replica.segment,
            offset: replica.offset,
            len: replica.len,
            index: replica.index,
        });
        let (grant, range) = (u32::try_from(self.before + at).ok()?, u32::try_from(ranges.len() - 1).ok()?);
        Some(GrantedReplica { placed: *replica, grant, range })
    }

    /// Seals one grant per store, in the order that the replicas refer to.
    pub(super) fn seal(self) -> Vec<StoreGrant> {
        let Self { cluster, access, expires, stores, .. } = self;
        stores
            .into_iter()
            .map(|PerStore { store, epoch, key, endpoints, ranges }| {
                let (tenant, needs_proof) = (String::new(), false);
                let grant = Grant { cluster, store, epoch, access, expires, tenant, needs_proof, ranges };
                let (grant, endpoints) = (grant.seal_older(&key).bytes, endpoints.to_vec());
                StoreGrant { store, epoch, grant, endpoints }
            })
            .collect()
    }
}
