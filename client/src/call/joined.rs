//! Requests that go together: several calls of one kind in one message.

use bytes::{Bytes, BytesMut};
use mc_proto::v1::{
    BatchExistReply, BatchExistRequest, BatchGetReply, BatchGetRequest, BatchPutEndReply, BatchPutEndRequest,
    BatchPutStartReply, BatchPutStartRequest, Near, PackedKeys, PackedPresences, PutEndItem, PutStartItem,
    Replica, StoreGrant,
};
use mc_types::{MAX_GROUP_LEN, PutId};

use super::rpc::Rpc;

/// Maximum bytes that an item takes in a message, besides its key, its group and its stores.
const ITEM_BYTES: usize = 100;
/// Maximum bytes of the length of a packed key.
const LENGTH_BYTES: usize = 2;
/// Maximum bytes of one store id there.
const STORE_ID_BYTES: usize = 10;

/// Remaining time in ms from which puts share a message whatever their deadlines. The leader lets the puts of a message wait for room until
/// the first of their deadlines, and by default for half a second at most. So an earlier deadline would shorten the wait of the others.
const LONG_MS: u64 = 1000;

/// A call of one or more items that can share a message with others of its kind.
pub(crate) trait Joined: Rpc {
    /// Whether it starts puts, which are to be revoked if the call is dropped.
    const STARTS: bool = false;

    /// Returns whether a master treats the items of both alike, so that neither can make it refuse the other.
    fn goes_with(&self, other: &Self) -> bool;

    /// Returns the number of its items, and the most bytes that they take in a message.
    fn size(&self) -> (usize, usize);

    /// Returns the ids of the puts that it starts.
    fn started(&self) -> Vec<PutId> {
        Vec::new()
    }

    /// Makes one message of calls; returns it with the number of items of each.
    fn join(calls: Vec<Self>) -> (Self, Vec<usize>);

    /// Splits the answer to a message of several calls of these sizes; `None` if it has another number of results.
    fn split(reply: Self::Reply, sizes: &[usize]) -> Option<Vec<Self::Reply>>;

    /// Returns whether the master that answered tells the calls of a message apart.
    fn tells_apart(reply: &Self::Reply) -> bool;
}

/// Returns the number of keys, and the most bytes that they take in a message.
fn keys_size(keys: &[Bytes]) -> (usize, usize) {
    (keys.len(), keys.iter().map(|key| key.len() + ITEM_BYTES).sum())
}

/// Makes one message of calls, each of which has its items in this field.
fn joined<R: Default, T>(calls: Vec<R>, items: impl Fn(&mut R) -> &mut Vec<T>) -> (R, Vec<usize>) {
    let mut calls = calls.into_iter();
    let mut message = calls.next().unwrap_or_default();
    let mut sizes = vec![items(&mut message).len()];
    for mut call in calls {
        sizes.push(items(&mut call).len());
        items(&mut message).append(items(&mut call));
    }
    (message, sizes)
}

/// Returns the lengths of the calls as a message has them: one call alone needs none.
fn boundaries(sizes: &[usize]) -> Vec<u32> {
    match sizes {
        [_] => Vec::new(),
        _ => sizes.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX)).collect(),
    }
}

/// Cuts results into those of each call.
fn cut<T>(results: Vec<T>, sizes: &[usize]) -> Option<Vec<Vec<T>>> {
    if results.len() != sizes.iter().sum::<usize>() {
        return None;
    }
    let mut results = results.into_iter();
    Some(sizes.iter().map(|size| results.by_ref().take(*size).collect()).collect())
}

/// Makes one piece of the keys of calls; returns it with the number of keys of each.
fn joined_keys(calls: Vec<PackedKeys>) -> (PackedKeys, Vec<usize>) {
    let sizes: Vec<usize> = calls.iter().map(|call| call.lengths.len()).collect();
    if let [_] = sizes[..] {
        return (calls.into_iter().next().unwrap_or_default(), sizes);
    }
    let mut keys = BytesMut::with_capacity(calls.iter().map(|call| call.keys.len()).sum());
    let mut lengths = Vec::with_capacity(sizes.iter().sum());
    for call in &calls {
        keys.extend_from_slice(&call.keys);
        lengths.extend_from_slice(&call.lengths);
    }
    (PackedKeys { keys: keys.freeze(), lengths, calls: boundaries(&sizes) }, sizes)
}

/// Cuts packed results into those of each call.
fn cut_packed(packed: PackedPresences, sizes: &[usize]) -> Option<Vec<PackedPresences>> {
    let PackedPresences { states, sizes: of_objects } = packed;
    let count = sizes.iter().sum::<usize>();
    if states.len() != count || of_objects.len() != count {
        return None;
    }
    let (mut from, mut each) = (0, Vec::with_capacity(sizes.len()));
    for size in sizes {
        let call = from..from + size;
        each.push(PackedPresences { states: states.slice(call.clone()), sizes: of_objects[call].to_vec() });
        from += size;
    }
    Some(each)
}

/// Returns the grants that the replicas name, and lets the replicas name those. A grant that is not there stays so.
fn own_grants<'r>(grants: &[StoreGrant], replicas: impl Iterator<Item = &'r mut Replica>) -> Vec<StoreGrant> {
    let (mut own, mut named): (Vec<StoreGrant>, Vec<u32>) = (Vec::new(), Vec::new());
    for replica in replicas {
        let at = match named.iter().position(|at| *at == replica.grant) {
            Some(at) => at,
            None => {
                let grant = usize::try_from(replica.grant).ok().and_then(|at| grants.get(at));
                let Some(grant) = grant else {
                    replica.grant = u32::MAX;
                    continue;
                };
                named.push(replica.grant);
                own.push(grant.clone());
                own.len() - 1
            }
        };
        replica.grant = u32::try_from(at).unwrap_or(u32::MAX);
    }
    own
}

impl Joined for BatchGetRequest {
    fn goes_with(&self, other: &Self) -> bool {
        self.tenant == other.tenant && self.reads_doubtful == other.reads_doubtful
    }

    fn size(&self) -> (usize, usize) {
        keys_size(&self.keys)
    }

    fn join(calls: Vec<Self>) -> (Self, Vec<usize>) {
        let (message, sizes) = joined(calls, |call| &mut call.keys);
        (Self { calls: boundaries(&sizes), ..message }, sizes)
    }

    fn split(reply: BatchGetReply, sizes: &[usize]) -> Option<Vec<BatchGetReply>> {
        let BatchGetReply { results, grants, lease_ms, apart } = reply;
        let each = cut(results, sizes)?.into_iter().map(|mut results| {
            let replicas = results.iter_mut().flat_map(|result| &mut result.replicas);
            let grants = own_grants(&grants, replicas);
            BatchGetReply { results, grants, lease_ms, apart }
        });
        Some(each.collect())
    }

    fn tells_apart(reply: &BatchGetReply) -> bool {
        reply.apart
    }
}

impl Joined for BatchExistRequest {
    fn goes_with(&self, other: &Self) -> bool {
        self.tenant == other.tenant
            && self.no_lease == other.no_lease
            && self.packed.is_some() == other.packed.is_some()
    }

    fn size(&self) -> (usize, usize) {
        match &self.packed {
            Some(PackedKeys { keys, lengths, .. }) => {
                (lengths.len(), keys.len() + lengths.len() * LENGTH_BYTES)
            }
            None => keys_size(&self.keys),
        }
    }

    fn join(mut calls: Vec<Self>) -> (Self, Vec<usize>) {
        if let Some(packed) = calls.iter_mut().map(|call| call.packed.take()).collect::<Option<Vec<_>>>() {
            let (packed, sizes) = joined_keys(packed);
            let message = calls.into_iter().next().unwrap_or_default();
            return (Self { packed: Some(packed), ..message }, sizes);
        }
        let (message, sizes) = joined(calls, |call| &mut call.keys);
        (Self { calls: boundaries(&sizes), ..message }, sizes)
    }

    fn split(reply: BatchExistReply, sizes: &[usize]) -> Option<Vec<BatchExistReply>> {
        let BatchExistReply { results, packed, apart, packs } = reply;
        let answer = BatchExistReply { apart, packs, ..BatchExistReply::default() };
        if let Some(packed) = packed {
            let each = cut_packed(packed, sizes)?.into_iter();
            return Some(each.map(|it| BatchExistReply { packed: Some(it), ..answer.clone() }).collect());
        }
        if results.is_empty() && !packs {
            // An older master has read no packed keys. Each call finds that out, and asks again.
            return Some(vec![answer; sizes.len()]);
        }
        let each = cut(results, sizes)?.into_iter();
        Some(each.map(|results| BatchExistReply { results, ..answer.clone() }).collect())
    }

    fn tells_apart(reply: &BatchExistReply) -> bool {
        reply.apart
    }
}

/// Returns whether a master that accepts the options of one item accepts those of the other.
fn alike(one: &PutStartItem, other: &PutStartItem) -> bool {
    one.mode == other.mode
        && one.replicas == other.replicas
        && one.preferred_stores == other.preferred_stores
        && one.pin == other.pin
        && one.soft_pin_ms == other.soft_pin_ms
        && one.all_replicas == other.all_replicas
        && one.data_type == other.data_type
        && (one.deadline_ms == other.deadline_ms || one.deadline_ms.min(other.deadline_ms) >= LONG_MS)
        && one.group.len().max(other.group.len()) <= MAX_GROUP_LEN
}

impl Joined for BatchPutStartRequest {
    const STARTS: bool = true;

    /// Puts that are to lie on one host stay apart: that host is chosen for all of a message.
    fn goes_with(&self, other: &Self) -> bool {
        let are_alike = || {
            let first = self.items.first();
            first.is_none_or(|first| self.items.iter().chain(&other.items).all(|item| alike(first, item)))
        };
        self.tenant == other.tenant
            && self.near == other.near
            && self.near != i32::from(Near::EachOther)
            && self.preferred_names == other.preferred_names
            && are_alike()
    }

    fn size(&self) -> (usize, usize) {
        let bytes = |item: &PutStartItem| {
            let stores = item.preferred_stores.len() + item.avoid_stores.len();
            item.key.len() + item.group.len() + stores * STORE_ID_BYTES + ITEM_BYTES
        };
        (self.items.len(), self.items.iter().map(bytes).sum())
    }

    fn started(&self) -> Vec<PutId> {
        self.items.iter().filter_map(|item| PutId::from_bytes(&item.put_id)).collect()
    }

    fn join(calls: Vec<Self>) -> (Self, Vec<usize>) {
        let (message, sizes) = joined(calls, |call| &mut call.items);
        (Self { calls: boundaries(&sizes), ..message }, sizes)
    }

    fn split(reply: BatchPutStartReply, sizes: &[usize]) -> Option<Vec<BatchPutStartReply>> {
        let BatchPutStartReply { results, grants, no_space, largest_segment, apart } = reply;
        let each = cut(results, sizes)?.into_iter().map(|mut results| {
            let replicas = results.iter_mut().flat_map(|result| &mut result.replicas);
            let grants = own_grants(&grants, replicas);
            BatchPutStartReply { results, grants, no_space: no_space.clone(), largest_segment, apart }
        });
        Some(each.collect())
    }

    fn tells_apart(reply: &BatchPutStartReply) -> bool {
        reply.apart
    }
}

impl Joined for BatchPutEndRequest {
    fn goes_with(&self, other: &Self) -> bool {
        self.tenant == other.tenant
    }

    fn size(&self) -> (usize, usize) {
        let bytes = |item: &PutEndItem| item.key.len() + item.receipts.len() + ITEM_BYTES;
        (self.items.len(), self.items.iter().map(bytes).sum())
    }

    /// The objects of a message become visible at once, and count as used from the last to the first. So its calls are in
    /// reverse order, to be used in the order of the calls, each from its last item to its first.
    fn join(mut calls: Vec<Self>) -> (Self, Vec<usize>) {
        calls.reverse();
        let (message, mut sizes) = joined(calls, |call| &mut call.items);
        sizes.reverse();
        (message, sizes)
    }

    fn split(reply: BatchPutEndReply, sizes: &[usize]) -> Option<Vec<BatchPutEndReply>> {
        let reversed: Vec<usize> = sizes.iter().rev().copied().collect();
        let each = cut(reply.results, &reversed)?;
        Some(each.into_iter().rev().map(|results| BatchPutEndReply { results }).collect())
    }

    /// No master needs to: the calls of a message have nothing in common.
    fn tells_apart(_: &BatchPutEndReply) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use mc_proto::v1::{ExistResult, GetResult, PutEndItem, PutEndResult};

    use super::*;

    fn get(keys: &[&'static str]) -> BatchGetRequest {
        let keys = keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect();
        BatchGetRequest { keys, ..BatchGetRequest::default() }
    }

    fn grant(store: u8) -> StoreGrant {
        StoreGrant { store_id: vec![store].into(), ..StoreGrant::default() }
    }

    fn found(size: u64, grants: &[u32]) -> GetResult {
        let replica = |grant: &u32| Replica { grant: *grant, ..Replica::default() };
        GetResult { size, replicas: grants.iter().map(replica).collect(), ..GetResult::default() }
    }

    #[test]
    fn a_message_names_the_lengths_of_its_calls_and_one_call_alone_none() {
        let (alone, sizes) = BatchGetRequest::join(vec![get(&["a", "b"])]);
        assert_eq!((alone.calls, sizes), (vec![], vec![2]));
        let (message, sizes) = BatchGetRequest::join(vec![get(&["a", "b"]), get(&["c"]), get(&["a"])]);
        assert_eq!((message.calls, sizes), (vec![2, 1, 1], vec![2, 1, 1]));
        assert_eq!(message.keys, ["a", "b", "c", "a"]);
    }

    #[test]
    fn calls_with_packed_keys_share_a_message_and_none_with_others() {
        let exist = |keys: &'static str, lengths: &[u32]| BatchExistRequest {
            packed: Some(PackedKeys {
                keys: Bytes::from_static(keys.as_bytes()),
                lengths: lengths.to_vec(),
                calls: Vec::new(),
            }),
            ..BatchExistRequest::default()
        };
        assert!(exist("a", &[1]).goes_with(&exist("b", &[1])));
        assert!(!exist("a", &[1]).goes_with(&BatchExistRequest::default()));
        let (alone, sizes) = BatchExistRequest::join(vec![exist("abc", &[1, 2])]);
        assert_eq!((alone, sizes), (exist("abc", &[1, 2]), vec![2]));
        let calls = vec![exist("abc", &[1, 2]), exist("d", &[1]), exist("ef", &[2])];
        assert_eq!(calls.iter().map(|call| call.size().0).sum::<usize>(), 4);
        let (message, sizes) = BatchExistRequest::join(calls);
        let packed = message.packed.unwrap();
        assert_eq!(
            (&packed.keys[..], packed.lengths, packed.calls),
            (&b"abcdef"[..], vec![1, 2, 1, 2], vec![2, 1, 1])
        );

        let packed = PackedPresences { states: vec![1, 2, 1, 3].into(), sizes: vec![10, 0, 11, 0] };
        let reply = BatchExistReply { packed: Some(packed), packs: true, ..BatchExistReply::default() };
        assert!(BatchExistRequest::split(reply.clone(), &[2, 1]).is_none(), "one result too many");
        let each = BatchExistRequest::split(reply, &sizes).unwrap();
        assert!(each.iter().all(|reply| reply.packs));
        let each: Vec<_> = each.into_iter().map(|reply| reply.packed.unwrap()).collect();
        let part = |states: &[u8], sizes: &[u64]| PackedPresences {
            states: states.to_vec().into(),
            sizes: sizes.to_vec(),
        };
        assert_eq!(each, [part(&[1, 2], &[10, 0]), part(&[1], &[11]), part(&[3], &[0])]);
        let nothing = BatchExistReply::default();
        let each = BatchExistRequest::split(nothing.clone(), &sizes);
        assert_eq!(each, Some(vec![nothing; 3]), "an older master reads no packed keys");
        let old = BatchExistReply { results: vec![ExistResult::default()], ..BatchExistReply::default() };
        assert!(BatchExistRequest::split(old, &sizes).is_none());
    }

    #[test]
    fn each_call_gets_its_results_with_the_grants_that_they_name() {
        let reply = BatchGetReply {
            results: vec![found(1, &[0]), found(2, &[1, 0]), found(3, &[2]), found(4, &[7])],
            grants: vec![grant(10), grant(11), grant(12)],
            lease_ms: 5,
            apart: true,
        };
        assert!(BatchGetRequest::split(reply.clone(), &[2, 1]).is_none(), "one result too many");
        let [first, second, third] =
            BatchGetRequest::split(reply, &[2, 1, 1]).and_then(|each| each.try_into().ok()).unwrap();
        assert_eq!(first.results, [found(1, &[0]), found(2, &[1, 0])]);
        assert_eq!(first.grants, [grant(10), grant(11)]);
        assert_eq!((second.results, second.grants), (vec![found(3, &[0])], vec![grant(12)]));
        assert_eq!(
            (third.results, third.grants),
            (vec![found(4, &[u32::MAX])], vec![]),
            "there is no such grant"
        );
    }

    #[test]
    fn ends_are_sent_last_call_first_and_answered_to_the_right_calls() {
        let end = |keys: &[&'static str]| BatchPutEndRequest {
            items: keys
                .iter()
                .map(|key| PutEndItem { key: Bytes::from_static(key.as_bytes()), ..PutEndItem::default() })
                .collect(),
            ..BatchPutEndRequest::default()
        };
        let (message, sizes) = BatchPutEndRequest::join(vec![end(&["a", "b"]), end(&["c"]), end(&["d"])]);
        let keys: Vec<&[u8]> = message.items.iter().map(|item| &item.key[..]).collect();
        assert_eq!(keys, [b"d", b"c", b"a", b"b"]);
        let results = (0..4).map(|code| PutEndResult { code }).collect();
        let each = BatchPutEndRequest::split(BatchPutEndReply { results }, &sizes).unwrap();
        let codes: Vec<Vec<i32>> =
            each.iter().map(|reply| reply.results.iter().map(|result| result.code).collect()).collect();
        assert_eq!(codes, [vec![2, 3], vec![1], vec![0]]);
    }

    #[test]
    fn a_start_with_a_short_deadline_does_not_shorten_the_wait_of_others() {
        let start = |deadline_ms| BatchPutStartRequest {
            items: vec![PutStartItem { deadline_ms, ..PutStartItem::default() }],
            ..BatchPutStartRequest::default()
        };
        assert!(start(60_000).goes_with(&start(LONG_MS)));
        assert!(start(50).goes_with(&start(50)));
        for other in [0, 49, LONG_MS, 60_000] {
            assert!(!start(50).goes_with(&start(other)) && !start(other).goes_with(&start(50)));
        }
    }

    /// A master refuses a message as a whole for one of these.
    #[test]
    fn a_start_that_a_master_refuses_shares_no_message_with_one_that_it_takes() {
        let of = |item: PutStartItem| BatchPutStartRequest { items: vec![item], ..Default::default() };
        let named = |names: usize| BatchPutStartRequest {
            preferred_names: vec!["store".to_owned(); names],
            ..of(PutStartItem::default())
        };
        let refused = [
            of(PutStartItem { group: vec![b'g'; MAX_GROUP_LEN + 1].into(), ..Default::default() }),
            of(PutStartItem { preferred_stores: vec![1; 65], ..Default::default() }),
            of(PutStartItem { data_type: 256, ..Default::default() }),
            of(PutStartItem { mode: 9, ..Default::default() }),
            of(PutStartItem { pin: 9, ..Default::default() }),
            of(PutStartItem { soft_pin_ms: u64::MAX, ..Default::default() }),
            BatchPutStartRequest { near: 9, ..of(PutStartItem::default()) },
            BatchPutStartRequest { tenant: "t".repeat(65), ..of(PutStartItem::default()) },
            named(65),
        ];
        let taken = of(PutStartItem { group: b"group"[..].into(), ..Default::default() });
        for refused in refused {
            assert!(!refused.goes_with(&taken) && !taken.goes_with(&refused), "{refused:?}");
        }
    }

    #[test]
    fn starts_with_other_options_or_of_one_host_go_alone() {
        let item =
            |replicas| PutStartItem { replicas, key: Bytes::from_static(b"k"), ..PutStartItem::default() };
        let start = |replicas, near: Near| BatchPutStartRequest {
            items: vec![item(replicas)],
            near: near.into(),
            ..BatchPutStartRequest::default()
        };
        assert!(start(1, Near::Any).goes_with(&start(1, Near::Any)));
        assert!(!start(1, Near::Any).goes_with(&start(2, Near::Any)));
        assert!(!start(1, Near::Any).goes_with(&start(1, Near::Caller)));
        assert!(!start(1, Near::EachOther).goes_with(&start(1, Near::EachOther)));
    }
}
