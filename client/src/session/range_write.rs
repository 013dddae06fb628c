//! Put sessions: one start, writes of ranges in any order, one end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use mc_transfer::{Checksum, Seal, TransferError, Transport as _, WriteBuffer, WriteOp};
use mc_types::MAX_GRANT_LIFETIME;
use tokio::time::Instant;

use super::open_put::{Answers, OpenPut, WRITE};
use super::seals;
use crate::core::{Core, Cost, IN_FLIGHT, cut, nonsense};
use crate::local::Spot;
use crate::placement::{Granted, Place};
use crate::put::{Call, Fill, Pending, Round, Written, check_options};
use crate::range::{ByteRange, merged};
use crate::{Error, Put, PutMode, PutOptions};

/// Maximum bytes of an item in a request to end or revoke puts, without its key: put id, checksum, failed replicas.
const END_ITEM_BYTES: usize = 100;
const MODES: [PutMode; 2] = [PutMode::IfAbsent, PutMode::Upsert];

/// Ranges of a put to write: the offset of each, and its bytes.
pub(crate) struct RangeWrite<'a> {
    pub(crate) put: &'a OpenPut,
    pub(crate) ranges: Vec<(u64, WriteBuffer<'a>)>,
}

/// Ranges that are being written, none of which is empty, with their bytes, and the replicas to write them to.
type Begun<'a> = (Vec<(ByteRange, Vec<WriteBuffer<'a>>)>, Vec<(u32, Place)>);

impl<'a> RangeWrite<'a> {
    /// Notes that the ranges are being written. Ranges that follow each other become one.
    fn begin(&self, now: Instant) -> Result<Begun<'a>, Error> {
        let range =
            |(offset, from): &(u64, WriteBuffer<'_>)| ByteRange { offset: *offset, len: from.len() as u64 };
        let ranges: Vec<_> = self.ranges.iter().map(range).collect();
        ranges.iter().try_for_each(|range| range.check(WRITE, self.put.size))?;
        let ranges: Vec<_> = merged(&ranges).collect();
        let mut slices = self.ranges.iter().map(|(_, from)| *from).filter(|from| !from.is_empty());
        let mut with_bytes = |range: &ByteRange| {
            let (mut from, mut left) = (Vec::with_capacity(1), range.len);
            while left > 0
                && let Some(slice) = slices.next()
            {
                left = left.saturating_sub(slice.len() as u64);
                from.push(slice);
            }
            (*range, from)
        };
        let with_bytes: Vec<_> = ranges.iter().map(&mut with_bytes).collect();
        let replicas = self.put.begin(&ranges, |range| checksum(&with_bytes[range].1), now)?;
        Ok((with_bytes, replicas))
    }

    fn len(&self) -> usize {
        self.ranges.iter().map(|(_, from)| from.len()).sum()
    }
}

/// Checksum of bytes that this thread can read: not of those in memory of a device.
fn checksum(buffers: &[WriteBuffer<'_>]) -> Option<Checksum> {
    let join =
        |sum: Checksum, buffer: &WriteBuffer<'_>| sum.followed_by(buffer.checksum(), buffer.len() as u64);
    let is_readable = !buffers.iter().any(WriteBuffer::is_of_device);
    is_readable.then(|| buffers.iter().fold(Checksum::of(&[]), join))
}

/// Ranges that are being written. If the call is dropped before it knows how that went, they may be written again: see
/// `coverage`. Bytes that a store may copy later can't, since their memory is the caller's again.
struct BeingWritten<'w> {
    core: &'w Core,
    ranges: Vec<(&'w OpenPut, ByteRange, Vec<WriteBuffer<'w>>)>,
}

impl Drop for BeingWritten<'_> {
    fn drop(&mut self) {
        for (put, range, from) in &self.ranges {
            if !from.iter().any(|slice| self.core.transport.copies_late(*slice))
                && let Some(checksum) = checksum(from)
            {
                put.abandoned(*range, checksum);
            }
        }
    }
}

/// Writes to the memory of one store under one grant.
struct StoreWrites<'w> {
    to: &'w Granted,
    until: Instant,
    targets: Vec<Target>,
    ops: Vec<WriteOp<'w>>,
}

/// Destination of a write: index of the item, number of the replica, and offset of the range.
pub(super) type Target = (usize, u32, u64);

/// Writes by grant.
#[derive(Default)]
pub(super) struct Batch<'w>(BTreeMap<(usize, usize), StoreWrites<'w>>);

/// Answers of one store.
pub(super) type Answered = Vec<(Target, Result<Checksum, TransferError>)>;

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
    ) -> impl Iterator<Item = impl Future<Output = Answered> + use<'w>> + use<'w> {
        self.0.into_values().map(move |StoreWrites { to, until, targets, ops }| async move {
            targets.into_iter().zip(core.write_to(to, ops, seal, until).await).collect()
        })
    }

    /// Writes, and waits for all stores.
    async fn write(self, core: &'w Core) -> Answered {
        join_all(self.begin(core, Seal::No)).await.into_iter().flatten().collect()
    }
}

impl Core {
    /// Starts puts of objects of known size. `None`: the key exists, and the put is if-absent.
    pub(crate) async fn open_puts(
        &self,
        items: Vec<(Bytes, u64)>,
        options: &PutOptions,
    ) -> Vec<Result<Option<OpenPut>, Error>> {
        if let Err(error) = check_options(options) {
            return items.iter().map(|_| Err(error.clone())).collect();
        }
        // No grant lives longer, so a later deadline could not be kept.
        let deadline = Instant::now() + options.deadline.min(MAX_GRANT_LIFETIME);
        let call = Call { options, fill: Fill::Session, given: &[], deadline };
        let mut results: Vec<Option<Result<Option<OpenPut>, Error>>> = Vec::new();
        results.resize_with(items.len(), || None);
        let mut pending = Vec::with_capacity(items.len());
        for (at, (key, size)) in items.into_iter().enumerate() {
            match Pending::sized(at, key, size) {
                Ok(put) => pending.push(put),
                Err(error) => results[at] = Some(Err(error)),
            }
        }
        let chunks = cut(self.start_costs(&pending, options, |_| 0));
        let mut pending = pending.into_iter();
        let chunks: Vec<_> = chunks
            .into_iter()
            .map(|chunk| self.open_chunk(pending.by_ref().take(chunk.len()).collect(), call))
            .collect();
        let opened: Vec<_> = futures::stream::iter(chunks).buffered(IN_FLIGHT).collect().await;
        for (at, result) in opened.into_iter().flatten() {
            results[at] = Some(result);
        }
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(nonsense(WRITE)))).collect()
    }

    async fn open_chunk(
        &self,
        mut pending: Vec<Pending<'static>>,
        call: Call<'_>,
    ) -> Vec<(usize, Result<Option<OpenPut>, Error>)> {
        let mut opened = Vec::with_capacity(pending.len());
        while !pending.is_empty() {
            let started = self.start(std::mem::take(&mut pending), call).await;
            let granted = Arc::new(started.granted);
            for ((put, replicas), unended) in started.puts.into_iter().zip(started.unended.each()) {
                let at = put.at;
                let open = OpenPut::new(put, &replicas, &granted, unended, call);
                opened.push((at, open.map(Some)));
            }
            for round in started.others {
                match round {
                    // At most twice: without stores to leave out, and in place of one whose stores are gone.
                    Round::Again(put) => pending.push(put),
                    Round::Done(at, Ok(_)) => opened.push((at, Ok(None))),
                    Round::Done(at, Err(error)) => opened.push((at, Err(error))),
                }
            }
        }
        opened
    }

    /// Writes ranges to all replicas, with one call for each store. The result of each item is its number of bytes.
    pub(crate) async fn write_ranges(&self, items: &[RangeWrite<'_>]) -> Vec<Result<usize, Error>> {
        let began = Instant::now();
        let mut batch = Batch::default();
        let mut begun = Vec::new();
        let mut being_written = BeingWritten { core: self, ranges: Vec::new() };
        let mut results = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let (ranges, replicas) = match item.begin(began) {
                Ok(begun) => begun,
                Err(error) => {
                    results.push(Err(error));
                    continue;
                }
            };
            results.push(Ok(item.len()));
            for (range, from) in ranges {
                for (number, place) in &replicas {
                    batch.add(item.put, began, (at, *number, range.offset), *place, from.clone());
                }
                begun.push((at, range));
                being_written.ranges.push((item.put, range, from));
            }
        }
        let mut answers: HashMap<(usize, u64), Answers> = HashMap::with_capacity(begun.len());
        for ((at, replica, offset), result) in batch.write(self).await {
            answers.entry((at, offset)).or_default().push((replica, result));
        }
        // From here on nothing waits, so the call can't be dropped.
        being_written.ranges.clear();
        if !begun.is_empty() {
            self.counters.put_write_ns.add(began.elapsed());
        }
        for (at, range) in begun {
            let answers = answers.remove(&(at, range.offset)).unwrap_or_default();
            let written = answers.iter().filter(|(_, result)| result.is_ok()).count() as u64;
            self.counters.bytes_written.add(written.saturating_mul(range.len));
            if let Err(error) = items[at].put.wrote(range, answers) {
                results[at] = Err(error);
            }
        }
        results
    }

    /// Ends puts whose objects are complete, which makes them visible. The others fail and stay open.
    pub(crate) async fn finish_puts(&self, puts: &[&OpenPut]) -> Vec<Result<Put, Error>> {
        let mut results = vec![None; puts.len()];
        let (mut seals, mut ending) = (seals::begin(self, puts), FuturesUnordered::new());
        loop {
            tokio::select! {
                biased;
                Some(sealed) = seals.next() => ending.push(self.end_puts(puts, sealed)),
                Some(ended) = ending.next() => {
                    for (at, result) in ended {
                        results[at] = Some(result);
                    }
                }
                else => break,
            }
        }
        let results: Vec<_> =
            results.into_iter().map(|result| result.unwrap_or_else(|| Err(nonsense(WRITE)))).collect();
        for mode in MODES {
            let of_mode = puts.iter().zip(&results).filter(|(put, _)| put.mode == mode);
            self.note_results(mode, of_mode.map(|(put, result)| (&put.key[..], result)));
        }
        results
    }

    /// Ends those of the puts that are sealed.
    async fn end_puts(&self, puts: &[&OpenPut], sealed: Vec<usize>) -> Vec<(usize, Result<Put, Error>)> {
        let now = Instant::now();
        let mut results = Vec::with_capacity(sealed.len());
        let mut written = [Vec::new(), Vec::new()];
        for at in sealed {
            let put = puts[at];
            match put.complete(at, now) {
                Ok(mut done) => {
                    done.pending.spot = self.spot(put, &done);
                    done.pending.maybe_ended = put.ending();
                    written[usize::from(put.mode == PutMode::Upsert)].push(done);
                }
                Err(error) => {
                    put.refused(&error);
                    results.push((at, Err(error)));
                }
            }
        }
        let options = MODES.map(|mode| PutOptions::default().with_mode(mode));
        let mut ends = Vec::new();
        for (written, options) in written.into_iter().zip(&options) {
            let cost =
                |put: &Written<'_>| Cost { request: put.pending.key.len() + END_ITEM_BYTES, payload: 0 };
            let chunks = cut(written.iter().map(cost).collect::<Vec<_>>());
            let mut written = written.into_iter();
            for chunk in chunks {
                let chunk: Vec<_> = written.by_ref().take(chunk.len()).collect();
                let deadline = chunk.iter().map(|put| puts[put.pending.at].deadline).max().unwrap_or(now);
                ends.push(self.end(chunk, Call { options, fill: Fill::Session, given: &[], deadline }));
            }
        }
        let ended: Vec<_> = futures::stream::iter(ends).buffered(IN_FLIGHT).collect().await;
        for (at, result) in ended.into_iter().flatten().filter_map(Round::done) {
            results.push((at, puts[at].ended(result)));
        }
        results
    }

    /// Returns the object's place in this process's own store, if it was written there.
    fn spot(&self, put: &OpenPut, written: &Written<'_>) -> Option<Spot> {
        let whole = |number: u32| !written.failed.iter().any(|(failed, _)| *failed == number);
        let places = put.replicas.iter().filter(|(number, _)| whole(*number)).map(|(_, place)| place);
        self.local.embedded.as_ref()?.spot(put.size, Checksum(written.checksum?), places)
    }
}
