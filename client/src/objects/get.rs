//! Gets: one call to the leader, then reads from the stores.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mc_discovery::Backoff;
use mc_proto::v1::BatchGetRequest;
use mc_transfer::{Checksum, ReadOp, TransferError};
use mc_types::{Code, PutId, StoreId};
use tokio::time::{Instant, sleep, timeout_at};

use super::batch::IN_FLIGHT;
use super::core::{Core, check_key, item_error, nonsense};
use super::keys::{key_chunks, read_error};
use crate::Error;
use crate::call::{CallError, Repeat};
use crate::local::Embedded;
use crate::placement::{Described, Granted, Place, described, grants, lease_end};

/// Number of failed reads after which an object is a miss. In between the leader is asked again, because a replica that
/// cannot be read may have been moved or dropped.
const TRIES: usize = 3;
/// Shortest and longest pause before the leader is asked again about objects whose leases ended before they were read.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Outcome of a read.
#[derive(Clone, Debug)]
pub(crate) enum Got {
    /// The bytes, in memory of their own.
    Bytes(Bytes),
    /// Number of bytes written to the caller's memory.
    Len(usize),
}

type GetResult = Result<Option<Got>, Error>;

/// One object being read.
struct Slot<'a> {
    key: Bytes,
    into: Option<&'a mut [u8]>,
    /// Buffer for the bytes when the caller gave none (`into` is `None`), while it is being filled.
    own: Vec<u8>,
    result: Option<GetResult>,
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
    open: Open,
    /// Number of rounds in which reading it failed.
    failures: usize,
}

/// Why an object has not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// No place is left to read it from.
    Nowhere,
    /// The lease ended first: other calls had the connections, or the object is large. This does not count as a
    /// failure.
    Expired,
    /// A replica could not be read. After the leader is asked again, another one may work, or this one.
    Failed,
}

impl Core {
    /// Reads objects, each into its own memory or the caller's.
    pub(crate) async fn gets<'a>(&self, items: Vec<(Bytes, Option<&'a mut [u8]>)>) -> Vec<GetResult> {
        let deadline = Instant::now() + self.get_timeout;
        let mut slots: Vec<Slot<'a>> = items.into_iter().map(|(key, into)| Slot::new(key, into)).collect();
        let lengths: Vec<usize> = slots.iter().map(|slot| slot.key.len()).collect();
        let mut rest = slots.as_mut_slice();
        let mut chunks = Vec::new();
        for range in key_chunks(lengths.into_iter()) {
            let (chunk, after) = rest.split_at_mut(range.len());
            chunks.push(self.get_chunk(chunk, deadline));
            rest = after;
        }
        futures::stream::iter(chunks).buffered(IN_FLIGHT).collect::<Vec<()>>().await;
        let results = slots.into_iter().map(|slot| slot.result.unwrap_or_else(|| Err(nonsense("get"))));
        results.inspect(|result| self.count_get(result)).collect()
    }

    fn count_get(&self, result: &GetResult) {
        match result {
            Ok(Some(_)) => self.counters.hits.one(),
            Ok(None) => self.counters.misses.one(),
            Err(_) => {}
        }
    }

    async fn get_chunk(&self, slots: &mut [Slot<'_>], deadline: Instant) {
        let mut pace = Backoff::new(ASK_AGAIN.0, ASK_AGAIN.1);
        loop {
            let open = slots.iter().filter(|slot| slot.result.is_none());
            let keys: Vec<Bytes> = open.map(|slot| slot.key.clone()).collect();
            if keys.is_empty() {
                return;
            }
            let request = BatchGetRequest { caller: None, tenant: self.tenant.clone(), keys };
            let call = self.masters.call(&request, self.call_deadline(deadline), Repeat::Freely);
            let answer = match call.await {
                Ok(answer) if answer.reply.results.len() == request.keys.len() => answer,
                Ok(_) => return fail_open(slots, &nonsense("get")),
                Err(CallError::LocalOnly { .. }) => return self.answer_locally(slots, deadline).await,
                Err(CallError::Failed(error)) => return fail_open(slots, &read_error(error)),
            };
            let granted =
                grants(self.masters.cluster().unwrap_or_default(), answer.reply.grants, answer.sent_at);
            let lease = lease_end(answer.sent_at, answer.reply.lease_ms).min(deadline);
            let open = slots.iter_mut().filter(|slot| slot.result.is_none());
            for (slot, result) in open.zip(&answer.reply.results) {
                slot.open = Open::Nowhere;
                self.take_in(slot, result, &granted);
            }
            self.read_replicas(slots, &granted, lease).await;
            let now = Instant::now();
            let mut expired = false;
            for slot in slots.iter_mut().filter(|slot| slot.result.is_none()) {
                slot.failures += usize::from(slot.open == Open::Failed);
                match slot.open {
                    _ if now >= deadline => slot.result = Some(Err(late())),
                    Open::Expired => expired = true,
                    Open::Failed if slot.failures < TRIES => {}
                    Open::Failed | Open::Nowhere => {
                        self.counters.unreachable_replicas.one();
                        slot.result = Some(Ok(None));
                    }
                }
            }
            if expired {
                sleep(pace.wait().min(deadline - now)).await;
            }
        }
    }

    /// Processes the leader's answer about one object: a miss, a hit in the local cache, or something to read.
    fn take_in(&self, slot: &mut Slot<'_>, result: &mc_proto::v1::GetResult, granted: &[Option<Granted>]) {
        slot.object = None;
        match Code::try_from(result.code) {
            Ok(Code::Ok) => {}
            Ok(Code::ObjectNotFound) => {
                self.local.embedded.iter().for_each(|here| here.forget(&slot.key));
                return slot.result = Some(Ok(None));
            }
            Ok(Code::ReplicaIsNotReady) => return slot.result = Some(Ok(None)),
            _ => return slot.result = Some(Err(item_error("get", result.code))),
        }
        let Some(object) = described(result, granted) else {
            return slot.result = Some(Err(nonsense("get")));
        };
        if let Some(embedded) = &self.local.embedded {
            let spot = embedded.spot(object.size, Checksum(object.checksum), object.places.iter());
            embedded.note(&slot.key, spot);
        }
        if let Some(value) = self.local.cache.exact(&slot.key, object.version)
            && value.len() as u64 == object.size
        {
            self.counters.cache_hits.one();
            return slot.deliver(value);
        }
        match slot.make_room(object.size) {
            Ok(()) => slot.object = Some(object),
            Err(error) => slot.result = Some(Err(error)),
        }
    }

    /// Reads until every slot has a result or no replica left, or until the lease ends. It reads from all stores
    /// concurrently. A slot whose read failed moves on to its next replica without waiting for the other stores.
    async fn read_replicas(&self, slots: &mut [Slot<'_>], granted: &[Option<Granted>], lease: Instant) {
        let mut reads = FuturesUnordered::new();
        let mut next: Vec<&mut Slot<'_>> = slots.iter_mut().filter(|slot| slot.result.is_none()).collect();
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
            next.retain(|slot| slot.result.is_none());
        }
    }

    /// Groups the slots that have a place left to read by the index of its grant.
    fn by_next_grant<'s, 'a>(
        &self,
        slots: Vec<&'s mut Slot<'a>>,
        lease: Instant,
    ) -> BTreeMap<usize, Vec<&'s mut Slot<'a>>> {
        let now = Instant::now();
        let mut by_grant: BTreeMap<usize, Vec<&'s mut Slot<'a>>> = BTreeMap::new();
        for slot in slots {
            match slot.next_place(|store| self.avoid.avoids(store, now)) {
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

    async fn read_slots<'s, 'a>(
        &self,
        from: &Granted,
        mut slots: Vec<&'s mut Slot<'a>>,
        lease: Instant,
    ) -> (StoreId, Vec<&'s mut Slot<'a>>, Vec<Result<Checksum, TransferError>>) {
        let ops = slots.iter_mut().map(|slot| {
            let range = slot.range;
            ReadOp { range, offset: 0, into: vec![slot.room()] }
        });
        let results = self.read_from(from, ops.collect(), lease).await;
        (from.peer.store, slots, results)
    }

    /// Records the result of a read. The bytes are good if the store accepted the grant and the checksum is the
    /// writer's.
    fn judge_read(&self, slot: &mut Slot<'_>, store: StoreId, result: Result<Checksum, TransferError>) {
        let Some(object) = &mut slot.object else { return };
        object.places.retain(|place| place.store != store);
        let version = object.version;
        match result {
            Ok(checksum) if self.checksum && checksum.0 != object.checksum => {
                self.counters.checksum_mismatches.one();
                tracing::warn!(%store, %version, "checksum mismatch: these bytes are not returned");
                slot.ruled_out.push((version, store));
                slot.open = Open::Failed;
            }
            Ok(_) => {
                self.counters.bytes_read.add(object.size);
                slot.finish(version, &self.local.cache);
            }
            Err(error) => {
                tracing::debug!("{error}");
                match error {
                    // Ask the leader again instead of reporting a miss. By then the store may be less busy or know the
                    // new leader, and accept another grant.
                    TransferError::Queued { .. }
                    | TransferError::Deadline { .. }
                    | TransferError::Refused { .. } => return slot.expired(),
                    TransferError::Connect { .. } | TransferError::Broken { .. }
                        if !slot.last_resort && !slot.broken.contains(&store) =>
                    {
                        slot.broken.push(store);
                    }
                    TransferError::Connect { .. }
                    | TransferError::Broken { .. }
                    | TransferError::Stalled { .. }
                    | TransferError::NoEndpoint { .. } => slot.ruled_out.push((version, store)),
                }
                slot.open = Open::Failed;
            }
        }
    }

    async fn answer_locally(&self, slots: &mut [Slot<'_>], deadline: Instant) {
        for slot in slots.iter_mut().filter(|slot| slot.result.is_none()) {
            if let Some(entry) = self.local.cache.any(&slot.key) {
                self.counters.cache_hits.one();
                slot.deliver(entry.value);
                continue;
            }
            let Some(embedded) = &self.local.embedded else {
                slot.result = Some(Ok(None));
                continue;
            };
            let result = timeout_at(deadline, slot.read_embedded(embedded)).await;
            let result = result.unwrap_or_else(|_| Err(late()));
            if matches!(result, Ok(Some(_))) {
                self.counters.embedded_hits.one();
            }
            slot.result = Some(result);
        }
    }
}

fn late() -> Error {
    Error::definite("get", Code::RpcTimeout, "the stores", "the objects were not read by the deadline")
}

impl<'a> Slot<'a> {
    fn new(key: Bytes, into: Option<&'a mut [u8]>) -> Self {
        let refused = check_key("get", &key).err().map(Err);
        Self {
            key,
            into,
            own: Vec::new(),
            result: refused,
            object: None,
            ruled_out: Vec::new(),
            broken: Vec::new(),
            range: 0,
            last_resort: false,
            open: Open::Nowhere,
            failures: 0,
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
        if self.open == Open::Nowhere {
            self.open = Open::Expired;
        }
    }

    /// Prepares memory for an object of this size: checks the caller's, or allocates.
    fn make_room(&mut self, size: u64) -> Result<(), Error> {
        let why = match (usize::try_from(size), &self.into) {
            (Ok(len), Some(into)) if into.len() >= len => return Ok(()),
            (_, Some(into)) => format!("{} bytes of memory for an object of {size}", into.len()),
            (Ok(len), None) => {
                self.own.clear();
                if self.own.try_reserve_exact(len).is_ok() {
                    self.own.resize(len, 0);
                    return Ok(());
                }
                format!("this process has no memory for an object of {size} bytes")
            }
            (Err(_), None) => format!("an object of {size} bytes does not fit this machine"),
        };
        Err(Error::definite("get", Code::InvalidParams, "this client", why))
    }

    /// Returns the memory for the object's bytes; [`Self::make_room`] has checked its size.
    fn room(&mut self) -> &mut [u8] {
        self.room_for(self.object.as_ref().map_or(0, |object| object.size))
    }

    fn room_for(&mut self, size: u64) -> &mut [u8] {
        let whole = self.into.as_deref_mut().unwrap_or(&mut self.own);
        let len = usize::try_from(size).unwrap_or(0).min(whole.len());
        &mut whole[..len]
    }

    /// Reads the object from this process's own store; `None` if the object is not known to lie there or no longer
    /// does.
    async fn read_embedded(&mut self, embedded: &Embedded) -> GetResult {
        let Some(spot) = embedded.find(&self.key) else { return Ok(None) };
        self.make_room(spot.size)?;
        let room = self.room_for(spot.size);
        if !embedded.read(&spot, room).await {
            embedded.forget(&self.key);
            self.own = Vec::new();
            return Ok(None);
        }
        let len = room.len();
        Ok(Some(match self.into {
            Some(_) => Got::Len(len),
            None => Got::Bytes(std::mem::take(&mut self.own).into()),
        }))
    }

    /// Sets the result after the bytes were read and checked, and fills the local cache.
    fn finish(&mut self, version: PutId, cache: &crate::local::LocalCache) {
        let got = if self.into.is_some() {
            Got::Len(self.room().len())
        } else {
            let value = Bytes::from(std::mem::take(&mut self.own));
            if cache.holds(value.len() as u64) {
                cache.insert(&self.key, version, value.clone());
            }
            Got::Bytes(value)
        };
        self.result = Some(Ok(Some(got)));
    }

    /// Sets the result from bytes that are already in memory.
    fn deliver(&mut self, value: Bytes) {
        let got = match &mut self.into {
            None => Ok(Some(Got::Bytes(value))),
            Some(into) if into.len() >= value.len() => {
                into[..value.len()].copy_from_slice(&value);
                Ok(Some(Got::Len(value.len())))
            }
            Some(into) => {
                let why = format!("{} bytes of memory for an object of {}", into.len(), value.len());
                Err(Error::definite("get", Code::InvalidParams, "this client", why))
            }
        };
        self.result = Some(got);
    }
}

fn fail_open(slots: &mut [Slot<'_>], error: &Error) {
    for slot in slots.iter_mut().filter(|slot| slot.result.is_none()) {
        slot.result = Some(Err(error.clone()));
    }
}
