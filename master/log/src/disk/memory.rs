//! A disk in memory for tests and simulation. It forgets writes that were not synced, and fails on demand.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::{KeyValue, LogDisk, LogView, Mark, Visit};

/// A [`LogDisk`] in memory. Clones are handles to the same disk, so a test keeps one while the log owns another.
#[derive(Clone)]
pub struct MemoryDisk {
    shared: Arc<MemoryInner>,
    value_cap: usize,
    sync_every: u64,
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self { shared: Arc::default(), value_cap: 7 << 10, sync_every: u64::MAX }
    }
}

#[derive(Default)]
struct MemoryInner {
    state: Mutex<MemoryState>,
    changed: Condvar,
}

type Values = BTreeMap<Vec<u8>, Bytes>;

#[derive(Default)]
struct MemoryState {
    current: Values,
    synced: Values,
    unsynced: Vec<DiskWrite>,
    mark: Mark,
    syncs: u64,
    faults: Faults,
}

/// Faults of a [`MemoryDisk`], and when they strike.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Number of writes after which every write fails, as on a full disk.
    pub writes_left: Option<u64>,
    /// Whether every sync fails.
    pub fail_sync: bool,
    /// Every write of the mark fails.
    pub fail_mark: bool,
    /// Duration of each sync. It blocks the thread, so it does not suit a simulated clock.
    pub slow_sync: Duration,
    /// Whether syncs wait until this is false again.
    pub hold_sync: bool,
}

#[derive(Clone)]
enum DiskWrite {
    Put(Vec<u8>, Bytes),
    Delete(Vec<u8>),
}

impl DiskWrite {
    fn apply(self, map: &mut Values) {
        match self {
            Self::Put(key, value) => drop(map.insert(key, value)),
            Self::Delete(key) => drop(map.remove(&key)),
        }
    }
}

impl MemoryDisk {
    /// Creates an empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the same disk with another maximum size of a value, as of another build.
    #[must_use]
    pub fn with_value_cap(&self, value_cap: usize) -> Self {
        Self { value_cap, ..self.clone() }
    }

    /// Returns the same disk with another number of bytes between two syncs.
    #[must_use]
    pub fn with_sync_every(&self, sync_every: u64) -> Self {
        Self { sync_every, ..self.clone() }
    }

    /// Returns the disk as a power failure now would leave it: with what was synced, and nothing else.
    #[must_use]
    pub fn crash(&self) -> Self {
        self.crash_keeping(0)
    }

    /// Like [`Self::crash`], but the first `kept` writes after the last sync have reached the disk, too.
    #[must_use]
    pub fn crash_keeping(&self, kept: usize) -> Self {
        let state = self.shared.state.lock();
        let mut map = state.synced.clone();
        for write in state.unsynced.iter().take(kept) {
            write.clone().apply(&mut map);
        }
        let after =
            MemoryState { current: map.clone(), synced: map, mark: state.mark, ..MemoryState::default() };
        let shared = Arc::new(MemoryInner { state: Mutex::new(after), changed: Condvar::new() });
        Self { shared, ..self.clone() }
    }

    /// Number of writes since the last sync.
    pub fn unsynced(&self) -> usize {
        self.shared.state.lock().unsynced.len()
    }

    /// Number of syncs that have begun.
    pub fn syncs(&self) -> u64 {
        self.shared.state.lock().syncs
    }

    /// Changes the faults.
    pub fn set_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.state.lock().faults);
        self.shared.changed.notify_all();
    }

    /// Blocks until `count` syncs have begun.
    pub fn wait_for_syncs(&self, count: u64) {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while(&mut state, |state| state.syncs < count);
    }

    /// Changes values in place, as a fault of the medium does.
    pub fn damage(&self, change: impl FnOnce(&mut BTreeMap<Vec<u8>, Bytes>)) {
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        change(&mut state.synced);
        state.current = state.synced.clone();
        for write in state.unsynced.clone() {
            write.apply(&mut state.current);
        }
    }

    fn write(&mut self, write: DiskWrite) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if let Some(left) = &mut state.faults.writes_left {
            *left = left.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        }
        write.clone().apply(&mut state.current);
        state.unsynced.push(write);
        Ok(())
    }
}

impl LogDisk for MemoryDisk {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.write(DiskWrite::Put(key.to_vec(), Bytes::copy_from_slice(value)))
    }

    fn delete(&mut self, key: &[u8]) -> io::Result<()> {
        self.write(DiskWrite::Delete(key.to_vec()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.syncs += 1;
        self.shared.changed.notify_all();
        self.shared.changed.wait_while(&mut state, |state| state.faults.hold_sync);
        if !state.faults.slow_sync.is_zero() {
            let pause = state.faults.slow_sync;
            parking_lot::MutexGuard::unlocked(&mut state, || std::thread::sleep(pause));
        }
        if state.faults.fail_sync {
            return Err(io::Error::other("the disk reports an error on sync"));
        }
        let state = &mut *state;
        for write in state.unsynced.drain(..) {
            write.apply(&mut state.synced);
        }
        Ok(())
    }

    fn write_mark(&mut self, mark: Mark) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if state.faults.fail_mark {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.mark = mark;
        Ok(())
    }

    fn mark(&self) -> Mark {
        self.shared.state.lock().mark
    }

    fn view(&self) -> Arc<dyn LogView> {
        Arc::new(self.clone())
    }

    fn value_cap(&self) -> usize {
        self.value_cap
    }

    fn sync_every(&self) -> u64 {
        self.sync_every
    }

    fn place(&self) -> String {
        "memory".to_owned()
    }
}

impl LogView for MemoryDisk {
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        Ok(self.shared.state.lock().current.get(key).cloned())
    }

    fn floor(&self, key: &[u8]) -> io::Result<Option<KeyValue>> {
        let state = self.shared.state.lock();
        let found = state.current.range(..=key.to_vec()).next_back();
        Ok(found.map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())))
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> io::Result<()> {
        let state = self.shared.state.lock();
        for (key, value) in state.current.range(from.to_vec()..) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
