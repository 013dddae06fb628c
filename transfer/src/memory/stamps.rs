//! Stamps: for each block of a segment, the newest allocation that was written to it. Readers of the same host map them.
//!
//! A reader copies bytes, then looks at the stamps of their blocks. A write stamps its blocks after the fence has admitted it,
//! and before its first byte. So a reader that copied a byte of a newer write finds that write's stamp, as a server that
//! checks its own read finds the record (see [`crate::fence`]): a seqlock of which the reader needs no message.
//!
//! A stamp never falls, because the fence admits no older write, and is never forgotten, as records are. So stamps hold as
//! long as their fence admits writes, and also after its process has ended: nobody writes there any more. A store that moves
//! to another cluster serves the same memory under a new fence, and the indexes of that cluster start at 1. The store first
//! marks the old stamps as ended ([`Stamps::end`]); after that no read passes them.
//!
//! A block may hold bytes of several objects. Then a newer neighbour hides that the reader's own bytes are good, and the reader
//! asks the store, whose records are exact.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use mc_types::SegmentNumber;
use rustix::fs::SealFlags;

use super::mapping::{Mapping, Protection, memory_file};

/// Bytes of a block. Objects of this size and more mostly begin and end at multiples of it.
const BLOCK: u64 = 4 << 10;
const STAMP_LEN: u64 = size_of::<AtomicU64>() as u64;

/// The stamps of a segment of this store, of one fence. The first word says whether they have ended.
pub(crate) struct Stamps {
    mapping: Mapping,
    file: OwnedFd,
}

impl Stamps {
    /// Creates stamps of a segment without writes. `None` where the system can't share them.
    pub(crate) fn new(segment: SegmentNumber, segment_len: u64) -> Option<Self> {
        let len = stamps_len(segment_len);
        let file = memory_file(&format!("mc-stamps-{segment}"), len).ok()?;
        let mapping = Mapping::new(&file, len, Protection::Write).ok()?;
        mapping.withhold_from_children();
        // A write must not meet a machine without memory.
        mapping.populate(&file, 0..len).ok()?;
        // No other process can write the stamps. This process can, through the mapping that it already has.
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL).ok()?;
        Some(Self { mapping, file })
    }

    /// Ends the stamps, before another fence admits writes to the same memory.
    pub(crate) fn end(&self) {
        ended(&self.mapping).store(1, Ordering::Relaxed);
        // Pairs with the fence in `newest`: what is written under another fence comes after this.
        fence(Ordering::SeqCst);
    }

    /// Stamps the blocks of a write, which was admitted and has written no byte yet.
    pub(crate) fn stamp(&self, range: &Range<u64>, index: u64) {
        for stamp in stamps(&self.mapping, range) {
            if stamp.load(Ordering::Relaxed) < index {
                // The greatest, because a neighbour in the same block may be stamped at the same time.
                stamp.fetch_max(index, Ordering::Relaxed);
            }
        }
        // Pairs with the fence in `newest`: the bytes come after the stamps.
        fence(Ordering::SeqCst);
    }
}

impl AsFd for Stamps {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Length of the stamps of a segment of `segment_len` bytes.
pub(crate) fn stamps_len(segment_len: u64) -> u64 {
    (1 + segment_len.div_ceil(BLOCK)) * STAMP_LEN
}

/// The newest allocation that was written to the blocks of `range`, whose bytes were copied *before* this call: newer than all
/// if the stamps have ended. All of the range is inside of the segment.
pub(crate) fn newest(mapping: &Mapping, range: &Range<u64>) -> u64 {
    // Orders the copy before the look, on every processor.
    fence(Ordering::SeqCst);
    if ended(mapping).load(Ordering::Relaxed) != 0 {
        return u64::MAX;
    }
    stamps(mapping, range).iter().map(|stamp| stamp.load(Ordering::Relaxed)).max().unwrap_or(0)
}

fn ended(mapping: &Mapping) -> &AtomicU64 {
    assert!(mapping.contains(0, STAMP_LEN), "stamps of {} bytes", mapping.len());
    // SAFETY: inside the mapping, which begins at a page, and every process accesses it by atomic words only.
    unsafe { mapping.base().cast().as_ref() }
}

fn stamps<'a>(mapping: &'a Mapping, range: &Range<u64>) -> &'a [AtomicU64] {
    if range.is_empty() {
        return &[];
    }
    // Skip the first word.
    let (first, end) = (1 + range.start / BLOCK, 1 + range.end.div_ceil(BLOCK));
    let (offset, len) = (first * STAMP_LEN, (end - first) * STAMP_LEN);
    assert!(mapping.contains(offset, len), "stamps {first} to {end} of {} bytes", mapping.len());
    // SAFETY: inside the mapping, which begins at a page, and every process accesses it by atomic words only.
    unsafe { std::slice::from_raw_parts(mapping.at(offset).cast(), (end - first) as usize) }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::Segment;

    fn of_reader(stamps: &Stamps, segment_len: u64) -> Mapping {
        Mapping::of_another(stamps, stamps_len(segment_len)).unwrap()
    }

    #[test]
    fn the_newest_write_of_each_block_is_there() {
        let stamps = Stamps::new(0, 5 * BLOCK + 1).unwrap();
        let reader = of_reader(&stamps, 5 * BLOCK + 1);
        stamps.stamp(&(0..0), 9);
        assert_eq!(newest(&reader, &(0..5 * BLOCK + 1)), 0);
        stamps.stamp(&(BLOCK..2 * BLOCK), 5);
        stamps.stamp(&(2 * BLOCK..2 * BLOCK + 1), 7);
        stamps.stamp(&(2 * BLOCK + 1..2 * BLOCK + 2), 6);
        stamps.stamp(&(5 * BLOCK..5 * BLOCK + 1), 8);
        let at = |range| newest(&reader, &range);
        assert_eq!([at(0..BLOCK), at(BLOCK..2 * BLOCK), at(0..BLOCK + 1)], [0, 5, 5]);
        assert_eq!([at(2 * BLOCK + 100..2 * BLOCK + 101), at(2 * BLOCK..3 * BLOCK)], [7, 7], "a neighbour");
        assert_eq!([at(3 * BLOCK..5 * BLOCK), at(5 * BLOCK..5 * BLOCK + 1), at(0..0)], [0, 8, 0]);
    }

    #[test]
    fn stamps_that_have_ended_call_nothing_good() {
        let segment = Segment::allocate(0, 1 << 20, &mut |_| {}).unwrap();
        let old = segment.new_stamps().unwrap();
        let reader = of_reader(&old, 1 << 20);
        old.stamp(&(0..100), 1_000);
        assert_eq!(newest(&reader, &(0..100)), 1_000);
        segment.renew();
        assert_eq!(newest(&reader, &(0..100)), u64::MAX, "for those who have not heard of the new ones");
        segment.renew();
        let new = segment.new_stamps().unwrap();
        new.stamp(&(0..100), 5);
        assert_eq!(newest(&of_reader(&new, 1 << 20), &(0..100)), 5);
    }

    #[test]
    fn others_can_not_write_them() {
        let stamps = Stamps::new(0, 1 << 20).unwrap();
        assert!(Mapping::new(&stamps, stamps_len(1 << 20), Protection::Write).is_err());
    }

    /// A writer overwrites a range with one newer value after the other; a reader copies the newest that is complete, and then
    /// looks. With the stamp after the bytes, or the look before the copy, this fails within a moment.
    #[test]
    fn a_reader_never_takes_bytes_of_a_newer_write_for_older_ones() {
        const LEN: usize = 64 << 10;
        const WRITES: u64 = 20_000;
        let segment = Segment::allocate(0, LEN as u64, &mut |_| {}).unwrap();
        let stamps = &segment.new_stamps().unwrap();
        let range = 0..LEN as u64;
        let bytes = Mapping::of_another(segment.shared().unwrap(), LEN as u64).unwrap();
        let looked_at = of_reader(stamps, LEN as u64);
        let (complete, begun) = (AtomicU64::new(0), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut copied, mut good) = (vec![0; LEN], 0);
                begun.wait();
                loop {
                    let granted = complete.load(Ordering::Acquire);
                    crate::ReadBuffer::from(&mut copied).fill_from(&bytes, 0);
                    if newest(&looked_at, &range) <= granted {
                        let foreign =
                            copied.as_chunks().0.iter().find(|word| u64::from_ne_bytes(**word) != granted);
                        assert_eq!(foreign, None, "under a grant of {granted}");
                        good += 1;
                    }
                    if granted == WRITES {
                        break;
                    }
                }
                assert!(good > 0);
            });
            begun.wait();
            for index in 1..=WRITES {
                let value = vec![index; LEN / 8];
                stamps.stamp(&range, index);
                // SAFETY: all of the segment, which only raw copies touch.
                unsafe { libc::memcpy(segment.base().as_ptr().cast(), value.as_ptr().cast(), LEN) };
                complete.store(index, Ordering::Release);
            }
        });
    }
}
