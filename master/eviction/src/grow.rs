//! Collections that grow part by part.
//!
//! The order of eviction follows the index under its lock. With one table and one list, an entry took 770 ms to follow
//! while they grew to ten million objects; in parts it takes 26 ms (`stalls` of the examples prints it).

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;
use mc_index::count_work;

/// Number of parts of a table with more than a few items.
const PARTS: usize = 256;
/// Number of items from which a table is in parts. With all of them, an empty table would take 8 KiB, and there is one for
/// each tenant.
const SMALL: usize = 1024;
/// Number of items of a chunk.
const CHUNK: usize = 4096;

/// A hash table in parts, each of which grows by itself.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Parts of the table: none before the first insert, one while there are few items.
    parts: Vec<HashTable<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { parts: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Returns the part of a hash. A part's table goes by the lowest bits and by the highest seven.
    fn part(&self, hash: u64) -> usize {
        (hash >> 32) as usize % self.parts.len().max(1)
    }

    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        count_work(1);
        self.parts.get(self.part(hash))?.find(hash, is_it)
    }

    /// Removes an item and returns it.
    pub(crate) fn take(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        count_work(1);
        let part = self.part(hash);
        let entry = self.parts.get_mut(part)?.find_entry(hash, is_it).ok()?;
        Some(entry.remove().0)
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(HashTable::len).sum()
    }

    /// Inserts an item that is not in the table.
    pub(crate) fn insert(&mut self, hash: u64, item: T, hash_of: impl Fn(&T) -> u64) {
        match &mut self.parts[..] {
            [] => self.parts.push(HashTable::new()),
            [all] if all.len() >= SMALL => {
                let items = std::mem::take(all);
                self.parts.resize_with(PARTS, HashTable::new);
                for item in items {
                    self.insert_into_part(hash_of(&item), item, &hash_of);
                }
            }
            _ => {}
        }
        self.insert_into_part(hash, item, hash_of);
    }

    fn insert_into_part(&mut self, hash: u64, item: T, hash_of: impl Fn(&T) -> u64) {
        let part = self.part(hash);
        if let Some(part) = self.parts.get_mut(part) {
            part.insert_unique(hash, item, hash_of);
        }
    }
}

/// A list in chunks that do not move when it grows. It grows at the end and shrinks at the front.
#[derive(Debug)]
pub(crate) struct Chunks<T> {
    /// All but the last one are full.
    chunks: VecDeque<Vec<T>>,
    /// Items of the first chunk that were removed.
    removed: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), removed: 0 }
    }
}

impl<T> Chunks<T> {
    pub(crate) fn len(&self) -> usize {
        let last = self.chunks.back().map_or(0, Vec::len);
        (self.chunks.len().saturating_sub(1) * CHUNK + last).saturating_sub(self.removed)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        count_work(1);
        let at = at.checked_add(self.removed)?;
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        let at = at.checked_add(self.removed)?;
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }

    pub(crate) fn push(&mut self, item: T) {
        match self.chunks.back_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => last.push(item),
            None => self.chunks.push_back(vec![item]),
        }
    }

    /// Removes the first item. The others have other positions then.
    pub(crate) fn remove_first(&mut self) {
        if self.len() == 0 {
            return;
        }
        self.removed += 1;
        if self.removed == CHUNK {
            self.chunks.pop_front();
            self.removed = 0;
        }
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        let at = at + self.removed;
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

impl<T> IndexMut<usize> for Chunks<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        let at = at + self.removed;
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_grows_at_the_end_and_shrinks_at_the_front() {
        let (mut chunks, mut model) = (Chunks::default(), VecDeque::new());
        assert!(chunks.get(0).is_none());
        chunks.remove_first();
        for n in 0..5 * CHUNK {
            chunks.push(n);
            model.push_back(n);
            // It is empty at times, in the middle and at the end of a chunk.
            let removed = if n < 2 * CHUNK { 1 } else { usize::from(n % 3 > 0) };
            for _ in 0..removed {
                chunks.remove_first();
                model.pop_front();
            }
            assert_eq!(chunks.len(), model.len());
            assert_eq!((chunks.get(0), chunks.get(model.len())), (model.front(), None));
        }
        assert!((0..model.len()).all(|at| chunks[at] == model[at]));
        chunks[7] = 0;
        assert_eq!(chunks.get(7), Some(&0));
        assert_eq!(chunks.get_mut(8), model.get_mut(8));
    }

    #[test]
    fn a_table_finds_and_takes_what_was_inserted() {
        let mut table = Table::default();
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert!(table.find(hash(1), |_| true).is_none() && table.take(hash(1), |_| true).is_none());
        for n in 0..10_000 {
            table.insert(hash(n), n, |n| hash(*n));
            // Each tenant has tables, and most have a few items.
            assert!(n >= 1000 || table.parts.len() == 1);
        }
        assert_eq!(table.parts.len(), PARTS);
        for n in (0..10_000).step_by(2) {
            assert_eq!(table.take(hash(n), |it| *it == n), Some(n));
        }
        for n in 0..10_000 {
            assert_eq!(table.find(hash(n), |it| *it == n).copied(), (n % 2 == 1).then_some(n));
        }
    }
}
