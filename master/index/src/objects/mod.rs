//! The objects by key: 2^18 shards, each in copy-on-write parts.

mod shard;

use mc_types::PutId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::cow::CowTable;
use super::key::{IndexKey, KeyHash, SHARDS};
pub(super) use shard::ObjectRef;
use shard::Shard;

/// A visible version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    /// The put that made it.
    pub(super) version: PutId,
    /// Bytes of the value, and of each replica.
    pub(super) size: u64,
    /// CRC-64/NVME of the value.
    pub(super) checksum: u64,
    /// Where it lies; some or all may be in segments that are gone.
    pub(super) replicas: SmallVec<[Replica; 1]>,
}

/// One replica's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Replica {
    /// Number of the segment within the cluster, never reused.
    pub(super) segment: u32,
    /// First byte.
    pub(super) offset: u64,
    /// Order of the allocation.
    pub(super) index: u64,
}

/// Each shard of the index is kept in this many parts, by the order of keys within it: the copy that the first write
/// after a clone makes is one part. More would cost memory while there are few objects.
const PARTS: u32 = 2;
const ROWS: usize = (SHARDS * PARTS) as usize / 2048;
const _: () = assert!((SHARDS * PARTS) as usize == CowTable::<Shard, ROWS>::SLOTS);

/// Where a key lies: parts stand in the order of shards and hashes, as a snapshot lists objects.
fn part(hash: KeyHash) -> u32 {
    hash.shard() * PARTS + (hash.order() >> (u32::BITS - PARTS.ilog2()))
}

/// All objects. A clone is cheap and never changes.
#[derive(Clone)]
pub(super) struct Objects {
    parts: CowTable<Shard, ROWS>,
    len: u64,
}

impl Objects {
    pub(super) fn new() -> Self {
        Self { parts: CowTable::new(), len: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn get(&self, key: &IndexKey) -> Option<ObjectRef<'_>> {
        self.parts.get(part(key.hash())).get(key.hash().order(), key.bytes())
    }

    /// The objects whose keys have this hash, or nearly: 50 of its bits are compared. Mostly one at most.
    pub(super) fn with_hash(&self, hash: KeyHash) -> impl Iterator<Item = ObjectRef<'_>> {
        self.parts.get(part(hash)).with_order(hash.order())
    }

    /// Returns the version that it replaces.
    pub(super) fn insert(&mut self, key: &IndexKey, object: &Object) -> Option<Object> {
        let old = self.parts.get_mut(part(key.hash())).insert(key.hash().order(), key.bytes(), object);
        self.len += u64::from(old.is_none());
        old
    }

    /// For keys that are there: it copies the shard where that is shared.
    pub(super) fn remove(&mut self, key: &IndexKey) -> Option<Object> {
        let old = self.parts.get_mut(part(key.hash())).remove(key.hash().order(), key.bytes());
        self.len -= u64::from(old.is_some());
        old
    }

    /// The object in that shard which has a replica at that place.
    pub(super) fn find(&self, shard: u32, segment: u32, offset: u64) -> Option<(IndexKey, Object)> {
        let lies_there = |r: Replica| r.segment == segment && r.offset == offset;
        let mut objects = (0..PARTS).flat_map(|part| self.parts.get(shard * PARTS + part).iter());
        let object = objects.find(|object| object.replicas().any(lies_there))?;
        Some((IndexKey::from_bytes(object.key)?, object.to_object()))
    }

    /// Reads what a look at a key of that hash and its insert are going to read, so that the cache has it.
    pub(super) fn touch(&self, hash: KeyHash) -> u64 {
        self.parts.get(part(hash)).touch(hash.order())
    }

    /// All objects in the order of the snapshot: shard, hash, key.
    pub(super) fn iter(&self) -> impl Iterator<Item = ObjectRef<'_>> {
        self.parts.iter().flat_map(Shard::iter)
    }
}
