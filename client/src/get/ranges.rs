//! Ranged reads: parts of objects.

use bytes::Bytes;

use super::{Destination, Get, Got};
use crate::core::nonsense;
use crate::{ByteRange, Client, Error};

/// Ranges of one object to read into the caller's memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct GetRangesInto<'a> {
    /// The object's key.
    pub key: &'a [u8],
    /// The ranges, in any order; they may overlap.
    pub ranges: Vec<RangeInto<'a>>,
}

impl<'a> GetRangesInto<'a> {
    /// These ranges of the object of this key.
    #[must_use]
    pub fn new<K: AsRef<[u8]> + ?Sized>(key: &'a K, ranges: Vec<RangeInto<'a>>) -> Self {
        Self { key: key.as_ref(), ranges }
    }
}

/// A range of an object and the memory for it.
pub struct RangeInto<'a> {
    /// First byte, counted from the start of the object.
    pub offset: u64,
    /// The memory that receives the bytes. Its length is that of the range.
    pub into: &'a mut [u8],
}

impl RangeInto<'_> {
    /// Borrows the memory of ranges for one read.
    pub(crate) fn destination(ranges: &mut [Self]) -> Destination<'_> {
        Destination::ranges_into(ranges.iter_mut().map(|range| (range.offset, range.into.into())))
    }
}

/// # Ranged reads
///
/// A range is read like an object: under a lease, from any replica, with one call to the leader for up to 4,096 keys. A
/// key with several ranges counts once, and all of them come from the same version. Ranges that follow each other in the
/// list and in the object are one read, however many buffers they fill.
///
/// The checksum of an object covers all of its bytes, so it is compared only if the ranges, in their order, are the whole
/// object. Any other range is good because the store found its grant valid before it sent the bytes and its memory not
/// given to a newer put after it sent them. A bit that flips in the memory of a store is not found that way.
///
/// After a rescue of the masters, and after a change of the leader under `--log-sync none`, the leader can't vouch for the
/// places of older objects. Such an object is read whole for each call, unless the local cache has it, and its checksum is
/// compared.
impl Client {
    /// Reads a range of an object; `None` is a miss, as for [`get`](Self::get).
    ///
    /// # Errors
    /// `INVALID_PARAMS` if the range does not lie within the object; else as for [`get`](Self::get).
    pub async fn get_range(&self, key: impl AsRef<[u8]>, range: ByteRange) -> Result<Option<Bytes>, Error> {
        let parts = self.batch_get_ranges(&[(key, vec![range])]).await.pop();
        Ok(parts.unwrap_or_else(|| Err(nonsense("get")))?.and_then(|mut parts| parts.pop()))
    }

    /// Reads ranges of many objects. There is one result for each key, in order: the bytes of its ranges, in order, or
    /// `None` for a miss.
    ///
    /// A range that does not lie within its object fails its key with `INVALID_PARAMS`; an empty one reads nothing.
    pub async fn batch_get_ranges<K: AsRef<[u8]>>(
        &self,
        items: &[(K, Vec<ByteRange>)],
    ) -> Vec<Result<Option<Vec<Bytes>>, Error>> {
        let item = |(key, ranges): &(K, Vec<ByteRange>)| {
            (Bytes::copy_from_slice(key.as_ref()), Destination::ranges(ranges.clone()))
        };
        let results =
            self.run("get", items.len(), Get::new(self.core()).all(items.iter().map(item).collect())).await;
        results.into_iter().map(|result| Ok(result?.and_then(Got::parts))).collect()
    }

    /// Reads ranges of many objects into the caller's memory, without a copy on the way. There is one result for each
    /// key, in order: the sum of the lengths of its ranges, or `None` for a miss.
    ///
    /// A range that does not lie within its object fails its key with `INVALID_PARAMS`; an empty one reads nothing. If
    /// an item returns no bytes, the content of its memory is unspecified.
    pub async fn batch_get_ranges_into(
        &self,
        items: &mut [GetRangesInto<'_>],
    ) -> Vec<Result<Option<usize>, Error>> {
        let items: Vec<_> = items
            .iter_mut()
            .map(|GetRangesInto { key, ranges }| {
                (Bytes::copy_from_slice(key), RangeInto::destination(ranges))
            })
            .collect();
        self.get_into(items).await
    }
}
