//! The account of a put session: every byte of the object is to be written exactly once.
//!
//! A write that was abandoned may still reach a store after a later write of its range, and no checksum covers a part of
//! an object that is read. So the range may be written again only with the same bytes: whichever write comes last, they are
//! what lies in the store.

use std::collections::BTreeMap;

use mc_transfer::Checksum;

use crate::ByteRange;

/// The ranges of an object that were written or are being written. They never overlap.
#[derive(Debug)]
pub(super) struct Coverage {
    /// Size of the object in bytes.
    size: u64,
    /// Length and state of each range, by its offset.
    ranges: BTreeMap<u64, (u64, RangeState)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeState {
    /// The write was begun and has not succeeded.
    Begun,
    /// The write was begun and abandoned. It may still come; the checksum of its bytes.
    Abandoned(Checksum),
    /// The bytes are in the stores; their checksum.
    Done(Checksum),
}

/// Why a range can't be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RangeError {
    #[error("{range} do not lie within the object of {size} bytes")]
    Beyond { range: ByteRange, size: u64 },
    #[error("{range} overlap {other}, which were written before or are being written")]
    Overlap { range: ByteRange, other: ByteRange },
    #[error(
        "{range} overlap {other}, whose write was abandoned and may still come: write those again, with the same bytes"
    )]
    Abandoned { range: ByteRange, other: ByteRange },
}

/// Why an object is not complete: the first range that lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Incomplete {
    #[error("{0} were not written")]
    Gap(ByteRange),
    #[error("the write of {0} was begun and did not succeed")]
    Begun(ByteRange),
}

impl Coverage {
    pub(super) fn new(size: u64) -> Self {
        Self { size, ranges: BTreeMap::new() }
    }

    /// Notes that ranges, none of which is empty, are being written: all of them or, on an error, none. `sum` returns the
    /// checksum of the bytes of the range with that number, or `None` if it can't be told, and is called only where a write was abandoned.
    pub(super) fn begin(
        &mut self,
        ranges: &[ByteRange],
        sum: impl Fn(usize) -> Option<Checksum>,
    ) -> Result<(), RangeError> {
        let mut before = Vec::with_capacity(ranges.len());
        for (at, range) in ranges.iter().enumerate() {
            match self.begin_one(*range, || sum(at)) {
                Ok(was) => before.push((range.offset, was)),
                Err(refused) => {
                    for (offset, was) in before {
                        match was {
                            Some(was) => drop(self.ranges.insert(offset, was)),
                            None => drop(self.ranges.remove(&offset)),
                        }
                    }
                    return Err(refused);
                }
            }
        }
        Ok(())
    }

    /// Returns what was noted of the range before.
    fn begin_one(
        &mut self,
        range: ByteRange,
        sum: impl FnOnce() -> Option<Checksum>,
    ) -> Result<Option<(u64, RangeState)>, RangeError> {
        let size = self.size;
        let end = range.end_within(size).ok_or(RangeError::Beyond { range, size })?;
        // The ranges are disjoint, so the last one that begins before the end is the one to overlap, if any is.
        if let Some((&offset, &(len, written))) = self.ranges.range(..end).next_back()
            && offset + len > range.offset
        {
            let other = ByteRange { offset, len };
            match written {
                RangeState::Abandoned(abandoned) if other == range && sum() == Some(abandoned) => {}
                RangeState::Abandoned(_) => return Err(RangeError::Abandoned { range, other }),
                RangeState::Begun | RangeState::Done(_) => return Err(RangeError::Overlap { range, other }),
            }
        }
        Ok(self.ranges.insert(range.offset, (range.len, RangeState::Begun)))
    }

    /// Notes that the write of the range begun at `offset` was abandoned; `checksum` is that of its bytes.
    pub(super) fn abandoned(&mut self, offset: u64, checksum: Checksum) {
        if let Some((_, written @ RangeState::Begun)) = self.ranges.get_mut(&offset) {
            *written = RangeState::Abandoned(checksum);
        }
    }

    /// Notes that the range begun at `offset` is written.
    pub(super) fn done(&mut self, offset: u64, checksum: Checksum) {
        if let Some((_, written)) = self.ranges.get_mut(&offset) {
            *written = RangeState::Done(checksum);
        }
    }

    /// Returns the checksum of the object if all of its bytes are written.
    pub(super) fn checksum(&self) -> Result<Checksum, Incomplete> {
        let (mut end, mut whole) = (0, Checksum::of(&[]));
        for (&offset, &(len, written)) in &self.ranges {
            if offset > end {
                return Err(Incomplete::Gap(ByteRange { offset: end, len: offset - end }));
            }
            let RangeState::Done(checksum) = written else {
                return Err(Incomplete::Begun(ByteRange { offset, len }));
            };
            whole = whole.followed_by(checksum, len);
            end = offset + len;
        }
        if end < self.size {
            return Err(Incomplete::Gap(ByteRange { offset: end, len: self.size - end }));
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    /// No write was abandoned.
    fn none(_: usize) -> Option<Checksum> {
        unreachable!("the checksum is not needed")
    }

    /// Writes a range of `value`.
    fn write(coverage: &mut Coverage, value: &[u8], range: ByteRange) -> Result<(), RangeError> {
        let bytes = |range: ByteRange| {
            let (from, len) = (usize::try_from(range.offset).unwrap(), usize::try_from(range.len).unwrap());
            Checksum::of(&value[from..from + len])
        };
        coverage.begin(&[range], |_| Some(bytes(range)))?;
        coverage.done(range.offset, bytes(range));
        Ok(())
    }

    #[test]
    fn a_gap_names_its_range_wherever_it_is() {
        let value = [7; 10];
        for (written, gap) in [
            (vec![], range(0, 10)),
            (vec![range(2, 8)], range(0, 2)),
            (vec![range(6, 4), range(0, 3)], range(3, 3)),
            (vec![range(0, 9)], range(9, 1)),
        ] {
            let mut coverage = Coverage::new(10);
            for range in written {
                write(&mut coverage, &value, range).unwrap();
            }
            assert_eq!(coverage.checksum(), Err(Incomplete::Gap(gap)));
        }
    }

    #[test]
    fn an_overlap_names_both_ranges_and_begins_none_of_its_write() {
        let mut coverage = Coverage::new(100);
        coverage.begin(&[range(40, 20)], none).unwrap();
        for overlapping in [range(30, 11), range(40, 20), range(59, 1), range(45, 5), range(0, 90)] {
            let refused = coverage.begin(&[range(90, 5), overlapping], none).unwrap_err();
            assert_eq!(refused, RangeError::Overlap { range: overlapping, other: range(40, 20) });
        }
        let beyond = coverage.begin(&[range(95, 5), range(99, 2)], none).unwrap_err();
        assert_eq!(beyond, RangeError::Beyond { range: range(99, 2), size: 100 });
        coverage.begin(&[range(0, 40), range(60, 40)], none).unwrap();
    }

    #[test]
    fn a_write_that_did_not_succeed_leaves_the_object_incomplete() {
        let mut coverage = Coverage::new(10);
        coverage.begin(&[range(0, 4), range(4, 6)], none).unwrap();
        coverage.done(0, Checksum::of(&[0; 4]));
        assert_eq!(coverage.checksum(), Err(Incomplete::Begun(range(4, 6))));
    }

    #[test]
    fn an_abandoned_range_is_written_again_with_the_same_bytes_only() {
        let mut coverage = Coverage::new(10);
        let (ours, others) = (Checksum::of(&[1; 4]), Checksum::of(&[2; 4]));
        coverage.begin(&[range(0, 4), range(4, 6)], none).unwrap();
        coverage.done(4, Checksum::of(&[1; 6]));
        coverage.abandoned(0, ours);
        coverage.abandoned(4, ours);
        assert_eq!(coverage.checksum(), Err(Incomplete::Begun(range(0, 4))));
        let refused = |range| Err(RangeError::Abandoned { range, other: self::range(0, 4) });
        assert_eq!(coverage.begin(&[range(0, 4)], |_| Some(others)), refused(range(0, 4)));
        assert_eq!(coverage.begin(&[range(0, 4)], |_| None), refused(range(0, 4)), "unknown bytes");
        assert_eq!(coverage.begin(&[range(0, 3)], |_| Some(ours)), refused(range(0, 3)), "another range");
        let done = Err(RangeError::Overlap { range: range(4, 6), other: range(4, 6) });
        assert_eq!(
            coverage.begin(&[range(0, 4), range(4, 6)], |_| Some(ours)),
            done,
            "none of them is begun"
        );
        coverage.begin(&[range(0, 4)], |_| Some(ours)).unwrap();
        coverage.done(0, ours);
        assert_eq!(coverage.checksum(), Ok(Checksum::of(&[1; 10])));
    }

    proptest! {
        /// Ranges at random, in any order: one is refused exactly if one of its bytes was written before, and the
        /// checksum is there exactly if every byte was.
        #[test]
        fn every_byte_is_written_once_and_the_checksum_is_that_of_the_whole(
            value in prop::collection::vec(any::<u8>(), 1..200),
            tries in prop::collection::vec((0..210_u64, 1..60_u64), 0..60),
            filled in any::<bool>(),
        ) {
            let size = value.len() as u64;
            let mut coverage = Coverage::new(size);
            let mut written = vec![false; value.len()];
            let gaps = (0..size).map(|offset| (offset, 1)).filter(|_| filled);
            for (offset, len) in tries.into_iter().chain(gaps) {
                let bytes = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
                let free = written.get(bytes.clone()).is_some_and(|bytes| !bytes.contains(&true));
                prop_assert_eq!(write(&mut coverage, &value, range(offset, len)).is_ok(), free);
                if free {
                    written[bytes].fill(true);
                }
            }
            match coverage.checksum() {
                Ok(checksum) => {
                    prop_assert!(!written.contains(&false));
                    prop_assert_eq!(checksum, Checksum::of(&value));
                }
                Err(Incomplete::Gap(gap)) => {
                    let begin = usize::try_from(gap.offset).unwrap();
                    let end = begin + usize::try_from(gap.len).unwrap();
                    prop_assert!(!written[begin..end].contains(&true));
                    prop_assert!(!written[..begin].contains(&false), "it is the first");
                }
                Err(begun @ Incomplete::Begun(_)) => prop_assert!(false, "{begun}"),
            }
        }
    }
}
