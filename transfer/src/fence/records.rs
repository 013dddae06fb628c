use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

/// Maximum number of records in a chunk: few enough that an insert into the middle moves little.
const CHUNK: usize = 128;
/// Maximum number of records in two neighbouring chunks that are merged, which leaves room for the next inserts.
const MERGED: usize = CHUNK / 4 * 3;
/// Number of records by which a chunk's capacity grows and shrinks, so that little of it is unused.
const STEP: usize = 16;
/// Bytes of a chunk besides its records: its entry in the tree, at the tree's lowest fill.
const CHUNK_BYTES: usize = 96;

/// The log index that owns bytes, and how far it has written them. In one word, because millions are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u64);

impl Owner {
    const SEALED: u64 = 1 << 63;
    const LANDED: u64 = 1 << 62;

    /// An owner that may write, and has not. An index of 2^62 takes a billion terms (`mc_index::allocation_order`); a larger one
    /// counts as the largest.
    pub(super) fn open(index: u64) -> Self {
        Self(index.min(Self::LANDED - 1))
    }

    /// An owner whose bytes are there, and that may write them again.
    pub(super) fn landed(index: u64) -> Self {
        Self(Self::open(index).0 | Self::LANDED)
    }

    /// An owner that has written its last byte.
    pub(super) fn sealed(index: u64) -> Self {
        Self(Self::landed(index).0 | Self::SEALED)
    }

    pub(super) fn index(self) -> u64 {
        self.0 & !(Self::SEALED | Self::LANDED)
    }

    pub(super) fn has_landed(self) -> bool {
        self.0 & Self::LANDED != 0
    }

    pub(super) fn is_sealed(self) -> bool {
        self.0 & Self::SEALED != 0
    }
}

/// A range of bytes and its owner. Packed: millions of these are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(super) struct Record {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) owner: Owner,
    /// Generation in which it was last written: see `Generations`.
    pub(super) generation: u32,
}

impl Record {
    /// Whether `next` begins where this one ends and has the same owner.
    fn is_continued_by(self, next: Self) -> bool {
        let (own, other) = (self.owner, next.owner);
        self.end == next.start && own == other
    }
}

/// Records that don't overlap, in the order of their bytes, as sorted chunks in a tree. They take 28 bytes a record
/// where chunks are full, and at most 64.
pub(super) struct Records {
    /// Chunks by a lower bound of the starts of their records. No chunk is empty.
    chunks: BTreeMap<u64, Vec<Record>>,
    /// Number of records of each generation; no count is 0.
    counts: BTreeMap<u32, usize>,
    len: usize,
    /// Capacity of all chunks together, in records.
    slots: usize,
    /// Key at which the next sweep begins.
    cursor: u64,
}

impl Records {
    pub(super) fn new() -> Self {
        Self { chunks: BTreeMap::new(), counts: BTreeMap::new(), len: 0, slots: 0, cursor: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory that the records take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.slots * size_of::<Record>() + self.chunks.len() * CHUNK_BYTES
    }

    /// Returns the oldest generation that has a record.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.counts.first_key_value().map(|(generation, _)| *generation)
    }

    /// Returns the records that overlap a range, in order.
    pub(super) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = Record> {
        let range = range.clone();
        let before = self.before(range.start).filter(|record| record.end > range.start);
        let inside = self.chunks.range(self.key_at(range.start)..range.end.max(range.start)).flat_map(
            move |(_, chunk)| {
                let from = chunk.partition_point(|record| record.start < range.start);
                let to = chunk.partition_point(|record| record.start < range.end);
                chunk[from..to].iter().copied()
            },
        );
        before.into_iter().chain(inside)
    }

    /// Clears a range: drops the records inside it, and cuts those that lie partly in it.
    pub(super) fn cut_out(&mut self, range: &Range<u64>) {
        let mut rest = None;
        if let Some(record) = self.before(range.start).filter(|record| record.end > range.start) {
            rest = Some(record).filter(|record| record.end > range.end);
            self.change(record.start, |record| record.end = range.start);
        }
        let keys = self.chunks.range(self.key_at(range.start)..range.end).map(|(key, _)| *key);
        let keys: SmallVec<[u64; 4]> = keys.collect();
        for key in &keys {
            let Some(chunk) = self.chunks.get_mut(key) else { continue };
            let from = chunk.partition_point(|record| record.start < range.start);
            let to = chunk.partition_point(|record| record.start < range.end);
            for record in chunk.drain(from..to) {
                rest = Some(record).filter(|record| record.end > range.end);
                uncount(&mut self.counts, record.generation);
                self.len -= 1;
            }
        }
        // Only now: it merges chunks.
        keys.into_iter().for_each(|key| self.settle(key));
        if let Some(rest) = rest {
            self.insert(Record { start: range.end, ..rest });
        }
    }

    /// Adds a record that overlaps no other, and merges it with its neighbours of the same owner. A batch of puts has
    /// one index, and mostly lies in one piece. A merged record is as old as its youngest part.
    pub(super) fn insert(&mut self, record: Record) {
        let mut key = self.key_at(record.start);
        let chunk = self.chunks.entry(key).or_default();
        let before = chunk.capacity();
        let mut at = chunk.partition_point(|other| other.start < record.start);
        // Neighbours that are merged into the record, and the result.
        let (mut from, mut to, mut whole) = (at, at, record);
        if let Some(left) = at.checked_sub(1).and_then(|left| chunk.get(left)).copied()
            && left.is_continued_by(whole)
        {
            whole = Record { start: left.start, generation: left.generation.max(whole.generation), ..whole };
            from = at - 1;
        }
        if let Some(right) = chunk.get(at).copied()
            && whole.is_continued_by(right)
        {
            whole = Record { end: right.end, generation: right.generation.max(whole.generation), ..whole };
            to = at + 1;
        }
        *self.counts.entry(whole.generation).or_default() += 1;
        if from < to {
            chunk[from..to].iter().for_each(|swallowed| uncount(&mut self.counts, swallowed.generation));
            chunk[from] = whole;
            chunk.drain(from + 1..to);
            if to - from == 2 {
                self.len -= 1;
                self.settle(key);
            }
            return;
        }
        self.len += 1;
        if chunk.len() == CHUNK {
            // At the very end, begin a chunk instead of halving this one: ranges written in order fill each.
            let middle = if at == CHUNK { CHUNK } else { CHUNK / 2 };
            let upper = chunk.split_off(middle);
            fit(chunk);
            let upper_key = upper.first().map_or(record.start, |first| first.start);
            self.slots = self.slots - before + chunk.capacity() + upper.capacity();
            self.chunks.insert(upper_key, upper);
            if at > middle || at == CHUNK {
                (key, at) = (upper_key, at - middle);
            }
        }
        let chunk = self.chunks.entry(key).or_default();
        let before = chunk.capacity();
        if chunk.len() == before {
            chunk.reserve_exact(STEP);
        }
        chunk.insert(at, whole);
        self.slots = self.slots - before + chunk.capacity();
    }

    /// Sets the generation of the record that begins at `start`.
    pub(super) fn renew(&mut self, start: u64, generation: u32) {
        let mut old = generation;
        self.change(start, |record| old = std::mem::replace(&mut record.generation, generation));
        if old != generation {
            uncount(&mut self.counts, old);
            *self.counts.entry(generation).or_default() += 1;
        }
    }

    /// Drops the records of generations before `live` from the next few chunks, and passes each to `dropped`. Each
    /// sweep continues where the last one ended, and begins again after the last chunk.
    pub(super) fn sweep(&mut self, live: u32, chunks: usize, mut dropped: impl FnMut(Record)) {
        for _ in 0..chunks {
            if self.oldest().is_none_or(|oldest| oldest >= live) {
                return;
            }
            let next = self.chunks.range(self.cursor..).next().or_else(|| self.chunks.first_key_value());
            let Some((&key, _)) = next else { return };
            self.cursor = key.saturating_add(1);
            let Some(chunk) = self.chunks.get_mut(&key) else { return };
            let before = chunk.len();
            chunk.retain(|record| {
                let keep = record.generation >= live;
                if !keep {
                    uncount(&mut self.counts, record.generation);
                    dropped(*record);
                }
                keep
            });
            let gone = before - chunk.len();
            self.len -= gone;
            if gone > 0 {
                self.settle(key);
            }
        }
    }

    /// Returns the last record that begins before `start`.
    fn before(&self, start: u64) -> Option<Record> {
        self.chunks.range(..=start).rev().find_map(|(_, chunk)| {
            let after = chunk.partition_point(|record| record.start < start);
            after.checked_sub(1).and_then(|at| chunk.get(at)).copied()
        })
    }

    /// Returns the key of the chunk for a record that begins at `start`.
    fn key_at(&self, start: u64) -> u64 {
        self.chunks.range(..=start).next_back().map_or(0, |(key, _)| *key)
    }

    fn change(&mut self, start: u64, change: impl FnOnce(&mut Record)) {
        let key = self.key_at(start);
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        let at = chunk.partition_point(|record| record.start < start);
        if let Some(record) = chunk.get_mut(at).filter(|record| record.start == start) {
            change(record);
        }
    }

    /// Merges a chunk that has lost records with its neighbours if they fit, and frees spare memory.
    fn settle(&mut self, key: u64) {
        let next = self.chunks.range(key.saturating_add(1)..).next().map(|(next, _)| *next);
        let before = self.chunks.range(..key).next_back().map(|(before, _)| *before);
        if let Some(next) = next {
            self.merge(key, next);
        }
        if let Some(before) = before {
            self.merge(before, key);
        }
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        self.slots -= chunk.capacity();
        if chunk.is_empty() {
            self.chunks.remove(&key);
            return;
        }
        fit(chunk);
        self.slots += chunk.capacity();
    }

    fn merge(&mut self, lower: u64, upper: u64) {
        let len = |key| self.chunks.get(&key).map_or(CHUNK, Vec::len);
        if len(lower) + len(upper) > MERGED {
            return;
        }
        let Some(upper) = self.chunks.remove(&upper) else { return };
        let Some(chunk) = self.chunks.get_mut(&lower) else { return };
        self.slots -= chunk.capacity() + upper.capacity();
        chunk.reserve_exact(upper.len());
        chunk.extend(upper);
        fit(chunk);
        self.slots += chunk.capacity();
    }
}

/// Frees the spare memory that the chunk's next inserts don't need.
fn fit(chunk: &mut Vec<Record>) {
    if chunk.capacity() - chunk.len() >= 2 * STEP {
        chunk.shrink_to(chunk.len().next_multiple_of(STEP));
    }
}

fn uncount(counts: &mut BTreeMap<u32, usize>, generation: u32) {
    if let Some(count) = counts.get_mut(&generation) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put { start: u64, len: u64 },
        Run { start: u64, count: u64 },
        Renew { start: u64 },
        Sweep { back: u32, chunks: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..30_000u64, 1..90u64).prop_map(|(start, len)| Step::Put { start, len }),
            1 => (0..30_000u64, 1_000..20_000u64).prop_map(|(start, len)| Step::Put { start, len }),
            2 => (0..30_000u64, 1..400u64).prop_map(|(start, count)| Step::Run { start, count }),
            2 => (0..30_000u64).prop_map(|start| Step::Renew { start }),
            2 => (0..60u32, 1..6usize).prop_map(|(back, chunks)| Step::Sweep { back, chunks }),
        ]
    }

    impl Records {
        fn all(&self) -> Vec<Record> {
            self.chunks.values().flatten().copied().collect()
        }

        fn put(&mut self, record: Record) {
            self.cut_out(&(record.start..record.end));
            self.insert(record);
        }

        fn check(&self) {
            let all = self.all();
            assert!(all.iter().all(|record| record.start < record.end));
            assert!(all.is_sorted_by(|a, b| a.end <= b.start), "in order, and apart");
            assert_eq!(self.len, all.len());
            for (at, (key, chunk)) in self.chunks.iter().enumerate() {
                let next = self.chunks.keys().nth(at + 1).copied().unwrap_or(u64::MAX);
                assert!(!chunk.is_empty() && chunk.len() <= CHUNK);
                assert!(chunk.iter().all(|record| (*key..next).contains(&{ record.start })));
            }
            assert_eq!(self.slots, self.chunks.values().map(Vec::capacity).sum::<usize>());
            let mut counts = BTreeMap::new();
            all.iter().for_each(|record| *counts.entry(record.generation).or_default() += 1);
            assert_eq!(self.counts, counts);
        }
    }

    /// Index and generation of each byte.
    type Model = BTreeMap<u64, (u64, u32)>;

    fn is_as(records: &Records, model: &Model) -> bool {
        let bytes = |record: Record| (record.start..record.end).map(move |at| (at, record.owner.index()));
        let mut model_bytes = model.iter().map(|(at, (index, _))| (*at, *index));
        records.all().into_iter().flat_map(bytes).all(|byte| model_bytes.next() == Some(byte))
            && model_bytes.next().is_none()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn records_hold_what_was_put_last_into_each_byte(steps in vec(step(), 1..200)) {
            let (mut records, mut model) = (Records::new(), Model::new());
            for (generation, step) in (0..).zip(steps) {
                let mut put = |start: u64, end, index| {
                    records.put(Record { start, end, owner: Owner::open(index), generation });
                    model.extend((start..end).map(|at| (at, (index, generation))));
                };
                match step {
                    Step::Put { start, len } => put(start, start + len, u64::from(generation % 7)),
                    Step::Run { start, count } => {
                        (0..count).for_each(|nth| put(start + nth * 9, start + nth * 9 + 8, nth));
                    }
                    Step::Renew { start } => {
                        let found = records.overlapping(&(start..start + 1)).next();
                        if let Some(record) = found {
                            records.renew(record.start, generation);
                            for at in record.start..record.end {
                                model.get_mut(&at).unwrap().1 = generation;
                            }
                        }
                    }
                    Step::Sweep { back, chunks } => {
                        let live = u32::saturating_sub(generation, back);
                        records.sweep(live, chunks, |gone| {
                            assert!(gone.generation < live);
                            for at in gone.start..gone.end {
                                let (_, generation) = model.remove(&at).unwrap();
                                assert!(generation < live, "forgotten too soon");
                            }
                        });
                    }
                }
                records.check();
            }
            prop_assert!(is_as(&records, &model));
            for range in [0..1, 500..700, 5_000..25_000, 29_999..40_000] {
                let found: Vec<Record> = records.overlapping(&range).collect();
                let expected = records.all().into_iter().filter(|record| record.start < range.end && range.start < record.end);
                prop_assert_eq!(found, expected.collect::<Vec<_>>());
            }
            // Enough rounds that in the end nothing is left.
            records.sweep(u32::MAX, 10_000, |_| {});
            prop_assert_eq!((records.len(), records.slots, records.chunks.len()), (0, 0, 0));
        }
    }

    /// Each record takes at most 64 bytes once there are some, in whatever order they come and go.
    #[test]
    fn a_record_takes_at_most_64_bytes() {
        let scattered = |i: u64| i * 7_919 % 100_003 * 16;
        type Place = fn(u64) -> u64;
        let orders: [(&str, Place); 3] =
            [("in order", |i| i * 16), ("backwards", |i| (200_000 - i) * 16), ("scattered", scattered)];
        for (order, place) in orders {
            let mut records = Records::new();
            let put = |records: &mut Records, i: u64| {
                let start = place(i);
                records.put(Record { start, end: start + 8, owner: Owner::open(i), generation: i as u32 });
                assert!(records.len() < 1_000 || records.bytes() <= 64 * records.len(), "{order}: {i}");
            };
            (0..100_000).for_each(|i| put(&mut records, i));
            println!("{order}: {:.1} bytes a record", records.bytes() as f64 / records.len() as f64);
            // All but the latest records go while new ones come.
            for i in 100_000..200_000 {
                put(&mut records, i);
                records.sweep(i as u32 - 5_000, 1, |_| {});
            }
            println!("{order}, kept for a while: {:.1}", records.bytes() as f64 / records.len() as f64);
        }
    }
}
