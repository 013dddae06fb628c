//! Gets: one call to the leader, then reads from the stores.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mc_discovery::Backoff;
use mc_proto::v1::BatchGetRequest;
use mc_transfer::{Checksum, StagedTransport, TransferError};
use mc_types::{Code, PutId, StoreId};
use tokio::time::{Instant, sleep, timeout_at};

use super::destination::{Destination, Got};
use super::report::report_mismatch;
use crate::Error;
use crate::call::{CallError, LeaderReply};
use crate::core::{
    Core, IN_FLIGHT, check_key, error_of_this_client, item_error, key_chunks, no_buffer_error, nonsense,
    read_error,
};
use crate::local::Embedded;
use crate::placement::{Described, Granted, Place, described, grants, lease_end};

/// Number of failed reads after which an object is a miss. In between the leader is asked again, because a replica that
/// cannot be read may have been moved or dropped.
const TRIES: usize = 3;
/// Bytes of doubtful objects that are read whole at once beside the callers' memory, and at least one object. Others wait
/// for the next round.
const COPIED_AT_ONCE: u64 = 256 << 20;

/// Shortest and longest pause before the leader is asked again about objects whose leases ended before they were read.
pub(crate) const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

type GetResult = Result<Option<Got>, Error>;

/// Who answered a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The pool: the bytes are from its stores, or the leader said that there is no such object to read.
    Pool,
    /// The local cache, in the version that the leader named.
    Cache,
    /// This process alone, as no leader is in reach: its local cache or its embedded store. A hit may be of a version that was replaced
    /// or removed since, and a miss says nothing about the pool.
    Local,
}

/// One object being read.
pub(crate) struct PendingGet<'a> {
    key: Bytes,
    destination: Destination<'a>,
    /// The whole of a doubtful object, out of which the destination is filled once the checksum was compared.
    copy: Option<Destination<'a>>,
    /// The checked copy, if the destination is memory of a device. It is moved there when no read is under way: reads
    /// may hold the buffers that this needs, and would stall meanwhile.
    checked: Option<Bytes>,
    pub(crate) result: Option<GetResult>,
    source: Source,
    /// The leader's latest answer, with the places that have not been tried since.
    object: Option<Described>,
    /// Stores that are not tried again for a version.
    ruled_out: Vec<(PutId, StoreId)>,
    /// Stores whose connection failed once. Each gets one more try, because connections also break for small reasons.
    broken: Vec<StoreId>,
    /// Number of the object's range in the grant that is used now.
    range: u32,
    /// Whether the store that is read from now is one to avoid. It was left to the last and gets only this try.
    last_resort: bool,
    /// Why there is no result since the leader was last asked.
    open: Unread,
    /// Number of rounds in which reading it failed.
    failures: usize,
    /// Whether the latest read got no buffer for memory of GPUs, so that a store is not to blame.
    no_buffer: bool,
}

/// The leader's answer about where objects lie.
pub(crate) struct Located {
    /// One result for each key, in order.
    pub(crate) results: Vec<mc_proto::v1::GetResult>,
    pub(crate) granted: Vec<Option<Granted>>,
    /// When the answered request was sent.
    pub(crate) sent_at: Instant,
    /// Until when the placements may be used.
    pub(crate) lease: Instant,
}

/// Why an object has not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// No place is left to read it from.
    Nowhere,
    /// The lease ended first: other calls had the connections, or the object is large. This does not count as a
    /// failure.
    Expired,
    /// A replica could not be read. After the leader is asked again, another replica may work, or the same one.
    Failed,
}

/// Reads objects from the stores until a deadline, with one call to the leader for a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Get<'c> {
    pub(crate) core: &'c Core,
    pub(crate) deadline: Instant,
}

impl<'c> Get<'c> {
    /// A get that begins now.
    pub(crate) fn new(core: &'c Core) -> Self {
        Self { core, deadline: Instant::now() + core.get_timeout }
    }

    /// Reads objects or parts of them, each into its own memory or the caller's.
    pub(crate) async fn all<'a>(self, items: Vec<(Bytes, Destination<'a>)>) -> Vec<GetResult> {
        self.all_with_source(items).await.into_iter().map(|(result, _)| result).collect()
    }

    /// [`Self::all`], with who answered each.
    pub(crate) async fn all_with_source<'a>(
        self,
        items: Vec<(Bytes, Destination<'a>)>,
    ) -> Vec<(GetResult, Source)> {
        let slot = |(key, destination)| PendingGet::new(key, destination);
        let mut slots: Vec<PendingGet<'a>> = items.into_iter().map(slot).collect();
        let lengths: Vec<usize> = slots.iter().map(|slot| slot.key.len()).collect();
        let mut rest = slots.as_mut_slice();
        let mut chunks = Vec::new();
        for range in key_chunks(lengths.into_iter()) {
            let (chunk, after) = rest.split_at_mut(range.len());
            chunks.push(self.get_chunk(chunk));
            rest = after;
        }
        futures::stream::iter(chunks).buffered(IN_FLIGHT).collect::<Vec<()>>().await;
        let result =
            |slot: PendingGet<'a>| (slot.result.unwrap_or_else(|| Err(nonsense("get"))), slot.source);
        slots.into_iter().map(result).inspect(|(result, _)| self.count_get(result)).collect()
    }

    fn count_get(&self, result: &GetResult) {
        match result {
            Ok(Some(_)) => self.core.counters.hits.one(),
            Ok(None) => self.core.counters.misses.one(),
            Err(_) => {}
        }
    }

    async fn get_chunk(&self, slots: &mut [PendingGet<'_>]) {
        let mut pace = Backoff::new(ASK_AGAIN.0, ASK_AGAIN.1);
        loop {
            let open = slots.iter().filter(|slot| slot.result.is_none());
            let keys: Vec<Bytes> = open.map(|slot| slot.key.clone()).collect();
            if keys.is_empty() {
                return;
            }
            let located = match self.locate(keys).await {
                Ok(located) => located,
                Err(CallError::LocalOnly { .. }) => return self.answer_locally(slots).await,
                Err(CallError::Failed(error)) => return fail_open(slots, &error),
            };
            let mut open: Vec<_> = slots.iter_mut().filter(|slot| slot.result.is_none()).collect();
            for (slot, result) in open.iter_mut().zip(&located.results) {
                self.take_in(slot, result, &located.granted).await;
            }
            if self.read_round(&mut open, &located.granted, located.lease).await {
                sleep(pace.wait().min(self.deadline.saturating_duration_since(Instant::now()))).await;
            }
        }
    }

    /// Asks the leader where objects lie, and leases them.
    pub(crate) async fn locate(&self, keys: Vec<Bytes>) -> Result<Located, CallError> {
        let count = keys.len();
        let request = BatchGetRequest {
            tenant: self.core.tenant.clone(),
            keys,
            reads_doubtful: true,
            ..BatchGetRequest::default()
        };
        let (answer, _) = self.core.lanes.gets.call(request, self.deadline, self.core.call_timeout).await;
        let LeaderReply { reply, sent_at, .. } = answer.map_err(|error| match error {
            CallError::Failed(error) => CallError::Failed(read_error(error)),
            local_only @ CallError::LocalOnly { .. } => local_only,
        })?;
        if reply.results.len() != count {
            return Err(CallError::Failed(nonsense("get")));
        }
        let granted = grants(self.core.leader.masters.cluster().unwrap_or_default(), reply.grants, sent_at);
        Ok(Located { results: reply.results, granted, sent_at, lease: lease_end(sent_at, reply.lease_ms) })
    }

    /// Reads what the slots expect, until the lease ends. Slots without a result then get one or are left for another
    /// round. Returns whether the lease was too short for a slot, so that the next round should wait.
    pub(crate) async fn read_round(
        &self,
        slots: &mut [&mut PendingGet<'_>],
        granted: &[Option<Granted>],
        lease: Instant,
    ) -> bool {
        let mut copied = 0;
        for slot in slots.iter_mut() {
            slot.copy_if_doubtful(self.core.checksum, &mut copied);
        }
        self.read_replicas(slots, granted, lease.min(self.deadline)).await;
        for slot in slots.iter_mut() {
            if let Some(value) = slot.checked.take() {
                slot.deliver(value, &self.core.transport, self.deadline).await;
            }
        }
        let now = Instant::now();
        let mut expired = false;
        for slot in slots.iter_mut().filter(|slot| slot.result.is_none()) {
            slot.failures += usize::from(slot.open == Unread::Failed);
            match slot.open {
                _ if now >= self.deadline => slot.result = Some(Err(slot.late())),
                Unread::Expired => expired = true,
                Unread::Failed if slot.failures < TRIES => {}
                Unread::Failed | Unread::Nowhere => {
                    self.core.counters.unreachable_replicas.one();
                    slot.result = Some(Ok(None));
                }
            }
        }
        expired
    }

    /// Processes the leader's answer about one object: a miss, a hit in the local cache, or something to read.
    async fn take_in(
        &self,
        slot: &mut PendingGet<'_>,
        result: &mc_proto::v1::GetResult,
        granted: &[Option<Granted>],
    ) {
        slot.object = None;
        match Code::try_from(result.code) {
            Ok(Code::Ok) => {}
            Ok(Code::ObjectNotFound) => {
                self.core.local.embedded.iter().for_each(|here| here.forget(&slot.key));
                return slot.result = Some(self.core.pool_miss("get", result).map(|()| None));
            }
            Ok(Code::ReplicaIsNotReady) => return slot.result = Some(Ok(None)),
            _ => return slot.result = Some(Err(item_error("get", result.code))),
        }
        let Some(object) = described(result, granted) else {
            return slot.result = Some(Err(nonsense("get")));
        };
        if let Some(embedded) = &self.core.local.embedded {
            let spot = embedded.spot(object.size, Checksum(object.checksum), object.places.iter());
            embedded.note(&slot.key, spot);
        }
        self.expect(slot, object).await;
    }

    /// Prepares to read from an object, unless the local cache has its version.
    pub(crate) async fn expect(&self, slot: &mut PendingGet<'_>, object: Described) {
        if let Some(value) = self.core.local.cache.exact(&slot.key, object.version)
            && value.len() as u64 == object.size
        {
            self.core.counters.cache_hits.one();
            slot.source = Source::Cache;
            return slot.deliver(value, &self.core.transport, self.deadline).await;
        }
        slot.source = Source::Pool;
        slot.expect(object);
    }

    /// Reads until every slot has a result or no replica left, or until the lease ends. It reads from all stores
    /// concurrently. A slot whose read failed moves on to its next replica without waiting for the other stores.
    async fn read_replicas(
        &self,
        slots: &mut [&mut PendingGet<'_>],
        granted: &[Option<Granted>],
        lease: Instant,
    ) {
        let mut reads = FuturesUnordered::new();
        let open = slots.iter_mut().filter(|slot| slot.result.is_none());
        let mut next: Vec<&mut PendingGet<'_>> = open.map(|slot| &mut **slot).collect();
        loop {
            for (grant, slots) in self.by_next_grant(next, lease) {
                // `places` only names grants that are there.
                let Some(Some(from)) = granted.get(grant) else { continue };
                reads.push(self.read_slots(from, slots, lease));
            }
            let Some((store, slots, results)) = reads.next().await else { return };
            next = slots;
            for (slot, result) in next.iter_mut().zip(results) {
                self.judge_read(slot, store, result);
            }
            next.retain(|slot| slot.result.is_none() && slot.checked.is_none());
        }
    }

    /// Groups the slots that have a place left to read by the index of its grant.
    fn by_next_grant<'s, 'a>(
        &self,
        slots: Vec<&'s mut PendingGet<'a>>,
        lease: Instant,
    ) -> BTreeMap<usize, Vec<&'s mut PendingGet<'a>>> {
        let now = Instant::now();
        let mut by_grant: BTreeMap<usize, Vec<&'s mut PendingGet<'a>>> = BTreeMap::new();
        for slot in slots {
            match slot.next_place(|store| self.core.avoid.avoids(store, now)) {
                // The lease is over, so this answer must not be used.
                Some(_) if now >= lease => slot.expired(),
                Some(place) => {
                    slot.range = place.range;
                    by_grant.entry(place.grant).or_default().push(slot);
                }
                None => {}
            }
        }
        by_grant
    }

    /// Reads slots from one store. The result of each is the checksum of the bytes read, or `None` if these are only
    /// parts of the object, or a copy whose checksum is still to be computed.
    async fn read_slots<'s, 'a>(
        &self,
        from: &Granted,
        mut slots: Vec<&'s mut PendingGet<'a>>,
        lease: Instant,
    ) -> (StoreId, Vec<&'s mut PendingGet<'a>>, Vec<Result<Option<Checksum>, TransferError>>) {
        let (mut ops, mut counts) = (Vec::with_capacity(slots.len()), Vec::with_capacity(slots.len()));
        for slot in &mut slots {
            let before = ops.len();
            let range = slot.range;
            ops.extend(slot.target().reads(range));
            counts.push(ops.len() - before);
        }
        let mut answers = self.core.read_from(from, ops, lease).await.into_iter();
        let result = |(slot, count): (&&mut PendingGet<'a>, usize)| {
            // Every answer of the slot is taken, also those after an error.
            let checksums: Vec<_> = answers.by_ref().take(count).collect();
            let checksums = checksums.into_iter().collect::<Result<Vec<Checksum>, TransferError>>()?;
            let target = slot.copy.as_ref().unwrap_or(&slot.destination);
            let whole = slot.object.as_ref().is_some_and(|object| target.is_whole(object.size));
            Ok(checksums.first().copied().filter(|_| whole && self.core.checksum))
        };
        let results = slots.iter().zip(counts).map(result).collect();
        (from.peer.store, slots, results)
    }

    /// Records the result of a read. The bytes are good if the store accepted the grant before and after it sent them
    /// and, if they are the whole object, their checksum is the writer's.
    fn judge_read(
        &self,
        slot: &mut PendingGet<'_>,
        store: StoreId,
        result: Result<Option<Checksum>, TransferError>,
    ) {
        let Some(object) = &mut slot.object else { return };
        object.places.retain(|place| place.store != store);
        let (version, recorded) = (object.version, object.checksum);
        let result = match (result, &slot.copy) {
            (Ok(None), Some(copy)) => Ok(Some(Checksum::of(copy.own()))),
            (result, _) => result,
        };
        match result {
            Ok(Some(checksum)) if checksum.0 != recorded => {
                self.core.counters.checksum_mismatches.one();
                report_mismatch(self.core, &slot.key, version, store);
                tracing::warn!(%store, %version, "checksum mismatch: these bytes are not returned");
                slot.ruled_out.push((version, store));
                slot.open = Unread::Failed;
            }
            Ok(_) => {
                self.core.counters.bytes_read.add(slot.target().len());
                slot.finish(version, &self.core.local.cache);
            }
            Err(error) => {
                tracing::debug!("{error}");
                slot.no_buffer = matches!(error, TransferError::NoBuffer);
                match error {
                    // No other replica helps.
                    TransferError::Device(_) | TransferError::RdmaOff => {
                        return slot.result = error_of_this_client("get", &error).map(Err);
                    }
                    // Ask the leader again instead of reporting a miss. By then the store may be less busy or know the
                    // new leader, and accept another grant.
                    TransferError::Queued { .. }
                    | TransferError::NoBuffer
                    | TransferError::Deadline { .. }
                    | TransferError::InDoubt { .. }
                    | TransferError::Refused { .. } => return slot.expired(),
                    TransferError::Connect { .. } | TransferError::Broken { .. }
                        if !slot.last_resort && !slot.broken.contains(&store) =>
                    {
                        slot.broken.push(store);
                    }
                    TransferError::Connect { .. }
                    | TransferError::Broken { .. }
                    | TransferError::Stalled { .. }
                    | TransferError::NoRdma { .. }
                    | TransferError::NoEndpoint { .. } => slot.ruled_out.push((version, store)),
                }
                slot.open = Unread::Failed;
            }
        }
    }

    async fn answer_locally(&self, slots: &mut [PendingGet<'_>]) {
        for slot in slots.iter_mut().filter(|slot| slot.result.is_none()) {
            slot.source = Source::Local;
            if let Some(entry) = self.core.local.cache.any(&slot.key) {
                self.core.counters.cache_hits.one();
                slot.deliver(entry.value, &self.core.transport, self.deadline).await;
                continue;
            }
            let Some(embedded) = &self.core.local.embedded else {
                slot.result = Some(self.core.local_miss("get").map(|()| None));
                continue;
            };
            let result = timeout_at(self.deadline, slot.read_embedded(embedded, &self.core.transport)).await;
            let result = match result.unwrap_or_else(|_| Err(late())) {
                Ok(None) => self.core.local_miss("get").map(|()| None),
                result => result,
            };
            if matches!(result, Ok(Some(_))) {
                self.core.counters.embedded_hits.one();
            }
            slot.result = Some(result);
        }
    }
}

fn late() -> Error {
    Error::definite("get", Code::RpcTimeout, "the stores", "the objects were not read by the deadline")
}

impl<'a> PendingGet<'a> {
    pub(crate) fn new(key: Bytes, destination: Destination<'a>) -> Self {
        let refused = check_key("get", &key).err().map(Err);
        Self {
            key,
            destination,
            copy: None,
            checked: None,
            result: refused,
            source: Source::Pool,
            object: None,
            ruled_out: Vec::new(),
            broken: Vec::new(),
            range: 0,
            last_resort: false,
            open: Unread::Nowhere,
            failures: 0,
            no_buffer: false,
        }
    }

    /// Picks the replica to read next. Stores to avoid come last but are not skipped: the leader offers them, so they
    /// may have recovered, or only this client can't reach them.
    fn next_place(&mut self, avoided: impl Fn(StoreId) -> bool) -> Option<Place> {
        let object = self.object.as_ref()?;
        let possible =
            object.places.iter().filter(|place| !self.ruled_out.contains(&(object.version, place.store)));
        let (good, doubtful): (Vec<&Place>, Vec<&Place>) = possible.partition(|place| !avoided(place.store));
        self.last_resort = good.is_empty();
        good.first().or(doubtful.first()).copied().copied()
    }

    /// Notes that the lease ended before the object was read, unless a read has failed.
    fn expired(&mut self) {
        if self.open == Unread::Nowhere {
            self.open = Unread::Expired;
        }
    }

    /// Returns the error of a read that did not end by its deadline.
    fn late(&self) -> Error {
        if self.no_buffer { no_buffer_error("get") } else { late() }
    }

    /// Prepares to read from an object that the leader has described.
    fn expect(&mut self, object: Described) {
        self.open = Unread::Nowhere;
        match self.destination.make_room(object.size) {
            Err(error) => self.result = Some(Err(error)),
            Ok(()) if self.destination.len() == 0 => self.result = Some(Ok(Some(self.destination.filled()))),
            Ok(()) => self.object = Some(object),
        }
    }

    /// Reads a doubtful object as a whole into memory of its own, unless the read is whole and its checksum is compared
    /// anyway. The caller's memory is filled after the check, because nothing less than the whole can be checked.
    fn copy_if_doubtful(&mut self, compares: bool, copied: &mut u64) {
        self.copy = None;
        let object = self.object.as_ref().filter(|object| object.doubtful && self.result.is_none());
        let Some(object) = object else { return };
        let size = object.size;
        if compares && self.destination.is_whole(size) {
            return;
        }
        if *copied > 0 && *copied + size > COPIED_AT_ONCE {
            self.object = None;
            return self.expired();
        }
        *copied += size;
        let mut copy = Destination::whole();
        match copy.make_room(size) {
            Ok(()) => self.copy = Some(copy),
            Err(error) => self.result = Some(Err(error)),
        }
    }

    /// Returns the parts to read from a store, and the memory for them.
    fn target(&mut self) -> &mut Destination<'a> {
        self.copy.as_mut().unwrap_or(&mut self.destination)
    }

    /// Reads the object from this process's own store; `None` if the object is not known to lie there or no longer
    /// does. The store's memory is checked as a whole, so parts are taken from a checked copy of the object, and so is what goes to devices.
    async fn read_embedded(&mut self, embedded: &Embedded, transport: &StagedTransport) -> GetResult {
        let Some(spot) = embedded.find(&self.key) else { return Ok(None) };
        self.destination.check(spot.size)?;
        let mut copy = Destination::whole();
        let in_place = self.destination.is_whole(spot.size) && !self.destination.is_of_device();
        let place = if in_place { &mut self.destination } else { &mut copy };
        place.make_room(spot.size)?;
        let room = place.reads(0).flat_map(|read| read.into).collect();
        if !embedded.read(&spot, room).await {
            embedded.forget(&self.key);
            return Ok(None);
        }
        match place.filled() {
            Got::Bytes(value) if self.destination.is_of_device() => {
                self.destination.deliver_to_device(&value, transport).await.map(Some)
            }
            Got::Bytes(value) => self.destination.deliver(value).map(Some),
            got => Ok(Some(got)),
        }
    }

    /// Sets the result after the bytes were read and checked, and fills the local cache.
    fn finish(&mut self, version: PutId, cache: &crate::local::LocalCache) {
        let cached = |value: &Bytes| {
            if cache.holds(value.len() as u64) {
                cache.insert(&self.key, version, value.clone());
            }
        };
        if let Some(mut copy) = self.copy.take() {
            let value = copy.filled().bytes().unwrap_or_default();
            cached(&value);
            if self.destination.is_of_device() {
                self.checked = Some(value);
            } else {
                self.result = Some(self.destination.deliver(value).map(Some));
            }
            return;
        }
        let got = self.destination.filled();
        match &got {
            Got::Bytes(value) => cached(value),
            // The cache has a copy, or nothing at all.
            Got::Owned(value) if cache.holds(value.len() as u64) => cached(&Bytes::copy_from_slice(value)),
            Got::Owned(_) | Got::Parts(_) | Got::Len(_) => {}
        }
        self.result = Some(Ok(Some(got)));
    }

    /// Sets the result from bytes that are already in memory.
    async fn deliver(&mut self, value: Bytes, transport: &StagedTransport, deadline: Instant) {
        let delivered = match self.destination.is_of_device() {
            // It may wait for others.
            true => timeout_at(deadline, self.destination.deliver_to_device(&value, transport))
                .await
                .unwrap_or_else(|_| Err(no_buffer_error("get"))),
            false => self.destination.deliver(value),
        };
        self.result = Some(delivered.map(Some));
    }
}

fn fail_open(slots: &mut [PendingGet<'_>], error: &Error) {
    for slot in slots.iter_mut().filter(|slot| slot.result.is_none()) {
        slot.result = Some(Err(error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteRange;

    /// Copies of whole objects take memory that the caller did not ask for.
    #[test]
    fn doubtful_objects_are_copied_up_to_a_limit_and_the_rest_waits_for_the_next_round() {
        let slot = |doubtful, destination| {
            let mut slot = PendingGet::new(Bytes::from_static(b"k"), destination);
            let size = 100 << 20;
            slot.expect(Described { version: PutId(1), size, checksum: 7, doubtful, places: Vec::new() });
            slot
        };
        let part = || Destination::ranges(vec![ByteRange { offset: 5, len: 10 }]);
        let mut copied = 0;
        let mut outcome = |mut slot: PendingGet<'_>, compares| {
            slot.copy_if_doubtful(compares, &mut copied);
            (slot.copy.is_some(), slot.open)
        };
        assert_eq!(outcome(slot(false, part()), true), (false, Unread::Nowhere), "as it is");
        assert_eq!(
            outcome(slot(true, Destination::whole()), true),
            (false, Unread::Nowhere),
            "compared as it is"
        );
        assert_eq!(outcome(slot(true, Destination::whole()), false), (true, Unread::Nowhere));
        assert_eq!(outcome(slot(true, part()), true), (true, Unread::Nowhere));
        assert_eq!(outcome(slot(true, part()), true), (false, Unread::Expired));
        copied = 0;
        let mut large = slot(true, part());
        large.copy_if_doubtful(true, &mut copied);
        assert!(large.copy.is_some(), "the first one, whatever its size");
    }
}
