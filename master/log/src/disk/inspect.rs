//! Reads a disk without opening its log, for tests that compare a master's answers with its disk.

use std::io;

use super::{LogView, packs};
use crate::record::format::RecordError;
use crate::record::hard_state;
use crate::types::{LogId, Vote};

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

fn small<T>(
    view: &dyn LogView,
    key: &[u8],
    decode: fn(&[u8]) -> Result<T, RecordError>,
) -> io::Result<Option<T>> {
    let value = view.get(key)?.map(|value| decode(&value)).transpose();
    value.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
