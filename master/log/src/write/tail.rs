//! The newest entries, in memory. They can be read as soon as they are appended, before they are durable. In steady
//! state, replication reads nothing else.

use std::collections::VecDeque;

use crate::record::entry;
use crate::types::{Entry, LogId};

/// Consecutive entries up to the log's last one.
#[derive(Debug)]
pub(crate) struct Tail {
    entries: VecDeque<Entry>,
    bytes: usize,
    cap: usize,
}

impl Tail {
    pub(crate) fn new(cap: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, cap }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.bytes += entry::size_hint(&entry);
        self.entries.push_back(entry);
    }

    /// Drops the oldest entries beyond the cap, if they are below `written`. The others can't be read from the disk
    /// yet.
    pub(crate) fn evict(&mut self, written: u64) {
        while self.bytes > self.cap && self.first().is_some_and(|first| first < written) {
            self.pop_front();
        }
    }

    pub(crate) fn truncate(&mut self, from: u64) {
        while let Some(entry) = self.entries.back().filter(|entry| entry.log_id.index >= from) {
            self.bytes -= entry::size_hint(entry);
            self.entries.pop_back();
        }
    }

    pub(crate) fn purge(&mut self, upto: u64) {
        while self.first().is_some_and(|first| first <= upto) {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry::size_hint(&entry);
        }
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index)
    }

    /// Returns the id of the entry at `index`, if it is in memory.
    pub(crate) fn id_at(&self, index: u64) -> Option<LogId> {
        let at = usize::try_from(index.checked_sub(self.first()?)?).ok()?;
        self.entries.get(at).map(|entry| entry.log_id)
    }

    /// Returns about `max_bytes` of the entries from `from` on, below `to`, and at least one. `from` must not lie
    /// before the first.
    pub(crate) fn read(&self, from: u64, to: u64, max_bytes: usize) -> Vec<Entry> {
        let Some(first) = self.first() else { return Vec::new() };
        let mut bytes = 0;
        let mut taken = Vec::new();
        for entry in self.entries.range(((from - first) as usize).min(self.entries.len())..) {
            bytes += entry::size_hint(entry);
            if entry.log_id.index >= to || (bytes > max_bytes && !taken.is_empty()) {
                break;
            }
            taken.push(entry.clone());
        }
        taken
    }
}
