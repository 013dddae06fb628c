//! Reports to the leader.

use bytes::Bytes;
use mc_proto::v1::ReportMismatchRequest;
use mc_types::{PutId, StoreId};
use tokio::time::Instant;

use crate::call::Repeat;
use crate::core::Core;

/// Tells the leader of a store that gave bytes which don't match their checksum, in the background: the read goes on. A
/// report that is lost stays in the client's own log and metric.
pub(super) fn report_mismatch(core: &Core, key: &Bytes, version: PutId, store: StoreId) {
    let request = ReportMismatchRequest {
        caller: None,
        tenant: core.tenant.clone(),
        key: key.clone(),
        version: Bytes::copy_from_slice(&version.to_bytes()),
        store_id: Bytes::copy_from_slice(&store.to_bytes()),
    };
    let (leader, deadline) = (core.leader.clone(), Instant::now() + core.call_timeout);
    core.leader.runtime.spawn(async move {
        if let Err(error) = leader.call(&request, deadline, Repeat::Freely).await {
            tracing::debug!("cannot report a wrong checksum: {}", error.into_error("report mismatch"));
        }
    });
}
