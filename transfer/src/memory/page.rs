//! The page beside segments that outlive their process: a body that is changed as a whole, whenever the process dies, and two words
//! that change all the time.
//!
//! - Two slots hold a body each, with its number and a checksum. The intact one of the higher number counts. A change goes to the
//!   other slot, so a process that dies in it leaves the body of before.
//! - Behind them, the words: the highest order of a write that was admitted, and the latest cluster time. They are set in memory that is
//!   mapped from the file, so they are there after any end of the process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_durable::DirectoryLock;
use parking_lot::Mutex;

use super::mapping::{Mapping, Protection};
use super::read_buffer::ReadBuffer;
use crate::checksum::Checksum;

/// Bytes of a slot: room for a record of as many segments as a store may have.
const SLOT: u64 = 32 << 10;
/// Checksum of what follows, number, and length of the body.
const HEADER: usize = 24;
/// Places of the words.
const ORDER: u64 = 2 * SLOT;
const TIME: u64 = ORDER + 8;
/// Bytes of the file, at least.
pub(super) const PAGE_LEN: u64 = 2 * SLOT + 4096;

pub(crate) struct Page {
    mapping: Mapping,
    /// Number of the body that counts; 0 for none.
    number: Mutex<u64>,
    /// Dropped after the mapping.
    _lock: DirectoryLock,
}

impl Page {
    /// Maps the file of a page, which has [`PAGE_LEN`] or more, and returns the body in it, if there is one. Its directory stays locked while
    /// the page lives.
    pub(super) fn open(file: &File, lock: DirectoryLock) -> io::Result<(Self, Option<Vec<u8>>)> {
        let mapping = Mapping::new(file, file.metadata()?.len(), Protection::Write)?;
        mapping.withhold_from_children();
        let newest =
            [0, SLOT].into_iter().filter_map(|at| read_slot(&mapping, at)).max_by_key(|(number, _)| *number);
        let (number, body) = newest.map_or((0, None), |(number, body)| (number, Some(body)));
        Ok((Self { mapping, number: Mutex::new(number), _lock: lock }, body))
    }

    /// Replaces the body.
    ///
    /// # Panics
    /// When it does not fit.
    pub(super) fn write(&self, body: &[u8]) {
        let mut number = self.number.lock();
        let next = *number + 1;
        let mut slot = vec![0; 8];
        slot.extend(next.to_be_bytes());
        slot.extend((body.len() as u64).to_be_bytes());
        slot.extend(body);
        assert!(slot.len() as u64 <= SLOT, "a body of {} bytes", body.len());
        let checksum = Checksum::of(&slot[8..]).0;
        slot[..8].copy_from_slice(&checksum.to_be_bytes());
        self.mapping.write(next % 2 * SLOT, (&slot).into());
        *number = next;
    }

    /// Notes the order of a write that was admitted, before its first byte.
    pub(crate) fn note_order(&self, order: u64) {
        let highest = self.word(ORDER);
        // Most writes of a moment are of about the same order: a look leaves the word in the caches of all.
        if highest.load(Ordering::Relaxed) < order {
            highest.fetch_max(order, Ordering::Relaxed);
        }
    }

    /// Notes a cluster time, in ms.
    pub(super) fn note_time(&self, ms: u64) {
        self.word(TIME).fetch_max(ms, Ordering::Relaxed);
    }

    /// Returns the highest order of a write, and the latest cluster time.
    pub(super) fn words(&self) -> (u64, u64) {
        (self.word(ORDER).load(Ordering::Relaxed), self.word(TIME).load(Ordering::Relaxed))
    }

    /// Forgets both words.
    pub(super) fn clear_words(&self) {
        self.word(ORDER).store(0, Ordering::Relaxed);
        self.word(TIME).store(0, Ordering::Relaxed);
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(self.mapping.contains(at, 8) && at.is_multiple_of(8), "a word at {at}");
        // SAFETY: inside the mapping, which begins at a page, and only atomic words are used there.
        unsafe { &*self.mapping.at(at).cast::<AtomicU64>() }
    }
}

/// Returns the number and the body of a slot, if it is intact.
fn read_slot(mapping: &Mapping, at: u64) -> Option<(u64, Vec<u8>)> {
    let mut slot = vec![0; SLOT as usize];
    ReadBuffer::from(slot.as_mut_slice()).fill_from(mapping, at);
    let word = |at: usize| slot[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let len = usize::try_from(word(16)).ok().filter(|len| *len <= slot.len() - HEADER)?;
    let is_intact = word(8) > 0 && Checksum::of(&slot[8..HEADER + len]).0 == word(0);
    is_intact.then(|| (word(8), slot[HEADER..HEADER + len].to_vec()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use tempfile::TempDir;

    use super::*;

    /// The file of a page, and its directory.
    fn file() -> (File, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let file =
            File::options().read(true).write(true).create_new(true).open(dir.path().join("page")).unwrap();
        file.set_len(PAGE_LEN).unwrap();
        (file, dir)
    }

    fn open((file, dir): &(File, TempDir)) -> (Page, Option<Vec<u8>>) {
        Page::open(file, DirectoryLock::acquire(dir.path()).unwrap()).unwrap()
    }

    #[test]
    fn the_last_body_and_the_words_are_there_after_the_process() {
        let file = file();
        let (page, body) = open(&file);
        assert_eq!((body, page.words()), (None, (0, 0)));
        for body in ["first", "", "the last"] {
            page.write(body.as_bytes());
        }
        for (order, ms) in [(5, 1_000), (9, 998), (7, 999)] {
            page.note_order(order);
            page.note_time(ms);
        }
        drop(page);
        let (page, body) = open(&file);
        assert_eq!((body.as_deref(), page.words()), (Some(&b"the last"[..]), (9, 1_000)));
        page.clear_words();
        assert_eq!(page.words(), (0, 0));
    }

    /// Whatever part of the newer slot was written, and whatever it held, the body of before counts.
    #[test]
    fn a_process_that_died_in_a_change_leaves_the_body_of_before() {
        let file = file();
        let (page, _) = open(&file);
        for body in ["one", "two", "three"] {
            page.write(body.as_bytes());
        }
        drop(page);
        let mut newer = [0; HEADER + 5];
        file.0.read_exact_at(&mut newer, SLOT).unwrap();
        for at in 0..newer.len() {
            let mut torn = newer;
            torn[at] ^= 1;
            file.0.write_all_at(&torn, SLOT).unwrap();
            assert_eq!(open(&file).1.as_deref(), Some(&b"two"[..]), "a flip at {at}");
        }
        file.0.write_all_at(&newer, SLOT).unwrap();
        assert_eq!(open(&file).1.as_deref(), Some(&b"three"[..]));
    }
}
