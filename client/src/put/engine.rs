//! Puts: start at the leader, write to the stores, end at the leader.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, ready};
use futures::stream::FuturesUnordered;
use mc_proto::v1::{
    BatchGetRequest, BatchPutEndRequest, BatchPutStartRequest, PutEndItem, PutStartItem, Replica,
};
use mc_transfer::{Seal, TransferError, WriteBuffer, WriteOp, Written};
use mc_types::{Code, PutId, StoreId};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::round::{PendingPut, PutItem, PutStep, StartRefusal, StartedPut, Writes};
use crate::call::{CallError, Repeat, RevokeOnDrop, id_bytes};
use crate::config::LONGEST;
use crate::core::{
    Core, Cost, IN_FLIGHT, Keep, cut, device_error, error_of_this_client, item_error, item_error_with,
    nonsense, representatives,
};
use crate::local::LocalPut;
use crate::placement::{Granted, Place, grants, places};
use crate::{Error, Near, PinAction, Put, PutMode, PutOptions, Replication};

/// Role of the local cache in a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheUse {
    /// Caches the stored value too, which costs a copy.
    Insert,
    /// Caches nothing.
    Skip,
    /// Publishes a local put. Its value is already in the cache and the queue. Without a leader both stay unchanged,
    /// because a later put, a remove or another cluster may have replaced the value there.
    Publish,
    /// Caches nothing, also without a leader: the bytes of a session are not kept, so it needs one.
    Session,
}

/// A batch of puts with the parameters of its call.
#[derive(Clone, Copy)]
pub(crate) struct PutBatch<'c> {
    pub(crate) core: &'c Core,
    pub(crate) options: &'c PutOptions,
    pub(crate) cache_use: CacheUse,
    /// The values of the batch, if the caller gave them away: the cache takes them without a copy.
    pub(crate) given: &'c [Bytes],
    pub(crate) deadline: Instant,
}

/// Outcome of starting a batch of puts.
pub(crate) struct Started<'a> {
    /// Puts that the leader started, with their replicas.
    pub(crate) puts: Vec<(PendingPut<'a>, Vec<Replica>)>,
    /// The grants that the replicas name.
    pub(crate) granted: Vec<Option<Granted>>,
    /// The other puts.
    pub(crate) others: Vec<PutStep<'a>>,
    /// The started puts, to be revoked if they are not ended.
    pub(crate) unended: RevokeOnDrop,
}

/// Maximum bytes of the values of a call whose start shares a message with others. Larger ones may wait for room, and the others with
/// them.
const JOINED_MOST: u64 = 1 << 20;
/// Time that finished writes wait for the other stores. Writes to several stores usually end at nearly the same time,
/// so one call can end all puts.
pub(crate) const STRAGGLE: Duration = Duration::from_millis(20);
/// Maximum bytes of one start item in a request and in the log, without its key and its stores.
const START_ITEM_BYTES: usize = 100;
/// Maximum bytes of one store id there.
const STORE_ID_BYTES: usize = 10;

/// Maximum time that a write reserves for the end of its put. It reserves a quarter of the remaining time up to this.
pub(crate) const KEPT_FOR_THE_END: Duration = Duration::from_millis(200);
/// The same limit while another replica of the put may already be written. The put must not lose that replica to a slow
/// store, even if the end takes long.
pub(crate) const KEPT_FOR_THE_OTHERS: Duration = Duration::from_secs(2);

/// Returns the deadline of writes that begin at `now`, for puts that must end by `deadline`.
pub(crate) fn write_by(now: Instant, deadline: Instant, kept: Duration) -> Instant {
    deadline - kept.min(deadline.saturating_duration_since(now) / 4)
}

/// Checks options before a master is asked.
pub(crate) fn check_options(options: &PutOptions) -> Result<(), Error> {
    options.check().map_err(|why| Error::definite("put", Code::InvalidParams, "this client", why))
}

impl<'c> PutBatch<'c> {
    /// Puts that begin now.
    pub(crate) fn new(core: &'c Core, options: &'c PutOptions, cache_use: CacheUse) -> Self {
        let deadline = Instant::now() + options.deadline.min(LONGEST);
        Self { core, options, cache_use, given: &[], deadline }
    }

    /// Lets the cache keep these values, which are those of the batch, without a copy.
    pub(crate) fn giving(self, given: &'c [Bytes]) -> Self {
        Self { given, ..self }
    }

    /// Puts objects; returns one result per item, in order.
    pub(crate) async fn put(self, items: &[PutItem<'_>]) -> Vec<Result<Put, Error>> {
        let results = self.put_all(items).await;
        note_results(self.core, self.options.mode, items.iter().map(|item| &item.key[..]).zip(&results));
        results
    }

    /// [`Self::put`] without counting the results.
    pub(crate) async fn put_all(&self, items: &[PutItem<'_>]) -> Vec<Result<Put, Error>> {
        if let Err(error) = check_options(self.options) {
            return vec![Err(error); items.len()];
        }
        let keep = if self.options.mode == PutMode::Upsert { Keep::Last } else { Keep::First };
        let sent = representatives(items.iter().map(|item| &item.key[..]), keep);
        let mut results: Vec<Option<Result<Put, Error>>> = vec![None; items.len()];
        let mut pending = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            if sent[at] == at {
                match PendingPut::new(at, item) {
                    Ok(put) => pending.push(put),
                    Err(error) => results[at] = Some(Err(error)),
                }
            }
        }
        let chunks = cut(self.start_costs(&pending, |put| put.size));
        let mut pending = pending.into_iter();
        let chunks: Vec<_> = chunks
            .into_iter()
            .map(|chunk| self.put_chunk(pending.by_ref().take(chunk.len()).collect()))
            .collect();
        let done: Vec<_> = futures::stream::iter(chunks).buffered(IN_FLIGHT).collect().await;
        for (at, result) in done.into_iter().flatten() {
            results[at] = Some(result);
        }
        (0..items.len())
            .map(|at| {
                let result = results[sent[at]].clone().unwrap_or_else(|| Err(nonsense("put")));
                match result {
                    // Among several put-if-absents of one key in a batch, the first stores the object and the others
                    // find it.
                    Ok(Put::Stored) if sent[at] != at && keep == Keep::First => Ok(Put::AlreadyExists),
                    other => other,
                }
            })
            .collect()
    }

    /// Returns what each put costs the request that starts it; `payload` is the number of its bytes that follow at once.
    pub(crate) fn start_costs(
        &self,
        pending: &[PendingPut<'_>],
        payload: impl Fn(&PendingPut<'_>) -> u64,
    ) -> Vec<Cost> {
        let options = self.options;
        let stores = options.preferred.len() + self.core.avoid.avoided(Instant::now()).len();
        let cost = |put: &PendingPut<'_>| Cost {
            request: put.key.len()
                + put.group.len().max(options.group.len())
                + stores * STORE_ID_BYTES
                + START_ITEM_BYTES,
            payload: payload(put),
        };
        pending.iter().map(cost).collect()
    }

    fn start_item(
        &self,
        put: &PendingPut<'_>,
        put_id: Bytes,
        options: &PutOptions,
        deadline_ms: u64,
        avoid: &[StoreId],
    ) -> PutStartItem {
        let ids = |stores: &[StoreId]| stores.iter().map(|id| id.0).collect();
        let mut avoided = put.avoid.clone();
        if put.choosy {
            avoided.extend(avoid.iter().filter(|store| !put.avoid.contains(store)));
        }
        avoided.truncate(mc_types::MAX_NAMED_STORES);
        PutStartItem {
            put_id,
            key: put.key.clone(),
            size: put.size,
            mode: mc_proto::v1::PutMode::from(options.mode).into(),
            replicas: options.replicas,
            deadline_ms,
            preferred_stores: ids(&options.preferred),
            avoid_stores: ids(&avoided),
            pin: match options.pin {
                PinAction::Preserve => mc_proto::v1::PinAction::PinPreserve,
                PinAction::Disable => mc_proto::v1::PinAction::PinDisable,
                PinAction::Soft(_) => mc_proto::v1::PinAction::PinSoft,
                PinAction::Hard => mc_proto::v1::PinAction::PinHard,
            } as i32,
            soft_pin_ms: match options.pin {
                // 0 would select the master's default.
                PinAction::Soft(length) => u64::try_from(length.as_millis()).unwrap_or(u64::MAX).max(1),
                _ => 0,
            },
            all_replicas: options.replication == Replication::Strict,
            data_type: options.data_type.into(),
            group: match &put.group {
                group if group.is_empty() => Bytes::copy_from_slice(&options.group),
                group => group.clone(),
            },
        }
    }

    async fn put_chunk(&self, chunk: Vec<PendingPut<'_>>) -> Vec<(usize, Result<Put, Error>)> {
        let rounds = self.put_round(chunk).await;
        rounds.into_iter().filter_map(PutStep::done).collect()
    }

    /// Calls [`Self::put_round`], boxed because rounds are recursive.
    fn another_round<'f, 'a: 'f>(&'f self, pending: Vec<PendingPut<'a>>) -> BoxFuture<'f, Vec<PutStep<'a>>> {
        Box::pin(self.put_round(pending))
    }

    /// Starts, writes and ends puts. Failed puts are started once more at once, so every put is done when this returns.
    async fn put_round<'a>(&self, pending: Vec<PendingPut<'a>>) -> Vec<PutStep<'a>> {
        let Started { puts, granted, others, mut unended } = self.start(pending).await;
        let mut writes = Writes::new();
        let mut started = Vec::with_capacity(puts.len());
        for (put, replicas) in puts {
            let usable: Vec<_> = places(&replicas, &granted, put.size).collect();
            for (number, place) in &usable {
                writes.entry(place.grant).or_default().push((started.len(), *number, *place));
            }
            started.push(StartedPut::new(put, replicas.len(), &usable));
        }
        let rounds = self.write_and_end(started, others, &writes, &granted).await;
        unended.disarm();
        rounds
    }

    /// Starts puts at the leader.
    pub(crate) async fn start<'a>(&self, pending: Vec<PendingPut<'a>>) -> Started<'a> {
        let now = Instant::now();
        let avoid = self.core.avoid.avoided(now);
        let left = self.deadline.saturating_duration_since(now).as_millis();
        // 0 would select the master's default.
        let left = u64::try_from(left).unwrap_or(u64::MAX).max(1);
        let ids = id_bytes(pending.iter().map(|put| put.put));
        let item = |(put, id)| self.start_item(put, id, self.options, left, &avoid);
        let items: Vec<_> = pending.iter().zip(ids).map(item).collect();
        let near = match self.options.near {
            Near::Any => mc_proto::v1::Near::Any,
            Near::Client => mc_proto::v1::Near::Caller,
            Near::EachOther => mc_proto::v1::Near::EachOther,
        };
        let request = BatchPutStartRequest {
            tenant: self.core.tenant.clone(),
            items,
            preferred_names: self.options.preferred_names.clone(),
            near: near.into(),
            ..BatchPutStartRequest::default()
        };
        let bytes = pending.iter().map(|put| put.size).sum::<u64>();
        let lane = if bytes <= JOINED_MOST { &self.core.lanes.starts } else { &self.core.lanes.large_starts };
        let start = lane.call(request, self.deadline, self.core.call_timeout);
        let (answer, mut unended) = self.core.counters.put_start_ns.time(start).await;
        let none =
            |others| Started { puts: Vec::new(), granted: Vec::new(), others, unended: RevokeOnDrop::none() };
        let answer = match answer {
            Ok(answer) if answer.reply.results.len() == pending.len() => answer,
            Ok(_) => return none(PutStep::fail_all(pending, &nonsense("put start"))),
            // Puts that may have been started are revoked with `unended`.
            Err(CallError::LocalOnly { .. }) => return none(self.keep_all(pending).await),
            Err(CallError::Failed(error)) => {
                let error = Error { outcome: crate::Outcome::Definite, ..error };
                return none(PutStep::fail_all(pending, &error));
            }
        };
        let granted = grants(
            self.core.leader.masters.cluster().unwrap_or_default(),
            answer.reply.grants,
            answer.sent_at,
        );
        let refused =
            StartRefusal { no_space: answer.reply.no_space, largest_segment: answer.reply.largest_segment };
        let mut started = Started {
            puts: Vec::with_capacity(pending.len()),
            granted,
            others: Vec::new(),
            unended: RevokeOnDrop::none(),
        };
        for (put, result) in pending.into_iter().zip(answer.reply.results) {
            if result.code == Code::Ok as i32 {
                started.puts.push((put, result.replicas));
            } else {
                if result.code == Code::PutGone as i32 {
                    self.core.revokes.add(&[put.put]);
                }
                started.others.push(PutStep::not_started(put, result.code, &avoid, &refused));
            }
        }
        // Both are in the order of the items.
        let mut ids = started.puts.iter().map(|(put, _)| put.put).peekable();
        unended.retain(|id| ids.next_if_eq(id).is_some());
        drop(ids);
        Started { unended, ..started }
    }

    /// Writes to all stores concurrently, with one call per store, and ends the written puts.
    ///
    /// Usually all stores finish at nearly the same time, and one call ends all puts. A slow store delays only its own
    /// puts. `not_started` are the other puts of the batch.
    async fn write_and_end<'a>(
        &self,
        started: Vec<StartedPut<'a>>,
        not_started: Vec<PutStep<'a>>,
        writes: &Writes,
        granted: &[Option<Granted>],
    ) -> Vec<PutStep<'a>> {
        let began = Instant::now();
        let mut writing = FuturesUnordered::new();
        for (grant, targets) in writes {
            let Some(Some(to)) = granted.get(*grant) else { continue };
            let op = |(put, _, place): &(usize, u32, Place)| {
                let from: &'a [WriteBuffer<'a>] = started[*put].pending.from;
                WriteOp { range: place.range, offset: 0, from: from.to_vec() }
            };
            let ops = targets.iter().map(op).collect();
            let alone = targets.iter().all(|(put, ..)| started[*put].untried == 1);
            let kept = if alone { KEPT_FOR_THE_END } else { KEPT_FOR_THE_OTHERS };
            let write_by = write_by(began, self.deadline, kept);
            writing.push(async move { (targets, self.core.write_to(to, ops, Seal::Yes, write_by).await) });
        }
        let mut puts: Vec<Option<StartedPut<'a>>> = started.into_iter().map(Some).collect();
        let mut ending: FuturesUnordered<BoxFuture<'_, Vec<PutStep<'a>>>> = FuturesUnordered::new();
        let mut rounds = Vec::with_capacity(puts.len());
        ending.push(Box::pin(ready(not_started)));
        // Time at which the finished puts are ended without waiting for the others.
        let mut end_at = None;
        loop {
            let now = Instant::now();
            let is_tried = |put: &StartedPut<'a>| put.untried == 0;
            if puts.iter().flatten().any(is_tried) {
                if writing.is_empty() || end_at.is_some_and(|at| at <= now) {
                    let tried = puts.iter_mut().filter_map(|put| put.take_if(|put| is_tried(put)));
                    self.core.counters.put_write_ns.add(began.elapsed());
                    ending.push(Box::pin(self.finish(tried.collect())));
                    end_at = None;
                } else {
                    end_at = end_at.or(Some(now + STRAGGLE));
                }
            }
            tokio::select! {
                biased;
                Some((targets, results)) = writing.next() => {
                    for ((put, number, place), result) in targets.iter().zip(results) {
                        // The put is still here unless all its replicas were tried.
                        if let Some(put) = &mut puts[*put] {
                            self.judge_write(put, *number, place, result);
                        }
                    }
                }
                Some(ended) = ending.next() => {
                    let mut again = Vec::new();
                    for round in ended {
                        match round {
                            PutStep::Again(put) => again.push(put),
                            done @ PutStep::Done(..) => rounds.push(done),
                        }
                    }
                    if !again.is_empty() {
                        ending.push(self.another_round(again));
                    }
                }
                () = sleep_until(end_at.unwrap_or(now)), if end_at.is_some() => {}
                else => return rounds,
            }
        }
    }

    fn judge_write(
        &self,
        put: &mut StartedPut<'_>,
        number: u32,
        place: &Place,
        result: Result<Written, TransferError>,
    ) {
        put.untried -= 1;
        match result {
            // Two replicas with different bytes mean that the caller's buffer changed in between. The first replica
            // counts.
            Ok(Written { checksum, receipt }) if put.checksum.is_none_or(|first| first == checksum.0) => {
                put.checksum = Some(checksum.0);
                if let Some(receipt) = receipt {
                    put.note_receipt(number, receipt);
                }
                let embedded = self.core.local.embedded.as_ref();
                let spot =
                    embedded.and_then(|here| here.spot(put.pending.size, checksum, [place].into_iter()));
                put.pending.spot = spot.or(put.pending.spot);
                self.core.counters.bytes_written.add(put.pending.size);
            }
            Ok(_) => put.failed.push((number, place.store)),
            Err(error) => {
                put.late |= matches!(error, TransferError::Deadline { .. });
                put.here = error_of_this_client("put", &error).or_else(|| put.here.take());
                put.why = error.to_string().into();
                put.failed.push((number, place.store));
            }
        }
    }

    /// Ends the puts with a written replica, and revokes the others.
    async fn finish<'a>(&self, tried: Vec<StartedPut<'a>>) -> Vec<PutStep<'a>> {
        let (written, unwritten): (Vec<_>, Vec<_>) =
            tried.into_iter().partition(|put| put.checksum.is_some());
        self.core.revokes.add(&unwritten.iter().map(|put| put.pending.put).collect::<Vec<_>>());
        let mut rounds: Vec<_> =
            unwritten.into_iter().map(|put| PutStep::elsewhere(put, self.deadline)).collect();
        if !written.is_empty() {
            rounds.extend(self.end(written).await);
        }
        rounds
    }

    pub(crate) async fn end<'a>(self, mut written: Vec<StartedPut<'a>>) -> Vec<PutStep<'a>> {
        let ids: Vec<Bytes> = id_bytes(written.iter().map(|put| put.pending.put)).collect();
        let items = written.iter_mut().zip(ids).map(|(put, put_id)| PutEndItem {
            put_id,
            key: put.pending.key.clone(),
            checksum: put.checksum.unwrap_or_default(),
            failed_replicas: put.failed.iter().map(|(number, _)| *number).collect(),
            receipts: std::mem::take(&mut put.receipts).into(),
        });
        let request =
            BatchPutEndRequest { caller: None, tenant: self.core.tenant.clone(), items: items.collect() };
        let puts: Vec<_> = written.into_iter().map(|put| put.pending).collect();
        let end = self.core.lanes.ends.call(request, self.deadline, self.core.call_timeout);
        let answer = match self.core.counters.put_end_ns.time(end).await.0 {
            Ok(answer) if answer.reply.results.len() == puts.len() => answer,
            Ok(_) => return PutStep::fail_all(puts, &nonsense("put end").unknown()),
            Err(error) => {
                // Certainly not ended, and never will be: a session alone can be finished later.
                if self.cache_use != CacheUse::Session && !error.is_unknown() {
                    self.core.revokes.add(&puts.iter().map(|put| put.put).collect::<Vec<_>>());
                }
                return match error {
                    CallError::LocalOnly { sent: false } => self.keep_all(puts).await,
                    error => PutStep::fail_all(puts, &error.into_error("put end")),
                };
            }
        };
        let mut rounds = Vec::with_capacity(puts.len());
        let mut open = Vec::new();
        for (put, result) in puts.into_iter().zip(answer.reply.results) {
            match Code::try_from(result.code) {
                Ok(Code::Ok) => {
                    self.note_stored(&put);
                    rounds.push(PutStep::Done(put.at, Ok(Put::Stored)));
                }
                Ok(Code::ObjectAlreadyExists) => rounds.push(PutStep::Done(put.at, Ok(Put::AlreadyExists))),
                // A try without an answer may have ended the put. Only the object itself can tell.
                Ok(Code::PutGone) if answer.repeated || put.maybe_ended => open.push(put),
                // A receipt was of a process two before the present one of its store, or the store gives none.
                Ok(Code::NotProven) if !put.again && Instant::now() < self.deadline => {
                    self.core.revokes.add(&[put.put]);
                    rounds.push(PutStep::Again(put.another()));
                }
                // `TRANSFER_FAIL`: all stores that it was written to were unmounted before. It never made an object, whichever
                // try was answered, so it is put again.
                Ok(code @ (Code::PutGone | Code::TransferFail))
                    if (code == Code::TransferFail || self.options.mode == PutMode::IfAbsent)
                        && !put.again
                        && Instant::now() < self.deadline =>
                {
                    rounds.push(PutStep::Again(put.another()));
                }
                Ok(Code::NotProven) => {
                    self.core.revokes.add(&[put.put]);
                    let why = "no store has given a receipt that counts: stores of older builds give none, upgrade them; that of a \
                               store that was restarted twice since counts no more";
                    let error = item_error_with("put end", Code::NotProven, why);
                    rounds.push(PutStep::Done(put.at, Err(error)));
                }
                _ => rounds.push(PutStep::Done(put.at, Err(item_error("put end", result.code)))),
            }
        }
        if !open.is_empty() {
            rounds.extend(self.settle(open).await);
        }
        rounds
    }

    /// Settles puts that the masters no longer know, and that a try without an answer may have ended.
    ///
    /// An if-absent put is stored if the key's current object has the put's id. The outcome of any other put stays
    /// unknown.
    async fn settle<'a>(&self, open: Vec<PendingPut<'a>>) -> Vec<PutStep<'a>> {
        let mut versions = vec![None; open.len()];
        if self.options.mode == PutMode::IfAbsent {
            let keys = open.iter().map(|put| put.key.clone()).collect();
            let request = BatchGetRequest {
                tenant: self.core.tenant.clone(),
                keys,
                reads_doubtful: true,
                ..BatchGetRequest::default()
            };
            let answer =
                self.core.leader.call(&request, self.core.call_deadline(self.deadline), Repeat::Freely).await;
            for (version, result) in versions.iter_mut().zip(answer.into_iter().flat_map(|a| a.reply.results))
            {
                *version = PutId::from_bytes(&result.version);
            }
        }
        let settled = open.into_iter().zip(versions).map(|(put, version)| {
            if version == Some(put.put) {
                self.note_stored(&put);
                return PutStep::Done(put.at, Ok(Put::Stored));
            }
            let why = "an earlier try to end the put got no answer, and the masters no longer know the put";
            PutStep::Done(put.at, Err(Error::definite("put end", Code::PutGone, "the leader", why).unknown()))
        });
        settled.collect()
    }

    /// Notes a stored put in the embedded store's account, and caches its value or drops the cached older version.
    fn note_stored(&self, put: &PendingPut<'_>) {
        if let Some(embedded) = &self.core.local.embedded {
            embedded.note(&put.key, put.spot);
        }
        if !matches!(self.cache_use, CacheUse::Skip | CacheUse::Session)
            && self.core.local.cache.holds(put.size)
        {
            self.core.local.cache.insert(&put.key, put.put, self.value(put));
        } else {
            // An older version is useless now.
            self.core.local.cache.remove(&put.key);
        }
    }

    /// Keeps if-absent puts in the local cache in local-only mode, queued for publishing if that is on.
    async fn keep_all<'a>(&self, pending: Vec<PendingPut<'a>>) -> Vec<PutStep<'a>> {
        if self.cache_use == CacheUse::Publish {
            return pending.into_iter().map(|put| PutStep::Done(put.at, Ok(Put::LocalOnly))).collect();
        }
        if self.cache_use == CacheUse::Session {
            let why = "no leader is in reach, and a session keeps nothing locally";
            let error = Error::definite("put session", Code::NoLeader, "this client", why);
            return PutStep::fail_all(pending, &error);
        }
        let options = Arc::new(self.options.clone());
        let mut rounds = Vec::with_capacity(pending.len());
        for put in pending {
            rounds.push(PutStep::Done(put.at, self.keep(&put, &options).await));
        }
        rounds
    }

    /// Keeps an if-absent put in the local cache. A value that this client has of the key stays.
    async fn keep(&self, put: &PendingPut<'_>, options: &Arc<PutOptions>) -> Result<Put, Error> {
        if self.options.mode == PutMode::Upsert {
            let why = "no leader is in reach, and an upsert cannot be kept locally";
            return Err(Error::definite("upsert", Code::NoLeader, "this client", why));
        }
        if !self.core.local.cache.holds(put.size) {
            let why = "no leader is in reach, and the local cache is off or too small for the value";
            return Err(Error::definite("put", Code::NoLeader, "this client", why));
        }
        let embedded = self.core.local.embedded.as_ref();
        let has_value = || {
            embedded.is_some_and(|here| here.find(&put.key).is_some())
                || self.core.local.cache.any(&put.key).is_some()
        };
        if has_value() {
            return Ok(Put::LocalOnly);
        }
        let copied = self.copied_from_device(put).await?;
        let value = || copied.unwrap_or_else(|| self.value(put));
        match &self.core.local.unpublished {
            // Another put may have been kept during the copy.
            _ if has_value() => {}
            Some(unpublished) => {
                let options = Arc::clone(options);
                let local = LocalPut { key: Box::from(&put.key[..]), version: put.put, options };
                unpublished.keep(local, value, &self.core.local.cache, &self.core.counters);
            }
            None => self.core.local.cache.insert(&put.key, put.put, value()),
        }
        Ok(Put::LocalOnly)
    }

    /// Returns a copy of a value of which some is in memory of a device; `None` of another one.
    async fn copied_from_device(&self, put: &PendingPut<'_>) -> Result<Option<Bytes>, Error> {
        if !put.from.iter().any(WriteBuffer::is_of_device) {
            return Ok(None);
        }
        match timeout_at(self.deadline, self.core.transport.copy(put.from)).await {
            Ok(copied) => Ok(Some(copied.map_err(|why| device_error("put", &why))?.into())),
            Err(_) => {
                let why = "the value was not copied from the GPU by the deadline";
                Err(Error::definite("put", Code::RpcTimeout, "this client", why))
            }
        }
    }

    /// Returns the value for the cache.
    fn value(&self, put: &PendingPut<'_>) -> Bytes {
        let copied = || {
            let mut value = Vec::with_capacity(usize::try_from(put.size).unwrap_or(0));
            put.from.iter().for_each(|buffer| buffer.append_to(&mut value));
            value.into()
        };
        self.given.get(put.at).cloned().unwrap_or_else(copied)
    }
}

/// Counts the results of puts, each given with its key, and drops the local puts that they have overtaken.
pub(crate) fn note_results<'r>(
    core: &Core,
    mode: PutMode,
    results: impl Iterator<Item = (&'r [u8], &'r Result<Put, Error>)> + Clone,
) {
    if let Some(unpublished) = &core.local.unpublished {
        // An if-absent put with an unknown outcome may have done nothing. Its key's local put stays queued, and
        // publishing it finds out.
        let decided = |result: &Result<Put, Error>| match result {
            Ok(put) => *put != Put::LocalOnly,
            Err(error) => mode == PutMode::Upsert && error.is_unknown(),
        };
        let keys = results.clone().filter(|(_, result)| decided(result)).map(|(key, _)| key);
        unpublished.overtaken(keys, &core.local.cache);
    }
    results.for_each(|(_, result)| count(core, result));
}

fn count(core: &Core, result: &Result<Put, Error>) {
    let counters = &core.counters;
    match result {
        Ok(Put::Stored) => counters.puts_stored.one(),
        Ok(Put::AlreadyExists) => counters.puts_existing.one(),
        Ok(Put::LocalOnly) => counters.puts_local.one(),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_start_takes_no_more_of_a_request_than_it_is_counted_for() {
        let item = PutStartItem {
            put_id: vec![0xff; 16].into(),
            key: vec![b'k'; mc_types::MAX_KEY_LEN].into(),
            size: u64::MAX,
            mode: i32::MAX,
            replicas: u32::MAX,
            deadline_ms: u64::MAX,
            preferred_stores: vec![u64::MAX; 3],
            avoid_stores: vec![u64::MAX; 5],
            pin: i32::MAX,
            soft_pin_ms: u64::MAX,
            all_replicas: true,
            data_type: u32::MAX,
            group: Bytes::new(),
        };
        let (key, stores) = (item.key.len(), 8 * STORE_ID_BYTES);
        let request = BatchPutStartRequest { items: vec![item], ..Default::default() };
        assert!(request.encoded_len() <= key + stores + START_ITEM_BYTES);
    }
}
