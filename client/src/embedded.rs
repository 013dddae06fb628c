use std::sync::{Arc, Weak};

use mc_transfer::{Checksum, Segment};
use mc_types::StoreId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::placement::Place;

/// Bytes that the account may take, estimated from its entries. With keys of 100 bytes it names some 300,000 objects.
const ACCOUNT_BYTES: u64 = 64 << 20;
/// Bytes of an entry of it besides its key.
const ENTRY_OVERHEAD: u64 = 128;
const TYPICAL_ENTRIES: usize = 1 << 10;
/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// The memory of a store that runs in this process, and an account of what lies there: with them gets are answered
/// when no leader is in reach.
///
/// Nothing keeps that account right without a leader: the store may have been given up since and its memory may hold
/// something else, or hold it any moment. So nothing that is read counts before its checksum is the one that its writer
/// recorded, and it is taken of the copy that is handed out.
#[derive(Debug)]
pub(crate) struct Embedded {
    store: StoreId,
    /// By their numbers. The store owns them: once it has stopped, they are gone.
    segments: Vec<Weak<Segment>>,
    account: Cache<Box<[u8]>, Spot, Weight>,
}

/// Where an object lies in this process's store, as a leader described it or this client put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) size: u64,
    checksum: Checksum,
    segment: u32,
    offset: u64,
}

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Box<[u8]>, Spot> for Weight {
    fn weight(&self, key: &Box<[u8]>, _: &Spot) -> u64 {
        key.len() as u64 + ENTRY_OVERHEAD
    }
}

impl Embedded {
    pub(crate) fn new(store: StoreId, segments: Vec<Weak<Segment>>) -> Self {
        Self { store, segments, account: Cache::with_weighter(TYPICAL_ENTRIES, ACCOUNT_BYTES, Weight) }
    }

    /// Where an object lies, if one of its places is in this memory.
    pub(crate) fn spot<'a>(
        &self,
        size: u64,
        checksum: Checksum,
        mut places: impl Iterator<Item = &'a Place>,
    ) -> Option<Spot> {
        let place = places.find(|place| place.store == self.store)?;
        Some(Spot { size, checksum, segment: place.segment, offset: place.offset })
    }

    /// Takes down where a key's object lies now; nothing, if that is not here.
    pub(crate) fn note(&self, key: &[u8], spot: Option<Spot>) {
        match spot {
            Some(spot) => self.account.insert(key.into(), spot),
            None => self.forget(key),
        }
    }

    /// Where a key's object should lie, as long as there is such memory.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Spot> {
        self.account.get(key).filter(|spot| self.segment(spot).is_some())
    }

    fn segment(&self, spot: &Spot) -> Option<Arc<Segment>> {
        self.segments.get(usize::try_from(spot.segment).ok()?)?.upgrade()
    }

    /// Copies the object out; `false` when it does not lie there any more. `into` is as long as the object. A large one
    /// takes as long as it takes: in between other tasks, and a deadline, have their turns.
    pub(crate) async fn read(&self, spot: &Spot, into: &mut [u8]) -> bool {
        let Some(segment) = self.segment(spot) else { return false };
        let (mut offset, mut checksum) = (spot.offset, Checksum::of(&[]));
        for piece in into.chunks_mut(PIECE) {
            tokio::task::yield_now().await;
            if segment.copy_out(offset, piece).is_err() {
                return false;
            }
            // What `copy_out` found inside a segment adds up to less than its length.
            offset += piece.len() as u64;
            checksum = checksum.followed_by(Checksum::of(piece), piece.len() as u64);
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

    /// A store's memory that holds `value`, and the account of that.
    fn holding(value: &[u8]) -> (Arc<Segment>, Embedded) {
        let memory = Segment::allocate(0, 4 << 20, &mut |_| {}).unwrap();
        let embedded = Embedded::new(OURS, vec![Arc::downgrade(&memory)]);
        // The memory is all zeros: `value` is where its bits are flipped.
        for (at, byte) in (AT..).zip(value) {
            assert!([0, 0xff].contains(byte), "only these can be written here");
            if *byte == 0xff {
                memory.corrupt(at).unwrap();
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
        // More than one piece of it.
        let mut value = vec![0; PIECE + 3];
        (value[0], value[PIECE + 1]) = (0xff, 0xff);
        let (memory, embedded) = holding(&value);
        let spot = embedded.find(b"k").unwrap();
        let mut read = vec![1; value.len()];
        assert!(embedded.read(&spot, &mut read).await);
        assert_eq!(read, value);
        for at in [AT, AT + PIECE as u64, AT + PIECE as u64 + 2] {
            memory.corrupt(at).unwrap();
            assert!(!embedded.read(&spot, &mut read).await, "the byte at {at} differs");
            memory.corrupt(at).unwrap();
        }
        assert!(embedded.read(&spot, &mut read).await, "and is right again");
        drop(memory);
        assert!(!embedded.read(&spot, &mut read).await, "the store has stopped");
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
        assert!(!embedded.read(&Spot { segment: 1, ..spot }, &mut [0]).await, "no such segment");
        assert!(!embedded.read(&Spot { offset: 4 << 20, ..spot }, &mut [0]).await, "past its end");
        assert!(!embedded.read(&Spot { offset: u64::MAX, ..spot }, &mut [0]).await);
    }
}
