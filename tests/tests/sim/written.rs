//! Entries that any log was ever given, noted as they are written. A master may purge an entry in the millisecond in which
//! it learns that it is committed, so nobody looks for entries in the logs themselves.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use mc_log::{Entry, LogDisk, LogId, LogView, Mark, MemoryDisk, WrittenEntries, entries_on, purged_from};
use parking_lot::Mutex;

/// An entry, and the one before it in the log that it was written to. A log has no other one there: two logs with the same
/// entry are the same up to it.
struct Written {
    entry: Entry,
    before: Option<LogId>,
}

/// Entries of all logs, committed or not. Clones are handles to the same ones.
#[derive(Clone, Default)]
pub(crate) struct Entries(Arc<Mutex<BTreeMap<LogId, Written>>>);

impl Entries {
    /// Returns the entries from index `from` up to `last`, in order. `before` is the one before them.
    ///
    /// # Errors
    /// An entry was written to no log, or follows another one than `before`.
    pub(crate) fn chain(&self, before: Option<LogId>, last: LogId) -> Result<Vec<Entry>, String> {
        let entries = self.0.lock();
        let (mut chain, mut next) = (Vec::new(), Some(last));
        while next != before {
            let Some(id) = next.filter(|id| before.is_none_or(|before| id.index > before.index)) else {
                return Err(format!("{last} is committed, which does not follow the committed {before:?}"));
            };
            let Some(Written { entry, before }) = entries.get(&id) else {
                return Err(format!("{last} is committed, and {id} before it was never written to a log"));
            };
            chain.push(entry.clone());
            next = *before;
        }
        chain.reverse();
        Ok(chain)
    }
}

/// Returns the last entry on a disk, or the last one that was purged.
pub(crate) fn last_on(disk: &MemoryDisk) -> io::Result<Option<LogId>> {
    let view = disk.view();
    let last = entries_on(&*view)?.last().map(|entry| entry.log_id);
    Ok(last.max(purged_from(&*view)?))
}

/// A log's disk, which notes the entries that are written to it.
pub(crate) struct NotingDisk {
    disk: MemoryDisk,
    values: WrittenEntries,
    /// The entries of this log.
    here: BTreeMap<u64, LogId>,
    all: Entries,
}

impl NotingDisk {
    /// Notes what is written to `disk` in `all`.
    pub(crate) fn new(disk: MemoryDisk, all: Entries) -> io::Result<Self> {
        let here =
            entries_on(&*disk.view())?.iter().map(|entry| (entry.log_id.index, entry.log_id)).collect();
        Ok(Self { disk, values: WrittenEntries::default(), here, all })
    }

    fn note(&mut self, entry: Entry) -> io::Result<()> {
        let id = entry.log_id;
        self.here.split_off(&id.index);
        // A snapshot takes the place of entries that a log did not have, or had from another leader.
        let purged = purged_from(&*self.disk.view())?.filter(|purged| purged.index + 1 == id.index);
        let before = purged.or_else(|| self.here.get(&id.index.checked_sub(1)?).copied());
        self.here.insert(id.index, id);
        self.all.0.lock().entry(id).or_insert(Written { entry, before });
        Ok(())
    }
}

impl LogDisk for NotingDisk {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.disk.put(key, value)?;
        for entry in self.values.take(key, value)? {
            self.note(entry)?;
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> io::Result<()> {
        self.disk.delete(key)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.disk.flush()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.sync()
    }

    fn write_mark(&mut self, mark: Mark) -> io::Result<()> {
        self.disk.write_mark(mark)
    }

    fn mark(&self) -> Mark {
        self.disk.mark()
    }

    fn view(&self) -> Arc<dyn LogView> {
        self.disk.view()
    }

    fn value_cap(&self) -> usize {
        self.disk.value_cap()
    }

    fn sync_every(&self) -> u64 {
        self.disk.sync_every()
    }

    fn place(&self) -> String {
        self.disk.place()
    }
}
