use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_index::{Change, Command, ReadPolicy, Response, Security, State};
use mc_log::{LogId, StoredMembership};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use tokio::sync::watch;

use super::holds::Holds;

/// The index, and the last log entry that was applied to it. They change together.
#[derive(Clone, Debug)]
pub struct Applied {
    /// State of the index.
    pub state: State,
    /// Last entry that was applied.
    pub last_applied: Option<LogId>,
    /// Membership as of that entry.
    pub membership: StoredMembership,
}

/// This master's copy of the index, shared between Raft, which applies entries, and readers.
#[derive(Clone, Debug)]
pub struct SharedIndex(Arc<IndexInner>);

#[derive(Debug)]
struct IndexInner {
    applied: RwLock<Applied>,
    /// Whether the read policy is the lease. A copy outside the lock, because every call reads it and must not wait for
    /// the lock.
    by_lease: AtomicBool,
    /// Access settings. A copy outside the lock for the same reason, and for calls of the Raft port.
    security: watch::Sender<Security>,
    /// Changes that the follower has not taken yet.
    changes: Mutex<RecordedChanges>,
    holds: Holds,
}

/// Changes of the objects since the follower took them last.
#[derive(Debug, Default)]
struct RecordedChanges {
    followed: bool,
    changes: Vec<Change>,
    /// Number of keys in them.
    keys: usize,
    /// Whether changes were dropped, so that the follower must begin again.
    gap: bool,
}

/// Maximum number of keys in the changes that wait for the follower: 32 MiB.
const CHANGED_KEYS_MAX: usize = 4 << 20;

/// Changes are missing, so the follower must begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap;

impl RecordedChanges {
    fn add(&mut self, change: Change) {
        self.keys += change.len();
        if self.keys > CHANGED_KEYS_MAX {
            self.gap = true;
            self.changes = Vec::new();
        }
        if !self.gap {
            self.changes.push(change);
        }
    }
}

impl SharedIndex {
    pub(crate) fn new(applied: Applied) -> Self {
        let by_lease = AtomicBool::new(reads_by_lease(&applied));
        let security = watch::Sender::new(applied.state.security().clone());
        let (applied, changes) = (RwLock::new(applied), Mutex::default());
        Self(Arc::new(IndexInner { applied, by_lease, security, changes, holds: Holds::default() }))
    }

    /// Begins to record changes of the objects, and returns the index before the first of them. There is one follower:
    /// a second one takes the first one's place.
    #[must_use]
    pub fn follow(&self) -> State {
        // Entries are applied under the write lock, so none comes between the copy and the record.
        self.read(|applied| {
            *self.0.changes.lock() = RecordedChanges { followed: true, ..RecordedChanges::default() };
            applied.state.clone()
        })
    }

    /// Ends the record of changes.
    pub fn unfollow(&self) {
        *self.0.changes.lock() = RecordedChanges::default();
    }

    /// Takes the changes since the last call.
    ///
    /// # Errors
    /// [`Gap`] when the follower was too slow, or the index was replaced as a whole.
    pub fn take_changes(&self) -> Result<Vec<Change>, Gap> {
        let mut changes = self.0.changes.lock();
        if changes.gap || !changes.followed {
            return Err(Gap);
        }
        changes.keys = 0;
        Ok(std::mem::take(&mut changes.changes))
    }

    pub(crate) fn record(&self, command: &Command, response: &Response) {
        let mut changes = self.0.changes.lock();
        if changes.followed
            && !changes.gap
            && let Some(change) = Change::of(command, response)
        {
            changes.add(change);
        }
    }

    pub(crate) fn record_gap(&self) {
        self.0.changes.lock().gap = true;
    }

    /// Reads one consistent moment. Whether that moment is recent enough is for a lease or a read barrier to say.
    #[track_caller]
    pub fn read<R>(&self, read: impl FnOnce(&Applied) -> R) -> R {
        let applied = self.0.applied.read();
        self.0.holds.count(|| read(&applied))
    }

    /// Returns for each place in the code the most work of one hold since the last call.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn holds(&self) -> super::holds::WorkOfHolds {
        self.0.holds.take()
    }

    /// Replaces the index by another one, as a snapshot does.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn set_state(&self, state: State) {
        self.change(|applied| applied.state = state);
        self.record_gap();
    }

    /// The read policy as of the last entry that was applied.
    pub fn read_policy(&self) -> ReadPolicy {
        match self.0.by_lease.load(Ordering::Acquire) {
            true => ReadPolicy::Lease,
            false => ReadPolicy::ReadIndex,
        }
    }

    /// Access settings as of the last entry that was applied. What an entry changes is in force here before its proposer is
    /// answered.
    #[must_use]
    pub fn security(&self) -> watch::Receiver<Security> {
        self.0.security.subscribe()
    }

    /// Locks the index for a change. Waits for readers.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Applied> {
        self.0.applied.write()
    }

    /// Like [`Self::write`]; `None` while others hold the lock.
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, Applied>> {
        self.0.applied.try_write()
    }

    /// Changes the index. New access settings and a new read policy are in force before any reader can see the change.
    #[track_caller]
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Applied) -> R) -> R {
        self.change_locked(self.write(), change)
    }

    #[track_caller]
    pub(crate) fn change_locked<R>(
        &self,
        mut applied: RwLockWriteGuard<'_, Applied>,
        change: impl FnOnce(&mut Applied) -> R,
    ) -> R {
        let result = self.0.holds.count(|| change(&mut applied));
        self.0.by_lease.store(reads_by_lease(&applied), Ordering::Release);
        let security = applied.state.security();
        self.0.security.send_if_modified(|copy| {
            let is_new = copy.revision() != security.revision();
            if is_new {
                *copy = security.clone();
            }
            is_new
        });
        result
    }
}

fn reads_by_lease(applied: &Applied) -> bool {
    applied.state.settings().read_policy == ReadPolicy::Lease
}
