//! State shared by the log's handles and its writer: the state in memory, ahead of the disk, and the queue between
//! them.
//!
//! The order of the queue is the order of the state: a job is queued under the state's lock, so that what readers see
//! and what the disk will hold change in the same sequence.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::storage::IOFlushed;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::observe::LogStats;
use super::sizes::LogSizes;
use super::tail::Tail;
use super::vote_timing::VoteTiming;
use crate::disk::busy::BusySince;
use crate::disk::panics;
use crate::error::LogFailure;
use crate::types::{Entry, LogId, TypeConfig, Vote};

/// Job of the writer.
pub(crate) enum Job {
    Append {
        entries: Vec<Entry>,
        generation: u64,
        /// Bytes of its entries.
        bytes: u64,
        done: IOFlushed<TypeConfig>,
    },
    Vote {
        vote: Vote,
        done: oneshot::Sender<io::Result<()>>,
    },
    /// Remove entries from this index on.
    Truncate(u64),
    Purge(LogId),
}

/// Contents of a log when it is opened.
pub(crate) struct LogContents {
    /// The last entry that was purged.
    pub(crate) purged: Option<LogId>,
    /// The last entry, or the last purged one when none is left.
    pub(crate) last: Option<LogId>,
    /// The index after the last entry.
    pub(crate) next: u64,
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
    pub(crate) tail: Tail,
    pub(crate) sizes: LogSizes,
    /// Election timeout that was stored with the vote.
    pub(crate) election_max_ms: u64,
}

/// The log as it will be once all queued jobs are done.
pub(crate) struct QueuedLog {
    pub(crate) purged: Option<LogId>,
    pub(crate) last: Option<LogId>,
    /// The index of the first entry.
    pub(crate) first: u64,
    /// The index of the next entry.
    pub(crate) next: u64,
    pub(crate) tail: Tail,
    pub(crate) sizes: LogSizes,
    /// The vote that is durable.
    pub(crate) vote: Option<Vote>,
    /// The last entry known as committed. The writer notes it with its mark.
    pub(crate) committed: Option<LogId>,
    /// Number of times that entries were removed from the end. Reads and writes across such a removal are stale.
    pub(crate) generation: u64,
    /// Entries below this index can be read from the disk.
    pub(crate) written: u64,
    durable: u64,
    appended_bytes: u64,
    /// Bytes of the entries that are queued, or that the writer is writing.
    unwritten: u64,
    queue: VecDeque<(Instant, Job)>,
    failure: Option<LogFailure>,
    closed: bool,
}

/// The writer's queue, and the log as it will be once the queue is done; see the module.
pub(crate) struct WriteQueue {
    state: Mutex<QueuedLog>,
    /// Wakes a writer that is a thread.
    work: Condvar,
    /// Wakes a writer that is a task.
    work_async: Notify,
    failure: watch::Sender<Option<LogFailure>>,
    /// Since when the writer has waited for the disk.
    busy: BusySince,
    /// Directory of the log, for error messages.
    place: Arc<str>,
    pub(crate) vote_timing: Arc<VoteTiming>,
}

/// Interval between two checks that the disk still answers.
const LOOK: Duration = Duration::from_secs(1);

/// Marks the writer as waiting for the disk until this is dropped.
pub(crate) struct Busy<'a>(&'a WriteQueue);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.end();
    }
}

/// Reasons to wake the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    Jobs,
    Due,
    Closed,
}

impl WriteQueue {
    pub(crate) fn new(contents: LogContents, place: Arc<str>) -> Arc<Self> {
        let LogContents { purged, last, next, vote, committed, tail, sizes, election_max_ms } = contents;
        let state = QueuedLog {
            purged,
            last,
            first: purged.map_or(0, |purged| purged.index + 1),
            next,
            tail,
            sizes,
            vote,
            committed,
            generation: 0,
            written: next,
            durable: next,
            appended_bytes: 0,
            unwritten: 0,
            queue: VecDeque::new(),
            failure: None,
            closed: false,
        };
        let shared = Self {
            state: Mutex::new(state),
            work: Condvar::new(),
            work_async: Notify::new(),
            failure: watch::Sender::new(None),
            busy: BusySince::default(),
            place,
            vote_timing: Arc::new(VoteTiming::recorded(election_max_ms)),
        };
        Arc::new(shared)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, QueuedLog> {
        self.state.lock()
    }

    /// Changes the state and queues the job that will change the disk alike.
    pub(crate) fn submit(&self, change: impl FnOnce(&mut QueuedLog) -> io::Result<Job>) -> io::Result<()> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.to_io());
        }
        if state.closed {
            return Err(io::Error::other("the Raft log has been closed"));
        }
        let job = change(&mut state)?;
        state.queue.push_back((Instant::now(), job));
        drop(state);
        self.work.notify_one();
        self.work_async.notify_one();
        Ok(())
    }

    /// All jobs queued so far, and the committed position, if the log holds its entry once they are worked off.
    ///
    /// Both are taken under one lock. Read later, the position could name an entry whose append, and the truncation
    /// before it, came into the queue in between: the disk would hold another entry at that index.
    pub(crate) fn drain(&self) -> (VecDeque<(Instant, Job)>, Option<LogId>) {
        let mut state = self.state.lock();
        let committed = state.committed.filter(|committed| state.holds(committed));
        (std::mem::take(&mut state.queue), committed)
    }

    /// Blocks until there is something to do.
    pub(crate) fn wait(&self, due: Option<Instant>) -> Wake {
        let mut state = self.state.lock();
        loop {
            if let Some(wake) = state.wake(due) {
                return wake;
            }
            match due {
                None => self.work.wait(&mut state),
                Some(due) => {
                    self.work.wait_for(&mut state, due.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// Like [`Self::wait`], for a task.
    pub(crate) async fn wait_async(&self, due: Option<Instant>) -> Wake {
        loop {
            if let Some(wake) = self.state.lock().wake(due) {
                return wake;
            }
            match due {
                None => self.work_async.notified().await,
                Some(due) => drop(tokio::time::timeout_at(due, self.work_async.notified()).await),
            }
        }
    }

    /// Records that a batch is on the disk. `written` is (generation, index after the last entry) of its last append.
    pub(crate) fn batch_done(
        &self,
        written: Option<(u64, u64)>,
        vote: Option<Vote>,
        durable: Option<u64>,
        bytes: u64,
    ) {
        let mut state = self.state.lock();
        state.unwritten -= bytes;
        if let Some((generation, written)) = written
            && generation == state.generation
        {
            state.written = written;
            state.tail.evict(written);
        }
        state.vote = vote.or(state.vote);
        state.durable = durable.unwrap_or(state.durable);
    }

    pub(crate) fn fail(&self, failure: &LogFailure) {
        self.state.lock().failure = Some(failure.clone());
        self.failure.send_replace(Some(failure.clone()));
    }

    /// Returns the handle that tells since when the disk has been busy.
    pub(crate) fn busy_since(&self) -> BusySince {
        self.busy.clone()
    }

    /// Begins a use of the disk by the writer.
    pub(crate) fn busy(&self) -> Busy<'_> {
        self.busy.begin();
        Busy(self)
    }

    /// Resolves when the writer has failed, or has been at the disk for longer than `stuck_after`; never otherwise.
    ///
    /// The writer can't report the latter: a call of the database never returns when one of its own threads has ended
    /// in a panic, or the kernel does not answer. Unless this is reported, the master would stay a voter although no
    /// acknowledgement of its log ever comes.
    pub(crate) async fn failed(&self, stuck_after: Duration) -> LogFailure {
        let mut failure = self.failure.subscribe();
        loop {
            let found = tokio::time::timeout(LOOK.min(stuck_after), failure.wait_for(Option::is_some)).await;
            match found.map(|found| found.map(|failure| failure.clone())) {
                Ok(Ok(Some(failure))) => return failure,
                Ok(Ok(None) | Err(_)) => std::future::pending().await,
                Err(_) => {}
            }
            let since = self.busy.get();
            if self.stuck(stuck_after).is_none() {
                continue;
            }
            // A process that was stopped finds its clock far ahead, and a disk that has answered: only the same wait at
            // two looks counts.
            tokio::time::sleep(LOOK.min(stuck_after)).await;
            if since != self.busy.get() {
                continue;
            }
            if let Some(why) = self.stuck(stuck_after) {
                let (place, source) = (Arc::clone(&self.place), Arc::new(io::Error::other(why)));
                let failure = LogFailure { place, attempt: "make it durable", source };
                self.fail(&failure);
                return failure;
            }
        }
    }

    /// Returns the reason why the disk will not answer any more, if there is one.
    fn stuck(&self, stuck_after: Duration) -> Option<String> {
        let waited = self.busy.get()?.elapsed();
        match panics::on_threads_of_the_database() {
            // It may have been another log's, in a test: this one is stuck only if it waits.
            Some(why) if waited >= LOOK.min(stuck_after) => Some(format!(
                "a thread of the database panicked ({why}), and the database has been silent for {waited:.0?}"
            )),
            _ if waited >= stuck_after => Some(format!("the disk has not answered for {waited:.0?}")),
            _ => None,
        }
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_one();
        self.work_async.notify_one();
    }

    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.state.lock().unwritten
    }

    pub(crate) fn stats(&self) -> LogStats {
        let state = self.state.lock();
        LogStats {
            first: state.first,
            next: state.next,
            durable: state.durable,
            appended_bytes: state.appended_bytes,
            unpurged_bytes: state.sizes.since(0),
        }
    }
}

impl QueuedLog {
    fn wake(&self, due: Option<Instant>) -> Option<Wake> {
        if !self.queue.is_empty() {
            Some(Wake::Jobs)
        } else if self.closed {
            Some(Wake::Closed)
        } else {
            due.is_some_and(|due| due <= Instant::now()).then_some(Wake::Due)
        }
    }

    /// Takes entries that follow the last one, and returns their bytes. An empty log that was never purged may begin
    /// anywhere: Raft begins at 0, openraft's own test suite does not always.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> io::Result<u64> {
        let fresh = self.purged.is_none() && self.first == self.next;
        let next = entries.first().filter(|_| fresh).map_or(self.next, |first| first.log_id.index);
        for (want, entry) in (next..).zip(entries) {
            if entry.log_id.index != want {
                let what =
                    format!("entry {} can't follow entry {}", entry.log_id.index, want.wrapping_sub(1));
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        }
        if fresh {
            self.first = next;
        }
        let mut total = 0;
        for entry in entries {
            let bytes = crate::record::entry::size_hint(entry) as u64;
            total += bytes;
            self.sizes.push(entry.log_id.index, bytes);
            self.tail.push(entry.clone());
        }
        if let Some(entry) = entries.last() {
            self.last = Some(entry.log_id);
            self.next = entry.log_id.index + 1;
        }
        self.appended_bytes += total;
        self.unwritten += total;
        Ok(total)
    }

    /// Whether the entry is purged or in memory. False for older entries, which are on the disk only.
    fn holds(&self, id: &LogId) -> bool {
        self.purged.is_some_and(|purged| purged.index >= id.index) || self.tail.id_at(id.index) == Some(*id)
    }

    /// Keeps the entries up to `last` only.
    pub(crate) fn truncate(&mut self, last: Option<LogId>) -> u64 {
        let from = last.map_or(0, |last| last.index + 1).max(self.first);
        if from < self.next {
            self.next = from;
            self.last = last.max(self.purged);
            self.tail.truncate(from);
            self.sizes.truncate(from);
            self.written = self.written.min(from);
            self.generation += 1;
        }
        from
    }

    /// Forgets entries up to `upto`. Returns up to where they are gone, which only grows.
    pub(crate) fn purge(&mut self, upto: LogId) -> LogId {
        if let Some(purged) = self.purged.filter(|purged| purged.index >= upto.index) {
            return purged;
        }
        self.purged = Some(upto);
        self.first = upto.index + 1;
        self.tail.purge(upto.index);
        self.sizes.purge(upto.index);
        if self.next <= upto.index {
            // A snapshot from the leader covers more than the log: the log continues after the snapshot.
            self.next = upto.index + 1;
            self.last = Some(upto);
            self.written = self.next;
            self.generation += 1;
        }
        upto
    }
}
