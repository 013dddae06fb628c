use std::collections::HashMap;

use mc_index::{Endpoint, PlacedReplica, State};
use mc_types::{
    Access, ClusterId, ClusterTime, GRANT_FORMAT, Grant, GrantKey, GrantedRange, STORE_INCARNATION,
    SealedGrant, SegmentEpoch, StoreId,
};

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
    pub(crate) grant: SealedGrant,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Capabilities of the caller that gets grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Its build reads the older format alone.
    Older,
    /// It can't be given keys of proofs, because it called over a plain connection.
    Plain,
    /// It called over TLS: it gets the keys of the proofs, and nobody else can use its grants.
    Secured {
        /// Number of its token or identity.
        number: Option<u64>,
        /// Whether it may map the memory of stores on its host.
        shares_memory: bool,
    },
}

/// Terms that all grants of a call share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) cluster: ClusterId,
    pub(super) access: Access,
    pub(super) expires: ClusterTime,
    pub(super) tenant: &'a str,
    pub(super) holder: Holder,
}

/// Collects the placements of one call and seals one grant per store for all of them.
pub(super) struct Grants<'a> {
    state: &'a State,
    terms: Terms<'a>,
    /// Whether the tenant's bytes may not go by RDMA.
    avoids_rdma: bool,
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
    reads_newest_format: bool,
    ranges: Vec<GrantedRange>,
}

impl<'a> Grants<'a> {
    /// Grants for a call whose answer has the grants `sealed` of other calls before.
    pub(super) fn after(sealed: &[StoreGrant], state: &'a State, terms: Terms<'a>) -> Self {
        let (before, avoids_rdma) = (sealed.len(), state.security().avoids_rdma(terms.tenant));
        Self { state, terms, avoids_rdma, before, stores: Vec::new(), places: HashMap::new() }
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
                    reads_newest_format: view.reads_grants_of(Grant::FORMAT),
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
        let Self { terms, avoids_rdma, stores, .. } = self;
        stores.into_iter().map(|store| store.seal(terms, avoids_rdma)).collect()
    }
}

impl PerStore<'_> {
    fn seal(
        self,
        Terms { cluster, access, expires, tenant, holder }: Terms<'_>,
        avoids_rdma: bool,
    ) -> StoreGrant {
        let Self { store, epoch, key, endpoints, reads_newest_format, ranges } = self;
        let (needs_proof, holder_number, shares_memory) = match holder {
            Holder::Secured { number, shares_memory } => (true, number, shares_memory),
            Holder::Older | Holder::Plain => (false, None, false),
        };
        let tenant = tenant.to_owned();
        let grant = Grant {
            cluster,
            store,
            epoch,
            access,
            expires,
            tenant,
            holder: holder_number,
            needs_proof,
            shares_memory,
            avoids_rdma,
            ranges,
        };
        let is_older = holder == Holder::Older || !reads_newest_format;
        let grant = if is_older { grant.seal_older(&key) } else { grant.seal(&key) };
        StoreGrant { store, epoch, grant, endpoints: endpoints.iter().map(for_clients).collect() }
    }
}

/// Returns an endpoint without what only masters need of it.
fn for_clients(endpoint: &Endpoint) -> Endpoint {
    let attributes = endpoint.attributes.iter().filter(|(name, _)| !is_for_masters(name)).cloned().collect();
    Endpoint { attributes, ..endpoint.clone() }
}

fn is_for_masters(attribute: &str) -> bool {
    matches!(attribute, GRANT_FORMAT | STORE_INCARNATION)
}
