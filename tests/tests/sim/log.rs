//! The Raft log of a simulated master: the real store and writer on a disk in memory that forgets what was not synced.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use mc_log::{LogDisk as _, LogOptions, LogStore, LogWriter, MemoryDisk, OpenError, OpenLog, Recovered};
use mc_tests::Seeded;
use parking_lot::Mutex;

use crate::written::{Entries, NotingDisk};

/// Largest value of a disk where bounds are small.
const SMALL_VALUE: usize = 150;

/// One machine's log. It outlives the processes that open it.
#[derive(Clone)]
pub(crate) struct SimLog(Arc<Mutex<Inner>>);

struct Inner {
    disk: MemoryDisk,
    /// Notes what is written.
    entries: Entries,
    rng: Seeded,
    /// Added to each sync, in ms.
    slow: u64,
    /// It reports errors until it is replaced.
    broken: bool,
    open: Option<Open>,
}

#[derive(Clone)]
struct Open {
    store: LogStore,
    writer: Arc<tokio::sync::Mutex<LogWriter>>,
}

impl fmt::Debug for SimLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimLog")
    }
}

impl SimLog {
    /// An empty log, whose entries are noted in `entries`.
    pub(crate) fn new(rng: Seeded, entries: Entries) -> Self {
        let usual = MemoryDisk::new();
        // Of small values: most entries are in parts.
        let disk = usual.with_value_cap(mc_index::bound(usual.value_cap(), SMALL_VALUE));
        Self(Arc::new(Mutex::new(Inner { disk, entries, rng, slow: 0, broken: false, open: None })))
    }

    /// The log as the running process has it.
    pub(crate) fn store(&self) -> Option<LogStore> {
        self.0.lock().open.as_ref().map(|open| open.store.clone())
    }

    pub(crate) fn set_slow(&self, slow: u64) {
        self.0.lock().slow = slow;
    }

    /// The disk as it is now.
    pub(crate) fn disk(&self) -> MemoryDisk {
        self.0.lock().disk.clone()
    }

    /// From now on the disk reports errors, on its next sync or after some more writes.
    pub(crate) fn fail(&self) {
        let mut inner = self.0.lock();
        inner.broken = true;
        let writes = inner.rng.below(6);
        inner.disk.set_faults(|faults| match writes {
            0..3 => faults.fail_sync = true,
            _ => faults.writes_left = Some(writes),
        });
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.0.lock().broken
    }

    /// The process is gone. What it had written is there and may yet be lost; after an error nothing of it is certain.
    pub(crate) fn process_died(&self) {
        let mut inner = self.0.lock();
        inner.open = None;
        if std::mem::take(&mut inner.broken) {
            inner.lose_unsynced();
        }
    }

    /// The power is gone. What the writer was about to write is on the disk in part, in the order of the writes. True
    /// when some of it is not.
    pub(crate) fn lost_power(&self) -> bool {
        let mut inner = self.0.lock();
        if let Some(open) = inner.open.take() {
            inner.disk.set_faults(|faults| faults.fail_sync = true);
            if let Ok(mut writer) = open.writer.try_lock() {
                writer.step();
            }
        }
        inner.broken = false;
        inner.lose_unsynced()
    }

    /// How long the next sync takes.
    fn sync_time(&self) -> Duration {
        let mut inner = self.0.lock();
        let usual = if inner.rng.below(100) == 0 { inner.rng.within(5..80) } else { inner.rng.below(3) };
        Duration::from_millis(usual + inner.slow)
    }
}

impl Inner {
    /// Of what was not synced a part is kept, in the order of the writes. True when some of it is lost.
    fn lose_unsynced(&mut self) -> bool {
        let unsynced = self.disk.unsynced() as u64;
        let kept = match self.rng.below(3) {
            0 => 0,
            _ => self.rng.below(unsynced + 1),
        };
        self.disk = self.disk.crash_keeping(usize::try_from(kept).unwrap_or(usize::MAX));
        kept < unsynced
    }
}

/// The logs of a rescue: the one of the survivor, and the one that takes its place.
#[derive(Debug)]
pub(crate) struct RescueLogs {
    pub(crate) old: SimLog,
    pub(crate) new: SimLog,
}

impl OpenLog for RescueLogs {
    fn open(
        &self,
        dir: &Path,
        options: LogOptions,
    ) -> BoxFuture<'static, Result<(LogStore, Recovered), OpenError>> {
        let old = dir.parent().is_some_and(|parent| parent.join("identity").exists());
        if !old {
            // It is moved as a real one is.
            std::fs::create_dir_all(dir).expect("folders in memory can be made");
        }
        if old { &self.old } else { &self.new }.open(dir, options)
    }
}

impl OpenLog for SimLog {
    fn open(
        &self,
        _: &Path,
        options: LogOptions,
    ) -> BoxFuture<'static, Result<(LogStore, Recovered), OpenError>> {
        let this = self.clone();
        async move {
            let disk = this.disk();
            // As the real one does: what a killed process had written is synced before anything is read.
            let failed = |source| OpenError::Io { place: disk.place(), attempt: "sync it", source };
            disk.clone().sync().map_err(failed)?;
            let entries = this.0.lock().entries.clone();
            let unreadable = |source| OpenError::Io { place: disk.place(), attempt: "read it", source };
            let noting = NotingDisk::new(disk.clone(), entries).map_err(unreadable)?;
            let (store, writer, recovered) = LogStore::open_inline(Box::new(noting), &options)?;
            let writer = Arc::new(tokio::sync::Mutex::new(writer));
            this.0.lock().open = Some(Open { store: store.clone(), writer: writer.clone() });
            tokio::spawn(async move {
                let mut writer = writer.lock().await;
                while writer.ready().await {
                    tokio::time::sleep(this.sync_time()).await;
                    writer.step();
                }
                writer.finish();
            });
            Ok((store, recovered))
        }
        .boxed()
    }
}
