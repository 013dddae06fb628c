use mc_types::{ClusterTime, SegmentEpoch, SegmentNumber, StoreId};

use crate::alloc::Allocator;
use crate::cow::CowMap;

/// One segment of one epoch of a store, known within the cluster by a number that is never reused.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) store: StoreId,
    pub(crate) epoch: SegmentEpoch,
    /// Position in the store's mount.
    pub(crate) number: SegmentNumber,
    pub(crate) bytes: u64,
    /// Free and held ranges; `None` once the segment or its store was dropped: every replica here is then invisible.
    pub(crate) space: Option<Space>,
    /// Objects with a replica here, so that the cost of sweeping and listing depends on this segment alone.
    pub(crate) residents: Residents,
}

/// The space of a live segment.
#[derive(Clone)]
pub(crate) struct Space {
    pub(crate) alloc: Allocator,
    /// Bytes of removed versions that may still be read: (time from which they may be reused, offset) to length.
    pub(crate) held: CowMap<(ClusterTime, u64), u64>,
    /// Bytes that the held ranges take, each rounded up to the alignment.
    pub(crate) held_bytes: u64,
    /// Bytes that replicas of hard-pinned objects and puts take, each rounded up to the alignment.
    pub(crate) pinned_bytes: u64,
    /// Bytes that replicas of puts in flight take, each rounded up to the alignment.
    pub(crate) in_flight_bytes: u64,
}

/// Bytes of one live segment, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceUsage {
    /// Bytes that can be allocated.
    pub(crate) capacity: u64,
    /// Bytes allocated, held ones included.
    pub(crate) used: u64,
    pub(crate) held: u64,
    pub(crate) pinned: u64,
    pub(crate) in_flight: u64,
}

impl SpaceUsage {
    pub(crate) fn add(&mut self, other: Self) {
        self.capacity += other.capacity;
        self.used += other.used;
        self.held += other.held;
        self.pinned += other.pinned;
        self.in_flight += other.in_flight;
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.capacity -= other.capacity;
        self.used -= other.used;
        self.held -= other.held;
        self.pinned -= other.pinned;
        self.in_flight -= other.in_flight;
    }
}

impl Space {
    pub(crate) fn usage(&self) -> SpaceUsage {
        SpaceUsage {
            capacity: self.alloc.capacity(),
            used: self.alloc.used(),
            held: self.held_bytes,
            pinned: self.pinned_bytes,
            in_flight: self.in_flight_bytes,
        }
    }
}

impl Segment {
    pub(crate) fn new(store: StoreId, epoch: SegmentEpoch, number: SegmentNumber, bytes: u64) -> Self {
        let space = Space {
            alloc: Allocator::new(bytes),
            held: CowMap::new(),
            held_bytes: 0,
            pinned_bytes: 0,
            in_flight_bytes: 0,
        };
        Self { store, epoch, number, bytes, space: Some(space), residents: Residents::new() }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.space.is_some()
    }
}

/// Offset and index shard of each object in a segment.
///
/// One word an object: offsets are multiples of 64 below 2^48, so offset and shard (18 bits) share 64 bits.
#[derive(Clone)]
pub(crate) struct Residents(CowMap<u64, ()>);

const SHARD_BITS: u32 = 18;
const ALIGN_BITS: u32 = 6;

impl Residents {
    pub(crate) fn new() -> Self {
        Self(CowMap::new())
    }

    fn word(offset: u64, shard: u32) -> u64 {
        (offset >> ALIGN_BITS) << SHARD_BITS | u64::from(shard)
    }

    pub(crate) fn insert(&mut self, offset: u64, shard: u32) {
        self.0.insert(Self::word(offset, shard), ());
    }

    pub(crate) fn remove(&mut self, offset: u64, shard: u32) {
        self.0.remove(&Self::word(offset, shard));
    }

    /// Returns the offset and the shard of the resident with the lowest offset.
    pub(crate) fn first(&self) -> Option<(u64, u32)> {
        self.0.first().map(|(&word, ())| Self::parts(word))
    }

    /// Returns the offset and the shard of the first resident from `offset` on.
    pub(crate) fn at_or_after(&self, offset: u64) -> Option<(u64, u32)> {
        let from = Self::word(offset.next_multiple_of(1 << ALIGN_BITS), 0);
        self.0.at_or_after(&from).map(|(&word, ())| Self::parts(word))
    }

    fn parts(word: u64) -> (u64, u32) {
        let shard = word & ((1 << SHARD_BITS) - 1);
        (word >> SHARD_BITS << ALIGN_BITS, u32::try_from(shard).unwrap_or_default())
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SHARDS;

    #[test]
    fn residents_keep_the_largest_offset_and_come_in_order() {
        let mut residents = Residents::new();
        let last = (1 << 48) - 64;
        residents.insert(last, SHARDS - 1);
        assert_eq!(residents.first(), Some((last, SHARDS - 1)));
        residents.insert(64, 7);
        assert_eq!((residents.first(), residents.len()), (Some((64, 7)), 2));
        assert_eq!(
            (residents.at_or_after(64), residents.at_or_after(65)),
            (Some((64, 7)), Some((last, SHARDS - 1)))
        );
        residents.remove(64, 7);
        residents.remove(last, SHARDS - 1);
        assert_eq!(residents.first(), None);
    }
}
