//! Exist, get, put and remove.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use mc_index::{GroupId, KeyHash, ListedObject, PutEndItem, PutStartItem, StartKey};
use mc_proto::v1;
use mc_types::{
    ClusterTime, Code, MAX_GROUP_LEN, MAX_NAMED_STORES, PinAction, Replication, SOFT_PIN, SOFT_PIN_MAX, Span,
    StoreId,
};

use super::convert::{bytes, endpoints_to_wire, put_id, store_id};
use crate::leader::{
    Described, DescribedGroup, DescribedReplica, Doubtful, GrantedReplica, Holder, LeaseMode, Miss, Near,
    Objects, Placement, Preference, PutTimes, PutToEnd, Refusal, RemovalPage, RemoveObject, StoreGrant,
};

/// Number of keys in a page of a listing when the request names none.
const LISTED_KEYS: usize = 1000;

pub(super) async fn exist(
    objects: &Objects,
    request: v1::BatchExistRequest,
) -> Result<v1::BatchExistReply, Refusal> {
    let v1::BatchExistRequest { tenant, keys, no_lease, packed, calls: lengths, .. } = request;
    let lease = if no_lease { LeaseMode::None } else { LeaseMode::Grant };
    if let Some(packed) = packed {
        let (keys, calls) = unpacked(&tenant, &packed)?;
        let found = objects.exist(&tenant, &keys, &calls, lease).await?;
        let packed = Some(packed_results(&found));
        return Ok(v1::BatchExistReply { packed, apart: true, packs: true, ..Default::default() });
    }
    limits(&tenant, keys.len())?;
    let calls = calls(&lengths, keys.len())?;
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let sizes = objects.exist(&tenant, &keys, &calls, lease).await?;
    let result = |size: Result<u64, Miss>| match size {
        Ok(size) => v1::ExistResult { code: Code::Ok as i32, size, being_written: false },
        Err(miss) => {
            let (code, being_written) = (miss.code() as i32, miss == Miss::BeingWritten);
            v1::ExistResult { code, size: 0, being_written }
        }
    };
    let results = sizes.into_iter().map(result).collect();
    Ok(v1::BatchExistReply { results, apart: true, packs: true, ..Default::default() })
}

/// Returns the keys of a request that has them one after the other, and the number of them in each of its calls.
pub(super) fn unpacked<'p>(
    tenant: &str,
    packed: &'p v1::PackedKeys,
) -> Result<(Vec<&'p [u8]>, Vec<usize>), Refusal> {
    limits(tenant, packed.lengths.len())?;
    let calls = calls(&packed.calls, packed.lengths.len())?;
    let mut rest = &packed.keys[..];
    let mut keys = Vec::with_capacity(packed.lengths.len());
    for len in &packed.lengths {
        let len = usize::try_from(*len).unwrap_or(usize::MAX);
        let Some((key, after)) = rest.split_at_checked(len) else { return Err(other_lengths()) };
        keys.push(key);
        rest = after;
    }
    if rest.is_empty() { Ok((keys, calls)) } else { Err(other_lengths()) }
}

fn other_lengths() -> Refusal {
    Refusal::Invalid("the lengths of the packed keys do not add up to their bytes".to_owned())
}

fn packed_results(found: &[Result<u64, Miss>]) -> v1::PackedPresences {
    let state = |found: &Result<u64, Miss>| match found {
        Ok(_) => v1::KeyState::Present,
        Err(Miss::Absent) => v1::KeyState::Absent,
        Err(Miss::BeingWritten) => v1::KeyState::BeingWritten,
        Err(Miss::Unavailable) => v1::KeyState::Unavailable,
        Err(Miss::InvalidKey) => v1::KeyState::Invalid,
    };
    let states: Vec<u8> = found.iter().map(|found| state(found) as u8).collect();
    let sizes = found.iter().map(|found| found.unwrap_or_default()).collect();
    v1::PackedPresences { states: states.into(), sizes }
}

pub(super) async fn get(
    objects: &Objects,
    request: v1::BatchGetRequest,
    holder: Holder,
) -> Result<v1::BatchGetReply, Refusal> {
    limits(&request.tenant, request.keys.len())?;
    let calls = calls(&request.calls, request.keys.len())?;
    let doubtful = if request.reads_doubtful { Doubtful::Checked } else { Doubtful::Withheld };
    let placements = objects.get(&request.tenant, &request.keys, &calls, doubtful, holder).await?;
    let grants = Grants::new(placements.grants);
    let result = |found: Result<Placement, Miss>| match found {
        Ok(found) => v1::GetResult {
            code: Code::Ok as i32,
            version: bytes(&found.version.to_bytes()),
            size: found.size,
            checksum: found.checksum,
            replicas: grants.replicas(&found.replicas),
            doubtful: found.doubtful,
            being_written: false,
        },
        Err(miss) => {
            let (code, being_written) = (miss.code() as i32, miss == Miss::BeingWritten);
            v1::GetResult { code, being_written, ..Default::default() }
        }
    };
    let results = placements.found.into_iter().map(result).collect();
    let lease_ms = u64::try_from(placements.lease.as_millis()).unwrap_or(u64::MAX);
    Ok(v1::BatchGetReply { results, grants: grants.into_wire(), lease_ms, apart: true })
}

pub(super) async fn describe(
    objects: &Objects,
    request: v1::BatchDescribeRequest,
) -> Result<v1::BatchDescribeReply, Refusal> {
    limits(&request.tenant, request.keys.len())?;
    let replica = |replica: DescribedReplica| v1::DescribedReplica {
        store_id: bytes(&replica.store.to_bytes()),
        epoch: bytes(&replica.epoch.to_bytes()),
        store_name: replica.name,
        address: replica.address,
        segment: replica.segment,
        offset: replica.offset,
        suspect: replica.suspect,
    };
    let group = |group: DescribedGroup| v1::DescribedGroup {
        id: bytes(&group.id.to_bytes()),
        members: group.members,
        lost: group.lost,
        joining: group.joining,
    };
    let result = |found: Result<Described, Code>| match found {
        Ok(found) => v1::DescribeResult {
            code: Code::Ok as i32,
            version: bytes(&found.version.to_bytes()),
            size: found.size,
            checksum: found.checksum,
            hard_pinned: found.hard_pinned,
            soft_pin_left_ms: found
                .soft_pin_left
                .map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            replicas: found.replicas.into_iter().map(replica).collect(),
            data_type: found.data_type.into(),
            group: found.group.map(group),
        },
        Err(code) => v1::DescribeResult { code: code as i32, ..Default::default() },
    };
    let described = objects.describe(&request.tenant, &request.keys).await?;
    Ok(v1::BatchDescribeReply { results: described.into_iter().map(result).collect() })
}

pub(super) async fn report_mismatch(
    objects: &Objects,
    request: v1::ReportMismatchRequest,
) -> Result<v1::ReportMismatchReply, Refusal> {
    limits(&request.tenant, 1)?;
    let (version, store) = (put_id(&request.version)?, store_id(&request.store_id)?);
    objects.report_mismatch(KeyHash::of(&request.tenant, &request.key), version, store).await?;
    Ok(v1::ReportMismatchReply {})
}

pub(super) async fn list_keys(
    objects: &Objects,
    request: v1::ListKeysRequest,
) -> Result<v1::ListKeysReply, Refusal> {
    limits(&request.tenant, 0)?;
    let limit = match usize::try_from(request.limit).unwrap_or(usize::MAX) {
        0 => LISTED_KEYS,
        limit => limit.min(mc_types::MAX_ITEMS),
    };
    let page = objects.list_keys(&request.tenant, &request.prefix, request.from, limit).await?;
    let listed = |it: ListedObject| v1::ListedKey { key: it.key.into(), size: it.size };
    let keys = page.objects.into_iter().map(listed).collect();
    Ok(v1::ListKeysReply { keys, next: page.next.unwrap_or_default() })
}

pub(super) async fn put_start(
    objects: &Objects,
    request: v1::BatchPutStartRequest,
    (holder, caller): (Holder, Option<IpAddr>),
) -> Result<v1::BatchPutStartReply, Refusal> {
    limits(&request.tenant, request.items.len())?;
    let calls = calls(&request.calls, request.items.len())?;
    let near = match (v1::Near::try_from(request.near), caller) {
        (Ok(v1::Near::Any), _) | (Ok(v1::Near::Caller), None) => Near::Any,
        (Ok(v1::Near::Caller), Some(caller)) => Near::Caller(caller),
        (Ok(v1::Near::EachOther), _) => Near::EachOther,
        (Err(_), _) => return Err(Refusal::Invalid(format!("place {} is not known here", request.near))),
    };
    named_stores("preferred_names", request.preferred_names.len())?;
    let v1::BatchPutStartRequest { tenant, items, preferred_names, .. } = request;
    let preference = Preference { names: preferred_names, near };
    let items = |times| items.into_iter().map(|item| put_start_item(&tenant, &item, times)).collect();
    let started = objects.put_start(&tenant, items, &calls, &preference, holder).await?;
    let grants = Grants::new(started.grants);
    let results = started
        .puts
        .iter()
        .map(|(code, replicas)| v1::PutStartResult {
            code: *code as i32,
            replicas: grants.replicas(replicas),
        })
        .collect();
    Ok(v1::BatchPutStartReply {
        results,
        grants: grants.into_wire(),
        no_space: started.no_space.to_owned(),
        largest_segment: started.largest_segment,
        apart: true,
    })
}

pub(super) async fn put_end(
    objects: &Objects,
    request: v1::BatchPutEndRequest,
) -> Result<v1::BatchPutEndReply, Refusal> {
    limits(&request.tenant, request.items.len())?;
    let put = |item: &v1::PutEndItem| {
        let key = KeyHash::of(&request.tenant, &item.key);
        let failed = item.failed_replicas.iter().map(|place| u8::try_from(*place).unwrap_or(u8::MAX));
        let end = PutEndItem {
            failed: failed.collect(),
            ..PutEndItem::new(put_id(&item.put_id)?, key, item.checksum)
        };
        Ok(PutToEnd { end, receipts: item.receipts.clone() })
    };
    let puts = request.items.iter().map(put).collect::<Result<_, Refusal>>()?;
    Ok(v1::BatchPutEndReply { results: put_end_results(objects.put_end(puts).await?) })
}

pub(super) async fn put_revoke(
    objects: &Objects,
    request: v1::BatchPutRevokeRequest,
) -> Result<v1::BatchPutRevokeReply, Refusal> {
    limits(&request.tenant, request.put_ids.len())?;
    let puts = request.put_ids.iter().map(|id| put_id(id)).collect::<Result<_, _>>()?;
    Ok(v1::BatchPutRevokeReply { results: put_end_results(objects.put_revoke(&request.tenant, puts).await?) })
}

pub(super) async fn remove(
    objects: &Objects,
    request: v1::BatchRemoveRequest,
) -> Result<v1::BatchRemoveReply, Refusal> {
    limits(&request.tenant, request.items.len())?;
    let item = |item: v1::RemoveItem| {
        let version = if item.version.is_empty() { None } else { Some(put_id(&item.version)?) };
        Ok(RemoveObject { key: item.key, version })
    };
    let items = request.items.into_iter().map(item).collect::<Result<Vec<_>, Refusal>>()?;
    let codes = objects.remove(&request.tenant, &items, request.force).await?;
    let result = |code: Code| v1::RemoveResult { code: code as i32 };
    Ok(v1::BatchRemoveReply { results: codes.into_iter().map(result).collect() })
}

pub(super) async fn remove_all(
    objects: &Objects,
    request: v1::RemoveAllRequest,
) -> Result<v1::RemoveAllReply, Refusal> {
    let v1::RemoveAllRequest { caller: _, tenant, pattern, force, from } = request;
    limits(&tenant, 0)?;
    let RemovalPage { objects: removed, leased, next } = if force && pattern.is_empty() && from == 0 {
        RemovalPage { objects: objects.remove_all(tenant).await?, ..RemovalPage::default() }
    } else {
        objects.remove_matching(&tenant, &pattern, force, from).await?
    };
    Ok(v1::RemoveAllReply { removed, leased, next: next.unwrap_or_default() })
}

pub(super) async fn drop_replicas(
    objects: &Objects,
    request: &v1::BatchDropReplicasRequest,
) -> Result<v1::BatchDropReplicasReply, Refusal> {
    limits(&request.tenant, request.keys.len())?;
    let codes = objects.drop_replicas(&request.tenant, &request.store_name, &request.keys).await?;
    let result = |code: Code| v1::RemoveResult { code: code as i32 };
    Ok(v1::BatchDropReplicasReply { results: codes.into_iter().map(result).collect() })
}

fn put_end_results(codes: Vec<Code>) -> Vec<v1::PutEndResult> {
    codes.into_iter().map(|code| v1::PutEndResult { code: code as i32 }).collect()
}

/// Grants of one reply. Store ids and epochs are shared by all replicas of a store.
struct Grants(Vec<v1::StoreGrant>);

impl Grants {
    fn new(grants: Vec<StoreGrant>) -> Self {
        let grant = |StoreGrant { store, epoch, grant, endpoints }| v1::StoreGrant {
            store_id: bytes(&store.to_bytes()),
            epoch: bytes(&epoch.to_bytes()),
            grant: grant.bytes,
            proof_key: grant.proof_key.map(|key| bytes(&key.to_bytes())).unwrap_or_default(),
            endpoints: endpoints_to_wire(&endpoints),
        };
        Self(grants.into_iter().map(grant).collect())
    }

    fn replicas(&self, replicas: &[GrantedReplica]) -> Vec<v1::Replica> {
        let ids = |grant: u32| -> (Bytes, Bytes) {
            let grant = usize::try_from(grant).ok().and_then(|at| self.0.get(at));
            grant.map(|grant| (grant.store_id.clone(), grant.epoch.clone())).unwrap_or_default()
        };
        let replica = |GrantedReplica { placed, grant, range }: &GrantedReplica| {
            let (store_id, epoch) = ids(*grant);
            v1::Replica {
                store_id,
                segment: placed.segment,
                epoch,
                offset: placed.offset,
                length: placed.len,
                grant: *grant,
                range: *range,
            }
        };
        replicas.iter().map(replica).collect()
    }

    fn into_wire(self) -> Vec<v1::StoreGrant> {
        self.0
    }
}

/// Returns the put that an item starts, with its lifetime and its pin counted from the leader's time.
pub(super) fn put_start_item(
    tenant: &str,
    item: &v1::PutStartItem,
    times: PutTimes,
) -> Result<PutStartItem, Refusal> {
    if item.group.len() > MAX_GROUP_LEN {
        let len = item.group.len();
        return Err(Refusal::Invalid(format!(
            "the name of a group has {len} bytes, the limit is {MAX_GROUP_LEN}"
        )));
    }
    named_stores("preferred_stores", item.preferred_stores.len())?;
    named_stores("avoid_stores", item.avoid_stores.len())?;
    Ok(PutStartItem {
        replication: if item.all_replicas { Replication::Strict } else { Replication::BestEffort },
        data_type: u8::try_from(item.data_type)
            .map_err(|_| Refusal::Invalid(format!("data type {}: it can be 0 to 255", item.data_type)))?,
        group: (!item.group.is_empty()).then(|| GroupId::of(tenant, &item.group)),
        put: put_id(&item.put_id)?,
        key: StartKey::from_slice(&item.key),
        size: item.size,
        mode: v1::PutMode::try_from(item.mode)
            .map(Into::into)
            .map_err(|_| Refusal::Invalid(format!("put mode {} is not known here", item.mode)))?,
        replicas: u8::try_from(item.replicas.max(1)).unwrap_or(u8::MAX),
        deadline: times.deadline((item.deadline_ms > 0).then(|| Duration::from_millis(item.deadline_ms))),
        preferred: item.preferred_stores.iter().copied().map(StoreId).collect(),
        avoid: item.avoid_stores.iter().copied().map(StoreId).collect(),
        pin: pin_action(item, times)?,
    })
}

/// Checks the length of a list of stores. Each put of the call searches it while the index is locked.
fn named_stores(list: &str, len: usize) -> Result<(), Refusal> {
    if len > MAX_NAMED_STORES {
        return Err(Refusal::Invalid(format!(
            "{list} of a put names {len} stores, the limit is {MAX_NAMED_STORES}: name the most important ones"
        )));
    }
    Ok(())
}

fn pin_action(item: &v1::PutStartItem, times: PutTimes) -> Result<PinAction<ClusterTime>, Refusal> {
    Ok(match v1::PinAction::try_from(item.pin) {
        Ok(v1::PinAction::PinPreserve) => PinAction::Preserve,
        Ok(v1::PinAction::PinDisable) => PinAction::Disable,
        Ok(v1::PinAction::PinHard) => PinAction::Hard,
        Ok(v1::PinAction::PinSoft) => {
            let length = match item.soft_pin_ms {
                0 => SOFT_PIN,
                ms => Duration::from_millis(ms),
            };
            if length > SOFT_PIN_MAX {
                return Err(Refusal::Invalid(format!(
                    "a soft pin of {}: it can last {} at most",
                    Span(length),
                    Span(SOFT_PIN_MAX)
                )));
            }
            PinAction::Soft(times.now.after(length))
        }
        Err(_) => return Err(Refusal::Invalid(format!("pin action {} is not known here", item.pin))),
    })
}

/// Returns the number of items of each call of a message of `items` items.
pub(super) fn calls(lengths: &[u32], items: usize) -> Result<Vec<usize>, Refusal> {
    if lengths.is_empty() {
        return Ok(vec![items]);
    }
    // Empty calls add nothing to the sum, and each call has a cost while the index is locked.
    if lengths.len() > mc_types::MAX_ITEMS {
        let (count, max) = (lengths.len(), mc_types::MAX_ITEMS);
        return Err(Refusal::Invalid(format!(
            "a message of {count} calls, the limit is {max}: send the calls in several messages"
        )));
    }
    let lengths: Vec<usize> = lengths.iter().map(|len| usize::try_from(*len).unwrap_or(usize::MAX)).collect();
    let sum = lengths.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len));
    if sum != Some(items) {
        let why = format!("the calls of a message do not add up to its {items} items");
        return Err(Refusal::Invalid(why));
    }
    Ok(lengths)
}

pub(super) fn limits(tenant: &str, items: usize) -> Result<(), Refusal> {
    if tenant.len() > mc_types::MAX_TENANT_LEN {
        let (len, max) = (tenant.len(), mc_types::MAX_TENANT_LEN);
        return Err(Refusal::Invalid(format!("the tenant's name has {len} bytes, the limit is {max}")));
    }
    if items > mc_types::MAX_ITEMS {
        let max = mc_types::MAX_ITEMS;
        return Err(Refusal::Invalid(format!(
            "{items} items in one call, the limit is {max}: split the batch"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_bounded_number_of_calls_also_of_empty_ones() {
        const MAX: usize = mc_types::MAX_ITEMS;
        assert_eq!(calls(&[2, 0, 1], 3).ok().unwrap(), [2, 0, 1]);
        assert_eq!(calls(&[0; MAX], 0).ok().unwrap().len(), MAX);
        let refusal = calls(&[0; MAX + 1], 0).err().unwrap().to_string();
        assert!(refusal.contains("4097") && refusal.contains("4096"), "{refusal}");
    }

    #[test]
    fn packed_keys_are_taken_apart_by_their_lengths_which_add_up() {
        let packed = |lengths: &[u32]| v1::PackedKeys {
            keys: b"abcde"[..].into(),
            lengths: lengths.to_vec(),
            calls: Vec::new(),
        };
        let keys: [&[u8]; 3] = [b"ab", b"", b"cde"];
        assert_eq!(unpacked("", &packed(&[2, 0, 3])).ok().unwrap(), (keys.to_vec(), vec![3]));
        for lengths in [&[2, 2][..], &[2, 4], &[6], &[], &[u32::MAX, 6]] {
            assert!(unpacked("", &packed(lengths)).is_err(), "{lengths:?}");
        }
    }

    #[test]
    fn packed_keys_have_the_bounds_of_listed_ones_and_calls_of_their_own() {
        let packed = |lengths: usize, calls: &[u32]| v1::PackedKeys {
            lengths: vec![0; lengths],
            calls: calls.to_vec(),
            ..Default::default()
        };
        let most = mc_types::MAX_ITEMS;
        assert_eq!(unpacked("", &packed(3, &[1, 2])).ok().unwrap().1, [1, 2]);
        assert!(unpacked("", &packed(3, &[1, 1])).is_err(), "the calls have other keys");
        assert!(unpacked("", &packed(most, &[])).is_ok() && unpacked("", &packed(most + 1, &[])).is_err());
        assert!(unpacked(&"t".repeat(mc_types::MAX_TENANT_LEN + 1), &packed(1, &[])).is_err());
    }

    #[test]
    fn packed_answers_tell_five_states() {
        let found = [
            Ok(7),
            Err(Miss::Absent),
            Err(Miss::BeingWritten),
            Err(Miss::Unavailable),
            Err(Miss::InvalidKey),
        ];
        let packed = packed_results(&found);
        assert_eq!(packed.states[..], [1, 2, 3, 4, 5], "of the protocol");
        assert_eq!(packed.sizes, [7, 0, 0, 0, 0]);
    }

    #[test]
    fn a_put_names_a_bounded_number_of_stores() {
        let item = |preferred: usize, avoid: usize| v1::PutStartItem {
            put_id: vec![7; 16].into(),
            key: b"k"[..].into(),
            size: 1,
            preferred_stores: (0..preferred as u64).collect(),
            avoid_stores: (0..avoid as u64).collect(),
            ..Default::default()
        };
        let times = PutTimes { now: ClusterTime(1), longest: Duration::from_secs(60) };
        let put = put_start_item("", &item(64, 64), times).ok().unwrap();
        assert_eq!((put.preferred.len(), put.avoid.len()), (64, 64));
        for (preferred, avoid, list) in [(65, 0, "preferred_stores"), (0, 65, "avoid_stores")] {
            let refusal = put_start_item("", &item(preferred, avoid), times).err().unwrap().to_string();
            assert!(refusal.contains(list) && refusal.contains("65") && refusal.contains("64"), "{refusal}");
        }
    }
}
