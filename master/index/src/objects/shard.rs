use mc_types::PutId;

use crate::command::Pin;
use crate::key::{GroupId, IndexKey, KeyHash};
use crate::objects::{Object, Replica};
use crate::work::count_work;

/// A part of a shard: some twenty objects (at ten million in all), packed so that copying it is two `memcpy`s.
///
/// The first write after a clone makes that copy. Records lie in one buffer, and an index of them is sorted by (hash,
/// key). The look-up of an absent key reads the index alone, one or two cache lines.
#[derive(Default)]
pub(super) struct Shard {
    index: Vec<Slot>,
    /// Records back to back, with holes where some were removed.
    records: Vec<u8>,
    /// Bytes of `records` that no slot uses.
    holes: usize,
}

impl Clone for Shard {
    fn clone(&self) -> Self {
        // The copy is about to be written to, and mostly grows by one: spare room avoids a second copy.
        let mut index = Vec::with_capacity(self.index.len() + ROOM);
        index.extend_from_slice(&self.index);
        let mut records = Vec::with_capacity(self.records.len() + grown_by(self.records.len()));
        records.extend_from_slice(&self.records);
        Self { index, records, holes: self.holes }
    }
}

/// Spare slots in a copy of the index.
const ROOM: usize = 4;

/// Returns the growth of a full buffer of records: an eighth, like the size classes of an allocator.
///
/// Doubling would leave a third of the buffers unused on average. Growth by a quarter was no faster, and took 10 B more
/// for each of ten million objects, 20 B while a clone is held.
fn grown_by(len: usize) -> usize {
    len / 8
}

#[derive(Clone, Copy)]
struct Slot {
    order: u32,
    /// Start of its record. 32 bits do while the buffer, holes included, stays below 4 GiB. No check enforces that:
    /// records beyond could not be found. Getting there would take some half a million objects with keys of 4 KiB whose
    /// hashes are chosen to share 19 bits.
    at: u32,
}

/// Bytes of a record's head: version, size, checksum, epoch of the last reuse, pin, data type, length of the key,
/// number of replicas. The replicas follow, then the group's id if there is one, then the key.
pub(crate) const HEAD: usize = 16 + 8 + 8 + 4 + 4 + 1 + 2 + 1;
/// Bit in the length of the key that tells whether the record has a group's id.
const HAS_GROUP: u16 = 1 << 15;
pub(crate) const GROUP: usize = 16;
/// Bytes that the processor reads from memory at a time.
const CACHE_LINE: usize = 64;
/// Start of the epoch in a record.
const REUSED: usize = 16 + 8 + 8;
/// Bytes of a replica in a record: segment, offset, index.
pub(crate) const REPLICA: usize = 4 + 8 + 8;

/// A view of an object in its shard.
#[derive(Clone, Copy)]
pub(crate) struct ObjectRef<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) version: PutId,
    pub(crate) size: u64,
    pub(crate) checksum: u64,
    pub(crate) reused: u32,
    pub(crate) pin: Pin,
    pub(crate) data_type: u8,
    pub(crate) group: Option<GroupId>,
    replicas: &'a [u8],
}

/// Returns the bytes of the record that a shard keeps of an object.
pub(super) fn record_len(key: &IndexKey, object: &Object) -> u64 {
    let replicas = object.replicas.len().min(usize::from(u8::MAX));
    (HEAD + REPLICA * replicas + group_len(object.group) + key.bytes().len()) as u64
}

fn group_len(group: Option<GroupId>) -> usize {
    group.map_or(0, |_| GROUP)
}

/// Splits off the first `N` bytes. A record is never cut short, because only `push` writes one.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    bytes.split_first_chunk().map_or(([0; N], &[]), |(first, rest)| (*first, rest))
}

impl<'a> ObjectRef<'a> {
    /// Returns the order of the object's put (see [`crate::allocation_order`]).
    pub(crate) fn put_order(self) -> u64 {
        self.replicas().map(|replica| replica.index).min().unwrap_or_default()
    }

    /// Reads the record at the start of `bytes`.
    fn read(bytes: &'a [u8]) -> Self {
        let (version, bytes) = split(bytes);
        let (size, bytes) = split(bytes);
        let (checksum, bytes) = split(bytes);
        let (reused, bytes) = split(bytes);
        let (pin, bytes) = split(bytes);
        let ([data_type], bytes) = split(bytes);
        let (key_len, bytes) = split(bytes);
        let ([replicas], bytes) = split(bytes);
        let (replicas, bytes) = bytes.split_at_checked(REPLICA * usize::from(replicas)).unwrap_or_default();
        let key_len = u16::from_le_bytes(key_len);
        let (group, bytes) = if key_len & HAS_GROUP == 0 {
            (None, bytes)
        } else {
            let (group, bytes) = split(bytes);
            (Some(GroupId::from_u128(u128::from_le_bytes(group))), bytes)
        };
        Self {
            key: bytes.get(..usize::from(key_len & !HAS_GROUP)).unwrap_or_default(),
            version: PutId(u128::from_le_bytes(version)),
            size: u64::from_le_bytes(size),
            checksum: u64::from_le_bytes(checksum),
            reused: u32::from_le_bytes(reused),
            pin: Pin::from_u32(u32::from_le_bytes(pin)),
            data_type,
            group,
            replicas,
        }
    }

    /// Iterates over its replicas.
    pub(crate) fn replicas(self) -> impl Iterator<Item = Replica> + 'a {
        self.replicas.chunks_exact(REPLICA).map(|bytes| {
            let (segment, bytes) = split(bytes);
            let (offset, bytes) = split(bytes);
            let (index, _) = split(bytes);
            Replica {
                segment: u32::from_le_bytes(segment),
                offset: u64::from_le_bytes(offset),
                index: u64::from_le_bytes(index),
            }
        })
    }

    pub(crate) fn to_object(self) -> Object {
        let Self { version, size, checksum, reused, pin, data_type, group, .. } = self;
        let replicas = self.replicas().collect();
        Object { version, size, checksum, reused, pin, data_type, group, replicas }
    }

    /// Length of its record in bytes.
    fn len(&self) -> usize {
        HEAD + self.replicas.len() + group_len(self.group) + self.key.len()
    }
}

impl Shard {
    fn read(&self, slot: Slot) -> ObjectRef<'_> {
        count_work(1);
        ObjectRef::read(self.records.get(slot.at as usize..).unwrap_or_default())
    }

    fn find(&self, order: u32, key: &[u8]) -> Result<usize, usize> {
        let mut at = self.index.partition_point(|slot| slot.order < order);
        // Two keys hardly ever share a hash.
        while let Some(slot) = self.index.get(at).filter(|slot| slot.order == order) {
            match self.read(*slot).key.cmp(key) {
                std::cmp::Ordering::Less => at += 1,
                std::cmp::Ordering::Equal => return Ok(at),
                std::cmp::Ordering::Greater => break,
            }
        }
        Err(at)
    }

    pub(super) fn get(&self, order: u32, key: &[u8]) -> Option<ObjectRef<'_>> {
        self.find(order, key).ok().map(|at| self.read(self.index[at]))
    }

    /// Returns the objects whose key hashes have these order bits.
    pub(super) fn with_order(&self, order: u32) -> impl Iterator<Item = ObjectRef<'_>> {
        let from = self.index.partition_point(|slot| slot.order < order);
        let slots = self.index.get(from..).unwrap_or_default().iter();
        slots.take_while(move |slot| slot.order == order).map(|slot| self.read(*slot))
    }

    /// Inserts an object and returns the one that it replaces.
    pub(super) fn insert(&mut self, order: u32, key: &[u8], object: &Object) -> Option<Object> {
        match self.find(order, key) {
            Ok(at) => {
                let old = self.read(self.index[at]);
                let (object_before, hole) = (old.to_object(), old.len());
                self.index[at].at = self.push(key, object);
                self.leave(hole);
                Some(object_before)
            }
            Err(at) => {
                let slot = Slot { order, at: self.push(key, object) };
                self.index.insert(at, slot);
                None
            }
        }
    }

    pub(super) fn remove(&mut self, order: u32, key: &[u8]) -> Option<Object> {
        let at = self.find(order, key).ok()?;
        let slot = self.index.remove(at);
        let old = self.read(slot);
        let (object, hole) = (old.to_object(), old.len());
        self.leave(hole);
        Some(object)
    }

    /// Notes a use of the objects with this hash, unless a later one is noted.
    pub(super) fn note_reuse(&mut self, hash: KeyHash, epoch: u32) {
        let from = self.index.partition_point(|slot| slot.order < hash.order());
        for at in from..self.index.len() {
            let slot = self.index[at];
            if slot.order != hash.order() {
                return;
            }
            let object = self.read(slot);
            if object.reused >= epoch || KeyHash::of_index_key(object.key) != hash {
                continue;
            }
            let reused = slot.at as usize + REUSED..slot.at as usize + REUSED + size_of::<u32>();
            if let Some(reused) = self.records.get_mut(reused) {
                reused.copy_from_slice(&epoch.to_le_bytes());
            }
        }
    }

    /// Appends a record and returns its start.
    fn push(&mut self, key: &[u8], object: &Object) -> u32 {
        // A put has at most 255 replicas, and an index key at most 65 + 4,096 bytes. Were there more replicas, only as
        // many as the count holds would be written, because the key must follow them.
        let replicas = u8::try_from(object.replicas.len()).unwrap_or(u8::MAX);
        let key_len = u16::try_from(key.len()).unwrap_or(u16::MAX) & !HAS_GROUP;
        let key_len = if object.group.is_some() { key_len | HAS_GROUP } else { key_len };
        let len = HEAD + REPLICA * usize::from(replicas) + group_len(object.group) + key.len();
        if self.records.capacity() - self.records.len() < len {
            self.records.reserve_exact(len.max(grown_by(self.records.len())));
        }
        let at = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
        let records = &mut self.records;
        records.extend_from_slice(&object.version.0.to_le_bytes());
        records.extend_from_slice(&object.size.to_le_bytes());
        records.extend_from_slice(&object.checksum.to_le_bytes());
        records.extend_from_slice(&object.reused.to_le_bytes());
        records.extend_from_slice(&object.pin.to_u32().to_le_bytes());
        records.push(object.data_type);
        records.extend_from_slice(&key_len.to_le_bytes());
        records.push(replicas);
        for replica in object.replicas.iter().take(usize::from(replicas)) {
            records.extend_from_slice(&replica.segment.to_le_bytes());
            records.extend_from_slice(&replica.offset.to_le_bytes());
            records.extend_from_slice(&replica.index.to_le_bytes());
        }
        if let Some(group) = object.group {
            records.extend_from_slice(&group.to_u128().to_le_bytes());
        }
        records.extend_from_slice(key);
        at
    }

    /// Counts a record of `bytes` bytes as a hole, and packs the buffer when half of it is holes.
    fn leave(&mut self, bytes: usize) {
        self.holes += bytes;
        if self.holes * 2 >= self.records.len() {
            self.pack();
        }
    }

    fn pack(&mut self) {
        let mut packed = Vec::with_capacity(self.records.len() - self.holes);
        for at in 0..self.index.len() {
            let from = self.index[at].at as usize;
            let len = self.read(self.index[at]).len();
            self.index[at].at = u32::try_from(packed.len()).unwrap_or(u32::MAX);
            packed.extend_from_slice(&self.records[from..from + len]);
        }
        self.records = packed;
        self.holes = 0;
        if self.index.len() * 2 < self.index.capacity() {
            self.index.shrink_to_fit();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ObjectRef<'_>> {
        self.index.iter().map(|slot| self.read(*slot))
    }

    /// Iterates over the objects with the order bits of their key hashes.
    pub(super) fn ordered(&self) -> impl Iterator<Item = (u32, ObjectRef<'_>)> {
        self.index.iter().map(|slot| (slot.order, self.read(*slot)))
    }

    /// Reads the memory where a search of the index begins, to bring it into the cache.
    pub(super) fn prefetch_index(&self) -> u64 {
        self.index.get(self.index.len() / 2).map_or(0, |slot| u64::from(slot.order))
    }

    /// Reads the memory that a look-up of that order is going to read, or an insert to write, to bring it into the
    /// cache.
    pub(super) fn prefetch(&self, order: u32) -> u64 {
        let at = self.index.partition_point(|slot| slot.order < order);
        let Some(slot) = self.index.get(at).filter(|slot| slot.order == order) else {
            return self.records.last().copied().map_or(0, u64::from);
        };
        // A record with a key of the usual length takes three lines of the cache.
        let record = self.records.get(slot.at as usize..).unwrap_or_default();
        record.iter().step_by(CACHE_LINE).take(3).fold(0, |sum, &byte| sum ^ u64::from(byte))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn object(version: u128, replicas: u8) -> Object {
        let replica = |n| Replica { segment: u32::from(n), offset: 64 * u64::from(n), index: 7 };
        Object {
            version: PutId(version),
            size: 1,
            checksum: 2,
            reused: 3,
            pin: Pin::soft(mc_types::ClusterTime(4_000)),
            data_type: 5,
            group: version.is_multiple_of(3).then_some(GroupId::from_u128(version)),
            replicas: (0..replicas).map(replica).collect(),
        }
    }

    #[test]
    fn an_object_is_found_even_if_it_had_more_replicas_than_are_counted() {
        let mut shard = Shard::default();
        let mut crowded = object(1, u8::MAX);
        crowded.replicas.extend(object(1, 3).replicas);
        for key in [b"a", b"b"] {
            shard.insert(7, key, &crowded);
        }
        for key in [b"a", b"b"] {
            assert_eq!(shard.get(7, key).map(ObjectRef::to_object), Some(object(1, u8::MAX)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]
        #[test]
        fn acts_like_a_sorted_map(
            // Few hashes, so that keys share them.
            steps in prop::collection::vec(
                (0..4u32, prop::collection::vec(0..3u8, 1..6), prop::option::of(0..4u8)),
                1..400,
            ),
        ) {
            let mut shard = Shard::default();
            let mut model = BTreeMap::new();
            for (version, (order, key, insert)) in steps.into_iter().enumerate() {
                if let Some(replicas) = insert {
                    let object = object(version as u128, replicas);
                    let old = model.insert((order, key.clone()), object.clone());
                    prop_assert_eq!(shard.insert(order, &key, &object), old);
                } else {
                    prop_assert_eq!(shard.remove(order, &key), model.remove(&(order, key.clone())));
                }
                let found = shard.get(order, &key).map(ObjectRef::to_object);
                prop_assert_eq!(found.as_ref(), model.get(&(order, key)));
                prop_assert!(shard.holes * 2 <= shard.records.len().max(1), "holes are packed away");
            }
            let all: Vec<_> = shard.iter().map(|object| (object.key.to_vec(), object.to_object())).collect();
            let expected: Vec<_> = model.into_iter().map(|((_, key), object)| (key, object)).collect();
            prop_assert_eq!(all, expected);
        }
    }
}
