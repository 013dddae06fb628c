//! Decodes what masters read of clients and stores, for tests/fuzz: each function says whether it could be read. A
//! command for the log must be read there as it was written.

use std::hint::black_box;

use bytes::Bytes;
use mc_index::{Command, KeyHash, Op, Stamp};
use mc_proto::v1;
use mc_types::ClusterTime;

use super::caller::{Addressee, versions_meet};
use super::node_id;
use super::objects::{limits, put_id, start_item};
use super::stores::{parse_mount, store_and_epoch};
use crate::fuzz::{CLUSTER, NODE};

/// Checks the caller and the addressee.
pub fn caller(caller: Option<&v1::Caller>) -> bool {
    Addressee { cluster: CLUSTER, node: NODE }.check(caller).is_ok()
}

/// Checks the versions that a caller speaks.
pub fn hello(request: &v1::HelloRequest) -> bool {
    versions_meet(request.version_min, request.version_max).is_ok()
}

/// Keys, and the tenant whose they are.
pub fn keys<'a>(tenant: &str, keys: impl ExactSizeIterator<Item = &'a Bytes>) -> bool {
    let items = keys.len();
    for key in keys {
        black_box(KeyHash::of(tenant, key));
    }
    limits(tenant, items).is_ok()
}

/// Puts that start.
pub fn put_start(request: &v1::BatchPutStartRequest) -> bool {
    let items = request.items.iter().map(|item| start_item(item, &ClusterTime));
    let Ok(items) = items.collect::<Result<_, _>>() else { return false };
    check_logged(Op::PutStart { tenant: request.tenant.clone(), items });
    caller(request.caller.as_ref()) && limits(&request.tenant, request.items.len()).is_ok()
}

/// Puts that end.
pub fn put_end(request: &v1::BatchPutEndRequest) -> bool {
    caller(request.caller.as_ref())
        && keys(&request.tenant, request.items.iter().map(|item| &item.key))
        && request.items.iter().all(|item| put_id(&item.put_id).is_ok())
}

/// Puts that are given up.
pub fn put_revoke(request: &v1::BatchPutRevokeRequest) -> bool {
    let puts = request.put_ids.iter().map(|id| put_id(id));
    let Ok(puts) = puts.collect::<Result<_, _>>() else { return false };
    check_logged(Op::PutRevoke { puts });
    caller(request.caller.as_ref()) && limits(&request.tenant, request.put_ids.len()).is_ok()
}

/// A store that lends memory.
pub fn mount(request: &v1::MountStoreRequest) -> bool {
    let Ok(mount) = parse_mount(request.clone()) else { return false };
    check_logged(Op::MountStore(mount));
    caller(request.caller.as_ref())
}

/// A store's id and the allocation of its memory.
pub fn store(store: &[u8], epoch: &[u8]) -> bool {
    store_and_epoch(store, epoch).is_ok()
}

/// A master's id.
pub fn node(id: &[u8]) -> bool {
    node_id(id).is_ok()
}

fn check_logged(op: Op) {
    let command = Command { stamp: Stamp::default(), op };
    assert_eq!(Command::decode(&command.encode()).as_ref(), Ok(&command));
}
