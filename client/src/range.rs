use std::fmt;

use mc_types::Code;

use crate::Error;

/// A part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte, counted from the start of the object.
    pub offset: u64,
    /// Number of bytes; 0 is allowed.
    pub len: u64,
}

impl ByteRange {
    /// Returns the offset behind the last byte if the range lies within `size` bytes.
    pub(crate) fn end_within(self, size: u64) -> Option<u64> {
        self.offset.checked_add(self.len).filter(|end| *end <= size)
    }

    /// Checks that the range lies within an object of `size` bytes.
    pub(crate) fn check(self, what: &'static str, size: u64) -> Result<(), Error> {
        if self.end_within(size).is_none() {
            let why = format!("{self} do not lie within the object of {size} bytes");
            return Err(Error::definite(what, Code::InvalidParams, "this client", why));
        }
        Ok(())
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at offset {}", self.len, self.offset)
    }
}

/// Merges ranges that follow each other in the list and in the object, and drops empty ones. Ranges must not end beyond
/// 2^64.
pub(crate) fn merged(ranges: &[ByteRange]) -> impl Iterator<Item = ByteRange> {
    let runs = ranges.chunk_by(|before, after| before.offset + before.len == after.offset);
    let run = |run: &[ByteRange]| {
        let len = run.iter().map(|range| range.len).sum();
        run.first().map(|first| ByteRange { offset: first.offset, len })
    };
    runs.filter_map(run).filter(|range| range.len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    #[test]
    fn a_range_lies_within_an_object_or_names_itself_and_the_size() {
        for inside in [range(0, 0), range(0, 10), range(9, 1), range(10, 0)] {
            assert!(inside.check("get", 10).is_ok(), "{inside}");
        }
        for beyond in [range(0, 11), range(10, 1), range(11, 0), range(u64::MAX, 2), range(2, u64::MAX)] {
            let error = beyond.check("get", 10).unwrap_err();
            assert_eq!((error.code, error.is_unknown()), (Code::InvalidParams, false));
            let numbers = format!("{} bytes at offset {}", beyond.len, beyond.offset);
            assert!(error.why.contains(&numbers) && error.why.contains("object of 10 bytes"), "{error}");
        }
    }

    #[test]
    fn ranges_that_follow_each_other_are_one_read_and_empty_ones_none() {
        let ranges = [range(0, 4), range(4, 4), range(8, 0), range(0, 2), range(2, 1), range(9, 1)];
        let merged: Vec<_> = merged(&ranges).collect();
        assert_eq!(merged, [range(0, 8), range(0, 3), range(9, 1)]);
    }
}
