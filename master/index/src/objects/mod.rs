//! The objects by key: 2^18 shards, each in copy-on-write parts.

pub(crate) mod shard;

use mc_types::PutId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::alloc::allocated;
use crate::command::Pin;
use crate::cow::CowTable;
use crate::key::{GroupId, IndexKey, KeyHash, SHARDS};
use crate::tenants::Share;
pub(crate) use shard::ObjectRef;
use shard::{Shard, record_len};

/// A visible version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// The put that made it.
    pub(crate) version: PutId,
    /// Bytes of the value, and of each replica.
    pub(crate) size: u64,
    /// CRC-64/NVME of the value.
    pub(crate) checksum: u64,
    /// Epoch of the last use that a leader noted after the call that put it; 0 if there was none.
    pub(crate) reused: u32,
    pub(crate) pin: Pin,
    /// Tag that the caller gave it.
    pub(crate) data_type: u8,
    pub(crate) group: Option<GroupId>,
    /// Places of its replicas; some or all may be in segments that are gone.
    pub(crate) replicas: SmallVec<[Replica; 1]>,
}

impl Object {
    /// Share of the object in the usage of its tenant.
    pub(crate) fn share(&self) -> Share {
        Share::of(allocated(self.size) * self.replicas.len() as u64, self.pin)
    }
}

/// Place of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replica {
    /// Number of the segment within the cluster, never reused.
    pub(crate) segment: u32,
    /// Offset of its first byte in the segment.
    pub(crate) offset: u64,
    /// Order of the allocation.
    pub(crate) index: u64,
}

/// Number of parts of each shard, by the order of keys within it. The first write after a clone copies one part. More
/// parts would cost memory while there are few objects.
pub(crate) const PARTS: u32 = 2;
const ROWS: usize = (SHARDS * PARTS) as usize / 2048;
const _: () = assert!((SHARDS * PARTS) as usize == CowTable::<Shard, ROWS>::SLOTS);

/// Returns the part of a key. Parts are in the order of shards and hashes, in which a snapshot lists objects.
fn part(hash: KeyHash) -> u32 {
    hash.shard() * PARTS + (hash.order() >> (u32::BITS - PARTS.ilog2()))
}

/// All objects. A clone is cheap and immutable.
#[derive(Clone)]
pub(crate) struct Objects {
    parts: CowTable<Shard, ROWS>,
    len: u64,
    /// Bytes of all records.
    record_bytes: u64,
}

impl Objects {
    pub(crate) fn new() -> Self {
        Self { parts: CowTable::new(), len: 0, record_bytes: 0 }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of all records, without what the index needs to find them.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    pub(crate) fn get(&self, key: &IndexKey) -> Option<ObjectRef<'_>> {
        self.parts.get(part(key.hash())).get(key.hash().order(), key.bytes())
    }

    /// Returns the objects whose key hashes agree in 50 bits with `hash`: rarely more than one.
    pub(crate) fn with_hash(&self, hash: KeyHash) -> impl Iterator<Item = ObjectRef<'_>> {
        self.parts.get(part(hash)).with_order(hash.order())
    }

    /// Inserts an object and returns the version that it replaces.
    pub(crate) fn insert(&mut self, key: &IndexKey, object: &Object) -> Option<Object> {
        let old = self.parts.get_mut(part(key.hash())).insert(key.hash().order(), key.bytes(), object);
        self.len += u64::from(old.is_none());
        self.record_bytes += record_len(key, object);
        self.record_bytes -= old.as_ref().map_or(0, |old| record_len(key, old));
        old
    }

    /// Removes the object of a key. Call it for existing keys only: even a miss copies a shard that a clone shares.
    pub(crate) fn remove(&mut self, key: &IndexKey) -> Option<Object> {
        let old = self.parts.get_mut(part(key.hash())).remove(key.hash().order(), key.bytes());
        self.len -= u64::from(old.is_some());
        self.record_bytes -= old.as_ref().map_or(0, |old| record_len(key, old));
        old
    }

    /// Notes a use of the objects with this hash. It never goes back to an earlier epoch.
    pub(crate) fn note_reuse(&mut self, hash: KeyHash, epoch: u32) {
        // Without news, a shard that a clone shares need not be copied.
        if self.with_hash(hash).any(|object| object.reused < epoch) {
            self.parts.get_mut(part(hash)).note_reuse(hash, epoch);
        }
    }

    /// Returns the object in a shard that has a replica at that place, and its key.
    pub(crate) fn find(&self, shard: u32, segment: u32, offset: u64) -> Option<(IndexKey, Object)> {
        let lies_there = |r: Replica| r.segment == segment && r.offset == offset;
        let mut objects = (0..PARTS).flat_map(|part| self.parts.get(shard * PARTS + part).iter());
        let object = objects.find(|object| object.replicas().any(lies_there))?;
        Some((IndexKey::from_bytes(object.key)?, object.to_object()))
    }

    /// Reads the memory that [`Self::prefetch`] is going to read first, to bring it into the cache.
    pub(crate) fn prefetch_shard(&self, hash: KeyHash) -> u64 {
        self.parts.get(part(hash)).prefetch_index()
    }

    /// Reads the memory that a look-up or an insert of that hash is going to read, to bring it into the cache.
    pub(crate) fn prefetch(&self, hash: KeyHash) -> u64 {
        self.parts.get(part(hash)).prefetch(hash.order())
    }

    /// Iterates over the objects from a position on, in the order of a snapshot. Each comes with the position after it;
    /// objects that share one are not separated by it. The end of a part yields a position alone.
    pub(crate) fn iter_from(&self, from: u64) -> impl Iterator<Item = (u64, Option<ObjectRef<'_>>)> {
        let first = u32::try_from(from >> 32).unwrap_or(u32::MAX);
        self.parts.iter_from(first).flat_map(move |(part, shard)| {
            let start = u64::from(part) << 32;
            let after = move |order: u32| start + u64::from(order) + 1;
            let objects = shard.ordered().map(move |(order, object)| (after(order), Some(object)));
            let left = objects.filter(move |(after, _)| *after > from);
            left.chain(std::iter::once((start + (1 << 32), None)))
        })
    }

    /// Returns the position of [`Self::iter_from`] that is that many parts after another one; `None` at the end of all parts.
    pub(crate) fn part_after(from: u64, parts: usize) -> Option<u64> {
        let part = (from >> 32) + parts as u64;
        (part < u64::from(SHARDS * PARTS)).then_some(part << 32)
    }

    /// Iterates over all objects in the order of a snapshot: shard, hash, key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ObjectRef<'_>> {
        self.parts.iter().flat_map(Shard::iter)
    }
}

/// Number of items whose puts and keys are looked up together before any of them is applied.
///
/// An index of millions of objects does not fit the CPU cache, and the look-ups of one item wait for memory in turn.
/// The processor overlaps those of different items, and applying the items then finds everything in the cache.
pub(crate) const PREFETCHED: usize = 32;

/// Consumes the results of look-ups, so that the compiler does not remove the look-ups.
pub(crate) fn prefetch(reads: impl Iterator<Item = u64>) {
    std::hint::black_box(reads.fold(0, |sum, read| sum ^ read));
}
