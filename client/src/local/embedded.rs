use std::sync::{Arc, Weak};

use mc_transfer::{Checksum, Memory, ReadBuffer, Segment};
use mc_types::StoreId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::placement::Place;

/// Maximum bytes of the account, estimated from its entries. With keys of 100 bytes it holds some 300,000 objects.
const ACCOUNT_BYTES: u64 = 64 << 20;
/// Bytes that an entry of the account takes in addition to its key.
const ENTRY_OVERHEAD: u64 = 128;
const TYPICAL_ENTRIES: usize = 1 << 10;
/// Bytes copied between two yields to other tasks.
const PIECE: usize = 1 << 20;

/// Memory of a store in this process, with a record of the objects that lie there. It answers gets while no leader is
/// in reach.
///
/// Without a leader the record may be wrong: the masters may have dropped the store, and its memory may hold other
/// objects at any moment. So a read counts only if the checksum of the copy that is handed out is the one that the
/// writer recorded.
#[derive(Debug)]
pub(crate) struct Embedded {
    store: StoreId,
    /// The store owns it, and it is gone once the store has stopped.
    memory: Weak<Memory>,
    account: Cache<Box<[u8]>, EmbeddedPlace, Weight>,
}

/// Place of an object in this process's store, from a leader's description or from a put of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EmbeddedPlace {
    pub(crate) size: u64,
    checksum: Checksum,
    segment: u32,
    offset: u64,
}

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Box<[u8]>, EmbeddedPlace> for Weight {
    fn weight(&self, key: &Box<[u8]>, _: &EmbeddedPlace) -> u64 {
        key.len() as u64 + ENTRY_OVERHEAD
    }
}

impl Embedded {
    pub(crate) fn new(store: StoreId, memory: Weak<Memory>) -> Self {
        Self { store, memory, account: Cache::with_weighter(TYPICAL_ENTRIES, ACCOUNT_BYTES, Weight) }
    }

    /// Returns the place of an object in this memory; `None` when none of `places` is in it.
    pub(crate) fn spot<'a>(
        &self,
        size: u64,
        checksum: Checksum,
        mut places: impl Iterator<Item = &'a Place>,
    ) -> Option<EmbeddedPlace> {
        let place = places.find(|place| place.store == self.store)?;
        Some(EmbeddedPlace { size, checksum, segment: place.segment, offset: place.offset })
    }

    /// Records the place of a key's object. Without a place here, forgets the key.
    pub(crate) fn note(&self, key: &[u8], spot: Option<EmbeddedPlace>) {
        match spot {
            Some(spot) => self.account.insert(key.into(), spot),
            None => self.forget(key),
        }
    }

    /// Returns the recorded place of a key's object, while the store's memory exists.
    pub(crate) fn find(&self, key: &[u8]) -> Option<EmbeddedPlace> {
        self.account.get(key).filter(|spot| self.segment(spot).is_some())
    }

    fn segment(&self, spot: &EmbeddedPlace) -> Option<Arc<Segment>> {
        self.memory.upgrade()?.segment(spot.segment)
    }

    /// Copies the object into buffers, which in sum are as long as the object; returns `false` if it no longer lies
    /// there. It yields after every piece, so that a large object delays neither other tasks nor a deadline.
    pub(crate) async fn read(&self, spot: &EmbeddedPlace, into: Vec<ReadBuffer<'_>>) -> bool {
        let Some(segment) = self.segment(spot) else { return false };
        let (mut offset, mut checksum) = (spot.offset, Checksum::of(&[]));
        for mut rest in into {
            while !rest.is_empty() {
                let at = rest.len().min(PIECE);
                let (mut piece, later) = rest.split_at(at);
                tokio::task::yield_now().await;
                if segment.copy_out_into(offset, &mut piece).is_err() {
                    return false;
                }
                let Ok(sum) = piece.checksum() else { return false };
                // No overflow: `copy_out_into` has checked that the piece lies within the segment.
                offset += at as u64;
                checksum = checksum.followed_by(sum, at as u64);
                rest = later;
            }
        }
        checksum == spot.checksum
    }

    pub(crate) fn forget(&self, key: &[u8]) {
        self.account.remove(key);
    }

    pub(crate) fn clear(&self) {
        self.account.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: StoreId = StoreId(7);
    const AT: u64 = 4096;

    /// Returns a store's memory that contains `value`, and the account that names it.
    fn holding(value: &[u8]) -> (Arc<Memory>, Embedded) {
        let segment = Segment::allocate(0, 4 << 20, &mut |_| {}).unwrap();
        let memory = Arc::new(Memory::of(vec![segment.clone()]));
        let embedded = Embedded::new(OURS, Arc::downgrade(&memory));
        // The memory is all zeros: flip the bits where `value` is 0xff.
        for (at, byte) in (AT..).zip(value) {
            assert!([0, 0xff].contains(byte), "only these can be written here");
            if *byte == 0xff {
                segment.corrupt(at).unwrap();
            }
        }
        let spot = embedded.spot(value.len() as u64, Checksum::of(value), [place(OURS, AT)].iter());
        embedded.note(b"k", spot);
        (memory, embedded)
    }

    fn place(store: StoreId, offset: u64) -> Place {
        Place { store, grant: 0, range: 0, segment: 0, offset }
    }

    #[tokio::test]
    async fn what_lies_there_is_read_and_what_does_not_any_more_is_not() {
        // The value is longer than one piece.
        let mut value = vec![0; PIECE + 3];
        (value[0], value[PIECE + 1]) = (0xff, 0xff);
        let (memory, embedded) = holding(&value);
        let spot = embedded.find(b"k").unwrap();
        let mut read = vec![1; value.len()];
        assert!(embedded.read(&spot, vec![(&mut read).into()]).await);
        assert_eq!(read, value);
        for at in [AT, AT + PIECE as u64, AT + PIECE as u64 + 2] {
            let segment = memory.segment(0).unwrap();
            segment.corrupt(at).unwrap();
            assert!(!embedded.read(&spot, vec![(&mut read).into()]).await, "the byte at {at} differs");
            segment.corrupt(at).unwrap();
        }
        assert!(embedded.read(&spot, vec![(&mut read).into()]).await, "and is right again");
        drop(memory);
        assert!(!embedded.read(&spot, vec![(&mut read).into()]).await, "the store has stopped");
        assert_eq!(embedded.find(b"k"), None);
    }

    #[test]
    fn only_what_lies_in_this_store_is_noted_and_newer_words_replace_older_ones() {
        let (_memory, embedded) = holding(&[0xff]);
        let of = |places: &[Place]| embedded.spot(1, Checksum(0), places.iter());
        assert_eq!(of(&[place(StoreId(8), 0)]), None);
        embedded.note(b"k", of(&[place(StoreId(8), 0), place(OURS, 8192)]));
        assert_eq!(embedded.find(b"k").map(|spot| spot.offset), Some(8192));
        embedded.note(b"k", None);
        assert_eq!(embedded.find(b"k"), None, "it lies elsewhere now");
    }

    #[tokio::test]
    async fn an_account_of_nonsense_reads_nothing() {
        let (_memory, embedded) = holding(&[0xff]);
        let spot = embedded.find(b"k").unwrap();
        assert!(
            !embedded.read(&EmbeddedPlace { segment: 1, ..spot }, vec![(&mut [0]).into()]).await,
            "no such segment"
        );
        assert!(
            !embedded.read(&EmbeddedPlace { offset: 4 << 20, ..spot }, vec![(&mut [0]).into()]).await,
            "past its end"
        );
        assert!(!embedded.read(&EmbeddedPlace { offset: u64::MAX, ..spot }, vec![(&mut [0]).into()]).await);
    }
}
