//! Gets: one question to the leader, then reads from the stores.

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

use crate::Error;
use crate::batch::IN_FLIGHT;
use crate::call::{CallError, Repeat};
use crate::core::{Core, check_key, item_error, nonsense};
use crate::embedded::Embedded;
use crate::keys::{key_chunks, read_error};
use crate::placement::{Described, Granted, Place, described, grants, lease_end};

/// How often reading one object may fail before it is a miss: a replica that cannot be read may have been moved or
/// dropped, and the leader is asked again.
const TRIES: usize = 3;
/// Between questions about objects whose leases ended before their bytes were read.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Outcome of a read.
#[derive(Clone, Debug)]
pub(crate) enum Got {
    /// Into memory of its own.
    Bytes(Bytes),
    /// So many bytes, into the caller's memory.
    Len(usize),
}

type GetResult = Result<Option<Got>, Error>;

/// One object being read.
struct Slot<'a> {
    key: Bytes,
    into: Option<&'a mut [u8]>,
    /// Memory of its own, while it is being filled.
    own: Vec<u8>,
    result: Option<GetResult>,
    /// The leader's latest answer, and which of its places have not been tried.
    object: Option<Described>,
    /// Places that are not tried again for this version.
    ruled_out: Vec<(PutId, StoreId)>,
    /// Stores whose connection failed: worth one more try, since connections break for smaller reasons.
    broken: Vec<StoreId>,
    /// Place of its range in the grant of the store that is read from now.
    range: u32,
    /// The store that is read from now is one to avoid: it was left to the last, and has this one try.
    last_resort: bool,
    /// Why there is no result yet, since the leader was last asked.
    open: Open,
    /// Times that reading it failed.
    failures: usize,
}

/// Why an object has not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// No place is left to read it from.
    Nowhere,
    /// The lease ended first: other calls had the connections, or the object is large. That is no failure.
    Expired,
    /// A replica could not be read. Another may be, or this one, once the leader has been asked again.
    Failed,
}

impl Core {
    /// Reads objects, each into memory of its own or the caller's.
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
            Ok(Some(_)) => self.masters.counters.hits.one(),
            Ok(None) => self.masters.counters.misses.one(),
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
                        self.masters.counters.unreachable_replicas.one();
                        slot.result = Some(Ok(None));
                    }
                }
            }
            if expired {
                sleep(pace.wait().min(deadline - now)).await;
            }
        }
    }

    /// Sorts the leader's answer about one object: a miss, a hit in the local cache, or something to read.
    fn take_in(&self, slot: &mut Slot<'_>, result: &mc_proto::v1::GetResult, granted: &[Option<Granted>]) {
        slot.object = None;
        match Code::try_from(result.code) {
            Ok(Code::Ok) => {}
            Ok(Code::ObjectNotFound) => {
                self.masters.embedded.iter().for_each(|here| here.forget(&slot.key));
                return slot.result = Some(Ok(None));
            }
            Ok(Code::ReplicaIsNotReady) => return slot.result = Some(Ok(None)),
            _ => return slot.result = Some(Err(item_error("get", result.code))),
        }
        let Some(object) = described(result, granted) else {
            return slot.result = Some(Err(nonsense("get")));
        };
        if let Some(embedded) = &self.masters.embedded {
            let spot = embedded.spot(object.size, Checksum(object.checksum), object.places.iter());
            embedded.note(&slot.key, spot);
        }
        if let Some(value) = self.masters.cache.exact(&slot.key, object.version)
            && value.len() as u64 == object.size
        {
            self.masters.counters.cache_hits.one();
            return slot.deliver(value);
        }
        match slot.make_room(object.size) {
            Ok(()) => slot.object = Some(object),
            Err(error) => slot.result = Some(Err(error)),
        }
    }

    /// Reads until every slot is done or has no replica left, or the lease has ended. Stores are read from side by side,
    /// and none is waited for before others are gone on with: a slot whose read failed moves on to its next replica.
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

    /// The slots that have something left to read, by the grants of where that lies.
    fn by_next_grant<'s, 'a>(
        &self,
        slots: Vec<&'s mut Slot<'a>>,
        lease: Instant,
    ) -> BTreeMap<usize, Vec<&'s mut Slot<'a>>> {
        let now = Instant::now();
        let mut by_grant: BTreeMap<usize, Vec<&'s mut Slot<'a>>> = BTreeMap::new();
        for slot in slots {
            match slot.next_place(|store| self.masters.avoid.avoids(store, now)) {
                // This answer must not be used any more.
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

    /// The bytes are good when the store checked the grant and the checksum is the one that their writer recorded.
    fn judge_read(&self, slot: &mut Slot<'_>, store: StoreId, result: Result<Checksum, TransferError>) {
        let Some(object) = &mut slot.object else { return };
        object.places.retain(|place| place.store != store);
        let version = object.version;
        match result {
            Ok(checksum) if self.checksum && checksum.0 != object.checksum => {
                self.masters.counters.checksum_mismatches.one();
                tracing::warn!(%store, %version, "checksum mismatch: these bytes are not returned");
                slot.ruled_out.push((version, store));
                slot.open = Open::Failed;
            }
            Ok(_) => {
                self.masters.counters.bytes_read.add(object.size);
                slot.finish(version, &self.masters.cache);
            }
            Err(error) => {
                tracing::debug!("{error}");
                match error {
                    // The leader is asked again: another grant may be accepted, by a store that is less busy or has
                    // heard of the new leader by then. That is no miss.
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
            if let Some(entry) = self.masters.cache.any(&slot.key) {
                self.masters.counters.cache_hits.one();
                slot.deliver(entry.value);
                continue;
            }
            let Some(embedded) = &self.masters.embedded else {
                slot.result = Some(Ok(None));
                continue;
            };
            let result = timeout_at(deadline, slot.read_embedded(embedded)).await;
            let result = result.unwrap_or_else(|_| Err(late()));
            if matches!(result, Ok(Some(_))) {
                self.masters.counters.embedded_hits.one();
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

    /// The replica to read next. Stores to avoid come last: the leader offers them, so they may be well again, or it is
    /// only this client that can't reach them.
    fn next_place(&mut self, avoided: impl Fn(StoreId) -> bool) -> Option<Place> {
        let object = self.object.as_ref()?;
        let possible =
            object.places.iter().filter(|place| !self.ruled_out.contains(&(object.version, place.store)));
        let (good, doubtful): (Vec<&Place>, Vec<&Place>) = possible.partition(|place| !avoided(place.store));
        self.last_resort = good.is_empty();
        good.first().or(doubtful.first()).copied().copied()
    }

    /// The lease is over.
    fn expired(&mut self) {
        if self.open == Open::Nowhere {
            self.open = Open::Expired;
        }
    }

    /// Memory for an object of this size.
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

    /// Where the object's bytes go; [`Self::make_room`] has seen to the size.
    fn room(&mut self) -> &mut [u8] {
        self.room_for(self.object.as_ref().map_or(0, |object| object.size))
    }

    fn room_for(&mut self, size: u64) -> &mut [u8] {
        let whole = self.into.as_deref_mut().unwrap_or(&mut self.own);
        let len = usize::try_from(size).unwrap_or(0).min(whole.len());
        &mut whole[..len]
    }

    /// Reads the object from this process's own store, if it is known to lie there and still does.
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

    /// The bytes have been read and are good.
    fn finish(&mut self, version: PutId, cache: &crate::cache::LocalCache) {
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

    /// The bytes are here already.
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
