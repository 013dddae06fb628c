//! The log as packs on a disk: appending, cutting, purging and reading.
//!
//! Each is a sequence of single writes of which every prefix leaves a log without a hole. The disk is synced at least
//! once in [`LogDisk::sync_every`] bytes, for the reason given there.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use mc_index::bound;

use super::busy::BusySince;
use super::pace::SyncPace;
use super::{LogDisk, LogView, Mark};
use crate::record::entry;
use crate::record::pack::{self, Assembler, LogValue, LogValueError, ValueKey};
use crate::types::Entry;

/// Number of values that a purge deletes at a time. It takes a few milliseconds, for which an append may have to wait.
const PURGE_SLICE: usize = 256;

/// The packs, as their writer changes them.
pub(crate) struct Packs {
    disk: Box<dyn LogDisk>,
    view: Arc<dyn LogView>,
    pace: Arc<SyncPace>,
    busy: BusySince,
    /// Bytes written since the last sync.
    unsynced: u64,
}

impl Packs {
    pub(crate) fn new(disk: Box<dyn LogDisk>, pace: Arc<SyncPace>, busy: BusySince) -> Self {
        let view = disk.view();
        Self { disk, view, pace, busy, unsynced: 0 }
    }

    /// Sets a key, and syncs if that is due.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.disk.put(key, value)?;
        self.wrote(key.len() + value.len())
    }

    /// Removes a key, and syncs if that is due. It counts as much as a large value, because the disk may write the
    /// values beside it again.
    fn delete(&mut self, key: &[u8]) -> io::Result<()> {
        self.disk.delete(key)?;
        self.wrote(self.disk.value_cap())
    }

    fn wrote(&mut self, bytes: usize) -> io::Result<()> {
        self.unsynced += bytes as u64;
        if self.unsynced >= self.disk.sync_every() {
            self.pace.begin();
            self.flush()?;
            self.sync()?;
            self.pace.end();
        }
        Ok(())
    }

    /// Hands all writes to the kernel.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.disk.flush()
    }

    /// Makes all flushed writes survive the loss of power.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.disk.sync()?;
        self.busy.answered();
        self.unsynced = 0;
        Ok(())
    }

    pub(crate) fn write_mark(&mut self, mark: Mark) -> io::Result<()> {
        self.disk.write_mark(mark)
    }

    pub(crate) fn mark(&self) -> Mark {
        self.disk.mark()
    }

    pub(crate) fn place(&self) -> String {
        self.disk.place()
    }

    /// Writes entries that follow what is there. Returns the bytes written.
    pub(crate) fn append(&mut self, entries: &[&Entry]) -> io::Result<u64> {
        let cap = self.disk.value_cap();
        pack::encode(entries, cap, |key, value| self.put(key, value))
    }

    /// Removes all entries from index `from` on: whole values from the end backward, then the pack that holds the
    /// boundary is rewritten in one write.
    pub(crate) fn truncate(&mut self, from: u64) -> io::Result<()> {
        let mut keys = Vec::new();
        self.view.scan(&ValueKey::pack(from), &mut |key, _| match ValueKey::index_of(key) {
            Some(_) => {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        })?;
        for key in keys.iter().rev() {
            self.delete(key)?;
        }
        let Some(last) = from.checked_sub(1) else { return Ok(()) };
        let Some((key, value)) = self.view.floor(&ValueKey::last(last))? else { return Ok(()) };
        if ValueKey::index_of(&key).is_none() || pack::ends_by(&value, last) {
            return Ok(());
        }
        if let LogValue::Pack(entries) = pack::decode(&key, &value).map_err(damaged)? {
            let kept: Vec<&Entry> = entries.iter().filter(|entry| entry.log_id.index < from).collect();
            // One pack, whatever the disk's limit is now: it has the key of the pack that it replaces, and is smaller.
            // Where an earlier build made larger packs, several packs would need several writes.
            pack::encode(&kept, usize::MAX, |key, value| self.put(key, value))?;
        }
        Ok(())
    }

    /// Deletes a slice of the values whose entries all lie at or below `upto`, from the front; a pack that holds the
    /// boundary stays. Says whether there may be more.
    pub(crate) fn purge_slice(&mut self, upto: u64) -> io::Result<bool> {
        let mut keys = Vec::new();
        self.view.scan(&ValueKey::pack(0), &mut |key, value| {
            if keys.len() == bound(PURGE_SLICE, 2)
                || ValueKey::index_of(key).is_none()
                || !pack::ends_by(value, upto)
            {
                return ControlFlow::Break(());
            }
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        for key in &keys {
            self.delete(key)?;
        }
        Ok(keys.len() == bound(PURGE_SLICE, 2))
    }

    pub(crate) fn view(&self) -> Arc<dyn LogView> {
        Arc::clone(&self.view)
    }
}

/// Reads the entries from index `from` up to, not including, `to`, at most about `max_bytes` of them but at least one.
/// Begins later when the front has been purged; ends earlier when the log does.
pub(crate) fn read(view: &dyn LogView, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
    let start = match view.floor(&ValueKey::last(from))? {
        Some((key, _)) => ValueKey::index_of(&key).unwrap_or(from),
        None => from,
    };
    let mut assembler = Assembler::default();
    let mut entries: Vec<Entry> = Vec::new();
    let mut bytes = 0;
    let mut failed = None;
    view.scan(&ValueKey::pack(start), &mut |key, value| {
        let Some(index) = ValueKey::index_of(key).filter(|index| *index < to) else {
            return ControlFlow::Break(());
        };
        // A purge that was interrupted leaves the last parts of an entry.
        if ValueKey::is_part(key) && index < from {
            return ControlFlow::Continue(());
        }
        let found = match pack::decode(key, value).and_then(|piece| assembler.feed(piece)) {
            Ok(found) => found,
            Err(error) => {
                failed = Some(damaged(error));
                return ControlFlow::Break(());
            }
        };
        for entry in found.into_iter().filter(|entry| (from..to).contains(&entry.log_id.index)) {
            bytes += entry::size_hint(&entry);
            if !entries.is_empty() && bytes > max_bytes {
                return ControlFlow::Break(());
            }
            if let Some(last) = entries.last()
                && last.log_id.index + 1 != entry.log_id.index
            {
                let what =
                    format!("entry {} is followed by {} in the log", last.log_id.index, entry.log_id.index);
                failed = Some(io::Error::new(io::ErrorKind::InvalidData, what));
                return ControlFlow::Break(());
            }
            entries.push(entry);
        }
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(entries), Err)
}

pub(super) fn damaged(error: LogValueError) -> io::Error {
    let what = match error {
        LogValueError::Damaged(what) => format!("a record of the Raft log is damaged: {what}"),
        LogValueError::Unreadable(error) => format!("a record of the Raft log can't be read: {error}"),
    };
    io::Error::new(io::ErrorKind::InvalidData, what)
}
