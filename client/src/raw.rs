//! Calls on memory that is named by its address.

use bytes::Bytes;
use mc_transfer::{RawBytes, ReadBuffer};

use crate::core::device_error;
use crate::get::Destination;
use crate::put::{CacheUse, PutBatch, PutItem};
use crate::{Client, Error, GetSession, Put, PutOptions, PutSession};

/// One object to read into memory that is named by its address.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GetIntoRaw {
    /// Its key.
    pub key: Bytes,
    /// Memory that receives its bytes, one part after the other; in sum it may be longer than the object.
    pub into: Vec<RawBytes>,
}

/// One object to write from memory that is named by its address.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PutFromRaw {
    /// Its key.
    pub key: Bytes,
    /// The parts of its value, in order; read in place.
    pub slices: Vec<RawBytes>,
    /// Name of the group that it joins; empty for that of the options. See [`PutFrom::group`](crate::PutFrom::group).
    pub group: Bytes,
}

/// A range of an object and the memory for it, which is named by its address.
#[derive(Clone, Copy, Debug)]
pub struct RangeIntoRaw {
    /// First byte, counted from the start of the object.
    pub offset: u64,
    /// The memory that receives the bytes. Its length is that of the range.
    pub into: RawBytes,
}

/// Ranges of one object to read into memory that is named by its address.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GetRangesIntoRaw {
    /// The object's key.
    pub key: Bytes,
    /// The ranges, in any order; they may overlap.
    pub ranges: Vec<RangeIntoRaw>,
}

/// Ranges to read in a session into memory that is named by its address.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadIntoRaw<'a> {
    /// The session.
    pub session: &'a GetSession,
    /// The ranges, in any order; they may overlap.
    pub ranges: Vec<RangeIntoRaw>,
}

/// A range of an object, and its bytes in memory that is named by its address.
#[derive(Clone, Copy, Debug)]
pub struct RangeFromRaw {
    /// First byte, counted from the start of the object.
    pub offset: u64,
    /// The bytes; read in place.
    pub from: RawBytes,
}

/// Ranges to write in a session from memory that is named by its address.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteFromRaw<'a> {
    /// The session.
    pub session: &'a PutSession,
    /// The ranges, in any order.
    pub ranges: Vec<RangeFromRaw>,
}

impl GetIntoRaw {
    /// The object of this key, to be read into this memory.
    #[must_use]
    pub fn new(key: impl Into<Bytes>, into: Vec<RawBytes>) -> Self {
        Self { key: key.into(), into }
    }
}

impl PutFromRaw {
    /// An object of this key and value, in the group that the options name.
    #[must_use]
    pub fn new(key: impl Into<Bytes>, slices: Vec<RawBytes>) -> Self {
        Self { key: key.into(), slices, group: Bytes::new() }
    }

    /// Sets the [group](Self::group).
    #[must_use]
    pub fn with_group(mut self, group: impl Into<Bytes>) -> Self {
        self.group = group.into();
        self
    }
}

impl GetRangesIntoRaw {
    /// These ranges of the object of this key.
    #[must_use]
    pub fn new(key: impl Into<Bytes>, ranges: Vec<RangeIntoRaw>) -> Self {
        Self { key: key.into(), ranges }
    }
}

impl<'a> ReadIntoRaw<'a> {
    /// These ranges of the object of this session.
    #[must_use]
    pub fn new(session: &'a GetSession, ranges: Vec<RangeIntoRaw>) -> Self {
        Self { session, ranges }
    }
}

impl<'a> WriteFromRaw<'a> {
    /// These ranges of the object of this session.
    #[must_use]
    pub fn new(session: &'a PutSession, ranges: Vec<RangeFromRaw>) -> Self {
        Self { session, ranges }
    }
}

/// An item of a call, whose memory is named by its address.
trait Item {
    fn memory(&mut self) -> impl Iterator<Item = &mut RawBytes>;
}

impl Item for PutFromRaw {
    fn memory(&mut self) -> impl Iterator<Item = &mut RawBytes> {
        self.slices.iter_mut()
    }
}

impl Item for GetIntoRaw {
    fn memory(&mut self) -> impl Iterator<Item = &mut RawBytes> {
        self.into.iter_mut()
    }
}

impl Item for GetRangesIntoRaw {
    fn memory(&mut self) -> impl Iterator<Item = &mut RawBytes> {
        self.ranges.iter_mut().map(|range| &mut range.into)
    }
}

impl Item for ReadIntoRaw<'_> {
    fn memory(&mut self) -> impl Iterator<Item = &mut RawBytes> {
        self.ranges.iter_mut().map(|range| &mut range.into)
    }
}

impl Item for WriteFromRaw<'_> {
    fn memory(&mut self) -> impl Iterator<Item = &mut RawBytes> {
        self.ranges.iter_mut().map(|range| &mut range.from)
    }
}

/// Looks up which memory is a device's. Takes the items out for which that fails, and returns the index and the error of each, in order.
fn locate<T: Item>(what: &'static str, items: &mut Vec<T>) -> Vec<(usize, Error)> {
    if RawBytes::locate(items.iter_mut().flat_map(T::memory)).is_ok() {
        return Vec::new();
    }
    let (mut failed, mut at) = (Vec::new(), 0);
    items.retain_mut(|item| {
        let located = RawBytes::locate(item.memory());
        let located = located.map_err(|why| failed.push((at, device_error(what, &why))));
        at += 1;
        located.is_ok()
    });
    failed
}

/// Puts the errors of items that were taken out among the results of the others.
fn with_failed<R>(mut results: Vec<Result<R, Error>>, failed: Vec<(usize, Error)>) -> Vec<Result<R, Error>> {
    // All items with lower indices have been inserted by then.
    failed.into_iter().for_each(|(at, error)| results.insert(at, Err(error)));
    results
}

fn destination(ranges: Vec<RangeIntoRaw>) -> Destination<'static> {
    Destination::ranges_into(ranges.into_iter().map(|range| (range.offset, range.into.into())))
}

/// # Memory that is named by its address
///
/// These calls do what those on slices do, for memory that can't be borrowed: another thread may change a source during a put, and
/// two destinations may be one. [`RawBytes`] has the rules. In short: the memory must stay until the call has returned or its
/// future is dropped, and nothing of the client touches it afterwards.
///
/// It may also be memory of NVIDIA GPUs, if this process has loaded their driver, or both in one item. Its bytes go through
/// pinned memory of the client: 96 MiB at most, in pieces that are copied while others are transferred. A copy begins after the work
/// that the caller has given the legacy default stream of that GPU's primary context before. A deadline can't end a copy that has begun, and the drop of a
/// future waits for it. Bytes in memory of a GPU can't be written again in a put session whose write was abandoned.
impl Client {
    /// [`batch_put_from`](Self::batch_put_from) of memory that is named by its address.
    pub async fn batch_put_from_raw(
        &self,
        mut items: Vec<PutFromRaw>,
        options: &PutOptions,
    ) -> Vec<Result<Put, Error>> {
        let failed = locate("put", &mut items);
        let item = |PutFromRaw { key, slices, group }| PutItem {
            key,
            from: slices.into_iter().map(Into::into).collect(),
            group,
        };
        let items: Vec<PutItem<'_>> = items.into_iter().map(item).collect();
        let put =
            self.run("put", items.len(), PutBatch::new(self.core(), options, CacheUse::Skip).put(&items));
        with_failed(put.await, failed)
    }

    /// [`batch_get_into`](Self::batch_get_into) of memory that is named by its address.
    pub async fn batch_get_into_raw(&self, mut items: Vec<GetIntoRaw>) -> Vec<Result<Option<usize>, Error>> {
        let failed = locate("get", &mut items);
        let item = |GetIntoRaw { key, into }: GetIntoRaw| {
            (key, Destination::whole_into(into.into_iter().map(ReadBuffer::from)))
        };
        with_failed(self.get_into(items.into_iter().map(item).collect()).await, failed)
    }

    /// [`batch_get_ranges_into`](Self::batch_get_ranges_into) of memory that is named by its address.
    pub async fn batch_get_ranges_into_raw(
        &self,
        mut items: Vec<GetRangesIntoRaw>,
    ) -> Vec<Result<Option<usize>, Error>> {
        let failed = locate("get", &mut items);
        let item = |GetRangesIntoRaw { key, ranges }| (key, destination(ranges));
        with_failed(self.get_into(items.into_iter().map(item).collect()).await, failed)
    }

    /// [`batch_read_into`](Self::batch_read_into) of memory that is named by its address.
    pub async fn batch_read_into_raw(&self, mut items: Vec<ReadIntoRaw<'_>>) -> Vec<Result<usize, Error>> {
        let failed = locate("get session read", &mut items);
        let read = self.read_into(items.into_iter().map(|item| (item.session, destination(item.ranges))));
        with_failed(read.await, failed)
    }

    /// [`batch_write_from`](Self::batch_write_from) of memory that is named by its address.
    pub async fn batch_write_from_raw(&self, mut items: Vec<WriteFromRaw<'_>>) -> Vec<Result<usize, Error>> {
        let failed = locate("put session write", &mut items);
        let write = |WriteFromRaw { session, ranges }| {
            let range = |range: RangeFromRaw| (range.offset, range.from.into());
            (session, ranges.into_iter().map(range).collect())
        };
        with_failed(self.write_from(items.into_iter().map(write)).await, failed)
    }
}
