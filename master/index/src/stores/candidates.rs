use std::collections::{BTreeMap, BTreeSet};

use mc_types::StoreId;

use super::{Segments, Stores, owner};
use crate::key::TenantName;
use crate::work::count_work;

/// A segment that can take puts.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    /// Number of the segment within the cluster.
    pub(crate) segment: u32,
    pub(crate) store: StoreId,
    pub(crate) capacity: u64,
    /// Sum of the capacities of this segment and those before it.
    pub(crate) until: u64,
    pub(crate) tcp_only: bool,
}

/// The segments that can take puts, by store and number.
#[derive(Clone, Default)]
pub(crate) struct Candidates {
    pub(crate) all: Vec<Candidate>,
    /// Bytes of the largest one.
    pub(crate) largest: u64,
    /// Stores that are the memory of one tenant, and that tenant.
    pub(crate) owned: BTreeMap<StoreId, TenantName>,
}

impl Candidates {
    /// Gathers the live segments of mounted stores.
    pub(super) fn of(stores: &Stores, segments: &Segments) -> Self {
        let (mut all, mut owned) = (Vec::new(), BTreeMap::new());
        for (store, known) in stores.iter() {
            let Some(mounted) = &known.mounted else { continue };
            owned.extend(owner(&mounted.mount).map(|tenant| (store, tenant)));
            let tcp_only = mounted.is_tcp_only();
            for segment in mounted.numbers() {
                let Some(space) = segments.space(segment) else { continue };
                all.push(Candidate { segment, store, capacity: space.alloc.capacity(), until: 0, tcp_only });
            }
        }
        Self { owned, ..Self::new(all) }
    }

    /// Returns those that are not on some stores, without the owners of stores.
    pub(crate) fn without(&self, stores: &BTreeSet<StoreId>) -> Self {
        count_work(self.all.len());
        Self::new(self.all.iter().filter(|it| !stores.contains(&it.store)).copied().collect())
    }

    fn new(mut all: Vec<Candidate>) -> Self {
        let mut sum = 0u64;
        for candidate in &mut all {
            sum = sum.saturating_add(candidate.capacity);
            candidate.until = sum;
        }
        let largest = all.iter().map(|it| it.capacity).max().unwrap_or_default();
        Self { all, largest, owned: BTreeMap::new() }
    }

    /// Sum of their capacities.
    pub(crate) fn capacity(&self) -> u64 {
        self.all.last().map_or(0, |last| last.until)
    }
}
