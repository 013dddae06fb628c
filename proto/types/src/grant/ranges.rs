//! The ranges of a grant as it travels.
//!
//! Each field is the difference to that of the range before: an offset to the end of that one, anything else to the same field. The
//! ranges of a batch often follow each other in memory and come from one log entry, so most differences take a byte, and fewer
//! bytes have to be authenticated twice.

use super::GrantedRange;
use crate::SegmentNumber;

/// Bytes of most ranges.
pub(super) const USUAL_LEN: usize = 12;
/// Fewest bytes of a range: one for each field.
const LEN_MIN: usize = 4;
/// A range that is like the one before the first.
const NONE: GrantedRange = GrantedRange { segment: 0, offset: 0, len: 0, index: 0 };

/// Appends the number of ranges, and the ranges.
pub(super) fn put_all(out: &mut Vec<u8>, ranges: &[GrantedRange]) {
    put(out, ranges.len() as u64);
    let mut before = NONE;
    for range in ranges {
        put_difference(out, range.segment.into(), before.segment.into());
        put_difference(out, range.offset, before.offset.wrapping_add(before.len));
        put_difference(out, range.len, before.len);
        put_difference(out, range.index, before.index);
        before = *range;
    }
}

/// Takes the ranges; `None` if these are not exactly the bytes of some.
pub(super) fn take_all(mut from: &[u8]) -> Option<Vec<GrantedRange>> {
    let count = usize::try_from(take(&mut from)?).ok()?;
    // Checked before memory is allocated for them.
    if count > from.len() / LEN_MIN {
        return None;
    }
    let (mut ranges, mut before) = (Vec::with_capacity(count), NONE);
    for _ in 0..count {
        let segment = take_difference(&mut from, before.segment.into())?;
        let range = GrantedRange {
            segment: SegmentNumber::try_from(segment).ok()?,
            offset: take_difference(&mut from, before.offset.wrapping_add(before.len))?,
            len: take_difference(&mut from, before.len)?,
            index: take_difference(&mut from, before.index)?,
        };
        before = range;
        ranges.push(range);
    }
    from.is_empty().then_some(ranges)
}

/// Appends a number, seven bits a byte, the lowest first.
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number; `None` if there is none.
pub(super) fn take(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Appends `number - before`, with its sign in the lowest bit, so that small differences of either sign are short.
fn put_difference(out: &mut Vec<u8>, number: u64, before: u64) {
    let difference = number.wrapping_sub(before).cast_signed();
    put(out, (difference << 1 ^ difference >> 63).cast_unsigned());
}

fn take_difference(from: &mut &[u8], before: u64) -> Option<u64> {
    let difference = take(from)?;
    Some(before.wrapping_add(difference >> 1 ^ (difference & 1).wrapping_neg()))
}
