//! Entry points of tests/fuzz to what masters read from clients and stores: each function says whether it could be
//! read. Panics if a command for the log does not read back there as it was written.

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use mc_index::{Command, KeyHash, Op, Quota, Stamp};
use mc_proto::v1;
use mc_types::{ClusterTime, Code, Receipt};

use super::caller::{Addressee, versions_meet};
use super::convert::{node_id, put_id, store_id};
use super::objects::{limits, put_start_item, unpacked};
use super::stores::{parse_mount, store_and_epoch};
use crate::fuzz::{CLUSTER, NODE};
use crate::leader::{PutTimes, proofs_testing as testing};

/// Whether the caller and the addressee pass their checks.
pub fn caller(caller: Option<&v1::Caller>) -> bool {
    Addressee { cluster: CLUSTER, node: NODE }.check(caller).is_ok()
}

/// Whether a caller speaks a protocol version of this build.
pub fn hello(request: &v1::HelloRequest) -> bool {
    versions_meet(request.version_min, request.version_max).is_ok()
}

/// Whether a tenant's keys are within the limits.
pub fn keys<'a>(tenant: &str, keys: impl ExactSizeIterator<Item = &'a Bytes>) -> bool {
    let items = keys.len();
    for key in keys {
        black_box(KeyHash::of(tenant, key));
    }
    limits(tenant, items).is_ok()
}

/// Whether the boundaries of a message's calls are accepted; each item is then in one call.
pub fn calls<T>(lengths: &[u32], items: &[T]) -> bool {
    let Ok(lengths) = super::objects::calls(lengths, items.len()) else { return false };
    assert_eq!(lengths.iter().sum::<usize>(), items.len());
    true
}

/// Whether the keys of an existence check and their boundaries can be read; each byte is then in one key.
pub fn packed_keys(packed: &v1::PackedKeys) -> bool {
    let Ok((keys, _)) = unpacked("", packed) else { return false };
    assert!(keys.concat() == packed.keys);
    calls(&packed.calls, &keys)
}

/// Whether a report can be read.
pub fn report_mismatch(request: &v1::ReportMismatchRequest) -> bool {
    caller(request.caller.as_ref())
        && keys(&request.tenant, [&request.key].into_iter())
        && put_id(&request.version).is_ok()
        && store_id(&request.store_id).is_ok()
}

/// Whether a batch of puts that start can be read.
pub fn put_start(request: &v1::BatchPutStartRequest) -> bool {
    let times = PutTimes { now: ClusterTime(0), longest: Duration::from_millis(1) };
    let items = request.items.iter().map(|item| put_start_item(&request.tenant, item, times));
    let Ok(items) = items.collect::<Result<_, _>>() else { return false };
    check_logged(Op::PutStart { tenant: request.tenant.clone(), items });
    caller(request.caller.as_ref())
        && calls(&request.calls, &request.items)
        && limits(&request.tenant, request.items.len()).is_ok()
}

/// Whether a batch of puts that end can be read.
pub fn put_end(request: &v1::BatchPutEndRequest) -> bool {
    caller(request.caller.as_ref())
        && keys(&request.tenant, request.items.iter().map(|item| &item.key))
        && request.items.iter().all(|item| put_id(&item.put_id).is_ok())
}

/// Whether receipts prove a put of two replicas. Those count that are right, byte by byte, and no others.
pub fn receipts(data: &[u8]) -> bool {
    let right = valid_receipts();
    let is_wrong = |at: &u8| {
        let at = usize::from(*at);
        data.get(at * Receipt::LEN..(at + 1) * Receipt::LEN) != Some(&right[at][..])
    };
    let wrong: Vec<u8> = (0..2).filter(is_wrong).collect();
    let checked = testing::checked(&[], data, &[true; 2]);
    assert_eq!(checked, if wrong.len() < 2 { Ok(wrong) } else { Err(Code::NotProven) });
    checked.is_ok()
}

/// The receipts that prove that put.
pub fn valid_receipts() -> Vec<Vec<u8>> {
    testing::receipts(2)
}

/// Whether a batch of puts that are given up can be read.
pub fn put_revoke(request: &v1::BatchPutRevokeRequest) -> bool {
    let puts = request.put_ids.iter().map(|id| put_id(id));
    let Ok(puts) = puts.collect::<Result<_, _>>() else { return false };
    check_logged(Op::PutRevoke { puts });
    caller(request.caller.as_ref()) && limits(&request.tenant, request.put_ids.len()).is_ok()
}

/// Whether a removal by pattern can be read. Compiling the pattern takes up to 256 KiB, whatever its length.
pub fn remove_all(request: &v1::RemoveAllRequest) -> bool {
    caller(request.caller.as_ref()) && limits(&request.tenant, 0).is_ok()
}

/// Whether the quota of a tenant can be read.
pub fn set_tenant(request: &v1::SetTenantRequest) -> bool {
    let quota = request.quota.map(|v1::Quota { bytes, objects }| Quota { bytes, objects });
    check_logged(Op::SetTenant { tenant: request.tenant.clone(), quota });
    caller(request.caller.as_ref()) && limits(&request.tenant, 0).is_ok()
}

/// Whether a change of who is let in can be read.
pub fn set_security(request: &v1::SetSecurityRequest) -> bool {
    caller(request.caller.as_ref()) && super::security::can_be_read(request.clone())
}

/// Whether the mount of a store can be read.
pub fn mount(request: &v1::MountStoreRequest) -> bool {
    let Ok(mount) = parse_mount(request.clone()) else { return false };
    check_logged(Op::MountStore(mount));
    caller(request.caller.as_ref())
}

/// Whether these are a store's id and the epoch of its memory.
pub fn store(store: &[u8], epoch: &[u8]) -> bool {
    store_and_epoch(store, epoch).is_ok()
}

/// Whether this is a master's id.
pub fn node(id: &[u8]) -> bool {
    node_id(id).is_ok()
}

fn check_logged(op: Op) {
    let command = Command { stamp: Stamp::default(), op };
    assert_eq!(Command::decode(&command.encode()).as_ref(), Ok(&command));
}
