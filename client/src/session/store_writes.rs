//! Writes of put sessions, one call for each store.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use mc_transfer::{Seal, TransferError, WriteBuffer, WriteOp, Written};
use tokio::time::Instant;

use super::open_put::OpenPut;
use crate::core::Core;
use crate::placement::{Granted, Place};

/// Writes to the memory of one store under one grant.
struct StoreWrites<'w> {
    to: &'w Granted,
    until: Instant,
    targets: Vec<Target>,
    ops: Vec<WriteOp<'w>>,
}

/// Destination of a write: index of the item, number of the replica, and offset of the range.
pub(super) type Target = (usize, u32, u64);

/// Writes to do, by the grant that permits them.
#[derive(Default)]
pub(super) struct Batch<'w>(BTreeMap<(usize, usize), StoreWrites<'w>>);

/// Answers of one store.
pub(super) type StoreResults = Vec<(Target, Result<Written, TransferError>)>;

impl<'w> Batch<'w> {
    /// Adds a write of `from` to one replica of a put, number `at` of the items.
    pub(super) fn add(
        &mut self,
        put: &'w OpenPut,
        now: Instant,
        (at, number, offset): Target,
        place: Place,
        from: Vec<WriteBuffer<'w>>,
    ) {
        // `places` only names grants that are there.
        let Some(Some(to)) = put.granted.get(place.grant) else { return };
        let store = self.0.entry((Arc::as_ptr(&put.granted) as usize, place.grant)).or_insert_with(|| {
            StoreWrites { to, until: put.write_by(now), targets: Vec::new(), ops: Vec::new() }
        });
        store.targets.push((at, number, offset));
        store.ops.push(WriteOp { range: place.range, offset, from });
    }

    /// Begins to write, with one call for each grant.
    pub(super) fn begin(
        self,
        core: &'w Core,
        seal: Seal,
    ) -> impl Iterator<Item = impl Future<Output = StoreResults> + use<'w>> + use<'w> {
        self.0.into_values().map(move |StoreWrites { to, until, targets, ops }| async move {
            targets.into_iter().zip(core.write_to(to, ops, seal, until).await).collect()
        })
    }

    /// Writes, and waits for all stores.
    pub(super) async fn write(self, core: &'w Core) -> StoreResults {
        join_all(self.begin(core, Seal::No)).await.into_iter().flatten().collect()
    }
}
