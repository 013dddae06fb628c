//! Writes of ranges in put sessions.

use std::collections::HashMap;

use mc_transfer::{Checksum, Transport as _, WriteBuffer};
use tokio::time::Instant;

use super::open_put::{OpenPut, WRITE, WriteResults};
use super::store_writes::Batch;
use crate::Error;
use crate::core::Core;
use crate::placement::Place;
use crate::range::{ByteRange, merged};

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

/// Writes ranges to all replicas, with one call for each store. The result of each item is its number of bytes.
pub(crate) async fn write_ranges(core: &Core, items: &[RangeWrite<'_>]) -> Vec<Result<usize, Error>> {
    let began = Instant::now();
    let mut batch = Batch::default();
    let mut begun = Vec::new();
    let mut being_written = BeingWritten { core, ranges: Vec::new() };
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
    let mut answers: HashMap<(usize, u64), WriteResults> = HashMap::with_capacity(begun.len());
    for ((at, replica, offset), result) in batch.write(core).await {
        answers.entry((at, offset)).or_default().push((replica, result.map(|written| written.checksum)));
    }
    // From here on nothing waits, so the call can't be dropped.
    being_written.ranges.clear();
    if !begun.is_empty() {
        core.counters.put_write_ns.add(began.elapsed());
    }
    for (at, range) in begun {
        let answers = answers.remove(&(at, range.offset)).unwrap_or_default();
        let written = answers.iter().filter(|(_, result)| result.is_ok()).count() as u64;
        core.counters.bytes_written.add(written.saturating_mul(range.len));
        if let Err(error) = items[at].put.wrote(range, answers) {
            results[at] = Err(error);
        }
    }
    results
}
