//! Reads a disk without opening its log, for tests that compare a master's answers with its disk.

use std::io;

use super::{LogView, packs};
use crate::record::format::RecordError;
use crate::record::hard_state;
use crate::record::pack::{self, Assembler, ValueKey};
use crate::types::{Entry, LogId, Vote};

/// Returns the vote on a disk.
pub fn vote_on(view: &dyn LogView) -> io::Result<Option<Vote>> {
    Ok(small(view, hard_state::VOTE, hard_state::decode_vote)?.map(|(vote, _)| vote))
}

/// Returns the last entry that was purged from a disk because a snapshot covers it.
pub fn purged_from(view: &dyn LogView) -> io::Result<Option<LogId>> {
    small(view, hard_state::PURGED, hard_state::decode_log_id)
}

/// Whether a disk holds the entry `id`, or has purged it.
pub fn is_on(view: &dyn LogView, id: LogId) -> io::Result<bool> {
    if purged_from(view)?.is_some_and(|purged| purged.index >= id.index) {
        return Ok(true);
    }
    let found = packs::read(view, id.index, id.index + 1, usize::MAX)?;
    Ok(found.first().is_some_and(|entry| entry.log_id == id))
}

/// Returns the entries on a disk that are not purged, in order.
pub fn entries_on(view: &dyn LogView) -> io::Result<Vec<Entry>> {
    let first = purged_from(view)?.map_or(0, |purged| purged.index + 1);
    packs::read(view, first, u64::MAX, usize::MAX)
}

/// Reads the entries out of the values that a log writes, in the order of the writes.
#[derive(Default)]
pub struct WrittenEntries(Assembler);

impl WrittenEntries {
    /// Takes a value, and returns the entries that it completes: none if it holds something else.
    pub fn take(&mut self, key: &[u8], value: &[u8]) -> io::Result<Vec<Entry>> {
        if ValueKey::index_of(key).is_none() {
            return Ok(Vec::new());
        }
        pack::decode(key, value).and_then(|piece| self.0.feed(piece)).map_err(packs::damaged)
    }
}

fn small<T>(
    view: &dyn LogView,
    key: &[u8],
    decode: fn(&[u8]) -> Result<T, RecordError>,
) -> io::Result<Option<T>> {
    let value = view.get(key)?.map(|value| decode(&value)).transpose();
    value.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
