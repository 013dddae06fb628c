use std::collections::BTreeMap;
use std::ops::Range;

use super::Supersede;

/// Reads under way. They may overlap each other.
pub(super) struct Reads<P> {
    /// By first byte, and by number.
    under_way: BTreeMap<(u64, u64), Read<P>>,
    /// Number of reads of each length.
    lengths: BTreeMap<u64, usize>,
    next: u64,
}

struct Read<P> {
    end: u64,
    /// Log index of the allocation whose bytes are read.
    index: u64,
    pass: P,
}

impl<P: Supersede> Reads<P> {
    pub(super) fn new() -> Self {
        Self { under_way: BTreeMap::new(), lengths: BTreeMap::new(), next: 0 }
    }

    /// Adds a read of bytes of `index`; returns its number and its pass.
    pub(super) fn begin(&mut self, range: Range<u64>, index: u64) -> (u64, P) {
        *self.lengths.entry(range.end.saturating_sub(range.start)).or_default() += 1;
        let (number, pass) = (self.next, P::default());
        self.next += 1;
        self.under_way.insert((range.start, number), Read { end: range.end, index, pass: pass.clone() });
        (number, pass)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Removes a read.
    pub(super) fn end(&mut self, range: &Range<u64>, number: u64) {
        self.under_way.remove(&(range.start, number));
        let len = range.end.saturating_sub(range.start);
        if let Some(count) = self.lengths.get_mut(&len) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&len);
            }
        }
    }

    /// Ends the reads of bytes of a lower index than `index` that overlap `range`, and passes each to `ended`.
    pub(super) fn supersede(&self, range: &Range<u64>, index: u64, mut ended: impl FnMut(Range<u64>, &P)) {
        if range.is_empty() {
            return;
        }
        let longest = self.lengths.last_key_value().map_or(0, |(len, _)| *len);
        let from = range.start.saturating_sub(longest);
        for (&(start, _), read) in self.under_way.range((from, 0)..(range.end, 0)) {
            if read.end > range.start && read.index < index {
                read.pass.supersede();
                ended(start..read.end, &read.pass);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fence::WritePass;

    proptest! {
        /// Reads come and go in any order, and a write ends exactly those that overlap it and have a lower index.
        #[test]
        fn a_write_ends_the_reads_of_older_bytes_that_it_overlaps(
            reads in prop::collection::vec((0..60_u64, 1..20_u64, 1..5_u64, any::<bool>()), 0..40),
            (start, len, index) in (0..60_u64, 0..20_u64, 1..5_u64),
        ) {
            let mut all = Reads::<WritePass>::new();
            let mut kept = Vec::new();
            for (start, len, index, ends) in reads {
                let (number, pass) = all.begin(start..start + len, index);
                if ends {
                    all.end(&(start..start + len), number);
                }
                kept.push((start, len, index, ends, pass));
            }
            let mut ended = 0;
            all.supersede(&(start..start + len), index, |_, _| ended += 1);
            for (of_read, read_len, of, ends, pass) in &kept {
                let overlaps = of_read.max(&start) < &(of_read + read_len).min(start + len);
                prop_assert_eq!(pass.hold().is_none(), overlaps && *of < index && !ends);
            }
            prop_assert_eq!(ended, kept.iter().filter(|(.., pass)| pass.hold().is_none()).count());
        }
    }
}
