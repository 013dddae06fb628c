//! The log's only writer. It takes all queued jobs, writes them in order, syncs once, and acknowledges them.
//!
//! Why what is acknowledged is durable. A callback is completed only in [`LogWriter::step`], after
//! [`BatchWriter::batch`] has returned from the sync that followed all writes of its batch; batches are worked off one
//! after the other; and the disk keeps a prefix of its writes. So at any instant the disk holds, after a crash,
//! everything acknowledged so far and of the rest a prefix in the order in which openraft asked for it, a vote before
//! the entries of its term included. `an_append_is_not_acknowledged_before_its_sync` and
//! `votes_and_entries_keep_their_order_through_a_crash_at_every_step` (master/log/tests/it/memory/writes.rs) fail when
//! either half is broken.
//!
//! An error is final: after a failed sync the kernel may have dropped the pages, so a second one that succeeds says
//! nothing. Every callback then and later gets the error, and [`WriteQueue::failed`] tells the process to exit.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::observe::BatchTimes;
use super::options::{LogOptions, LogSync};
use super::queue::{Job, Wake, WriteQueue};
use super::vote_timing::VoteTiming;
use crate::disk::Mark;
use crate::disk::packs::Packs;
use crate::disk::panics::caught;
use crate::error::LogFailure;
use crate::record::hard_state;
use crate::types::{Entry, LogId, Vote};

/// Duration of a write of the mark above which marks are written that many times less often, because batches wait for
/// them.
const NOTE_QUICK: Duration = Duration::from_millis(50);
/// Maximum factor by which marks are written less often. Entries after the mark can be lost without notice.
const LEAST_OFTEN: u128 = 20;

/// Processes the log's queue, on a thread of its own or, for simulation, step by step.
pub struct LogWriter {
    queue: Arc<WriteQueue>,
    writer: BatchWriter,
    failed: bool,
}

impl LogWriter {
    pub(crate) fn new(queue: Arc<WriteQueue>, packs: Packs, next: u64, options: &LogOptions) -> Self {
        let (vote, committed) = {
            let state = queue.state();
            (state.vote, state.committed)
        };
        let writer = BatchWriter {
            marked: packs.mark(),
            committed,
            noted_committed: committed,
            packs,
            options: options.clone(),
            next,
            vote_term: vote.map_or(0, |vote| vote.leader_id.term),
            vote_timing: queue.vote_timing.clone(),
            unsynced: false,
            purge: None,
            noted: Instant::now(),
            note_took: Duration::ZERO,
        };
        Self { queue, writer, failed: false }
    }

    /// Waits until there is something to do. Returns false when the log has been closed and all is done. It uses
    /// tokio's time, which a simulation can control.
    pub async fn ready(&mut self) -> bool {
        self.queue.wait_async(self.due()).await != Wake::Closed
    }

    pub(crate) fn ready_blocking(&mut self) -> bool {
        self.queue.wait(self.due()) != Wake::Closed
    }

    fn due(&self) -> Option<Instant> {
        if self.failed { None } else { self.writer.due() }
    }

    /// Handles all queued jobs as one batch: writes, one sync, acknowledgements. Then purges a slice of old entries,
    /// and writes the mark when it is due.
    pub fn step(&mut self) {
        let queue = Arc::clone(&self.queue);
        let _busy = queue.busy();
        let (jobs, committed) = self.queue.drain();
        if self.failed {
            return self.refuse(jobs);
        }
        self.writer.committed = committed.max(self.writer.committed);
        if !jobs.is_empty() {
            match guarded(|| self.writer.batch(&jobs)) {
                Ok(done) => {
                    self.queue.batch_done(done.written, done.vote, done.durable, done.taken);
                    acknowledge(jobs);
                    self.writer.options.observer.batch(&done.times);
                }
                Err(error) => {
                    self.fail(error);
                    return self.refuse(jobs);
                }
            }
        }
        if let Err(error) = guarded(|| self.writer.background()) {
            self.fail(error);
        }
    }

    /// Syncs what is written, and writes the mark, when the log is closed.
    pub fn finish(&mut self) {
        self.step();
        let queue = Arc::clone(&self.queue);
        let _busy = queue.busy();
        if !self.failed
            && let Err(error) = guarded(|| self.writer.note())
        {
            self.fail(error);
        }
    }

    /// Fails the log after a panic outside of the database.
    pub(crate) fn panicked(&mut self, why: &str) {
        self.fail(("write", io::Error::other(format!("its writer panicked: {why}"))));
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    fn fail(&mut self, (attempt, source): FailedAttempt) {
        let place = self.writer.packs.place().into();
        self.failed = true;
        self.queue.fail(&LogFailure { place, attempt, source: Arc::new(source) });
        // Jobs that were queued between the drain and the failure.
        let (late, _) = self.queue.drain();
        self.refuse(late);
    }

    fn refuse(&self, jobs: VecDeque<(Instant, Job)>) {
        let refusal = || io::Error::other("the Raft log has failed; this master must exit");
        for (_, job) in jobs {
            match job {
                Job::Append { done, .. } => done.io_completed(Err(refusal())),
                Job::Vote { done, .. } => drop(done.send(Err(refusal()))),
                Job::Truncate(_) | Job::Purge(_) => {}
            }
        }
    }
}

fn acknowledge(jobs: VecDeque<(Instant, Job)>) {
    for (_, job) in jobs {
        match job {
            Job::Append { done, .. } => done.io_completed(Ok(())),
            Job::Vote { done, .. } => drop(done.send(Ok(()))),
            Job::Truncate(_) | Job::Purge(_) => {}
        }
    }
}

type FailedAttempt = (&'static str, io::Error);

/// Runs `work`, and turns a panic of the database into a failure of the log.
fn guarded<T>(work: impl FnOnce() -> Result<T, FailedAttempt>) -> Result<T, FailedAttempt> {
    caught(work)
        .unwrap_or_else(|why| Err(("use the database", io::Error::other(format!("it panicked: {why}")))))
}

struct BatchWriter {
    packs: Packs,
    options: LogOptions,
    /// The index after the last entry written.
    next: u64,
    vote_term: u64,
    vote_timing: Arc<VoteTiming>,
    /// Whether anything was written since the last sync.
    unsynced: bool,
    /// The entries being purged, slice by slice.
    purge: Option<u64>,
    marked: Mark,
    /// The last committed position whose entry is written by the jobs drained so far.
    committed: Option<LogId>,
    /// The committed position on the disk.
    noted_committed: Option<LogId>,
    /// Time of the last write of the mark.
    noted: Instant,
    note_took: Duration,
}

struct BatchDone {
    written: Option<(u64, u64)>,
    vote: Option<Vote>,
    durable: Option<u64>,
    /// Bytes of the batch's entries.
    taken: u64,
    times: BatchTimes,
}

impl BatchWriter {
    fn batch(&mut self, jobs: &VecDeque<(Instant, Job)>) -> Result<BatchDone, FailedAttempt> {
        let begun = Instant::now();
        let mut done =
            BatchDone { written: None, vote: None, durable: None, taken: 0, times: BatchTimes::default() };
        done.times.jobs = jobs.len();
        if let Some((queued, _)) = jobs.front() {
            done.times.queue_wait = begun.saturating_duration_since(*queued);
        }
        let mut run: Vec<&Entry> = Vec::new();
        let (mut durable, mut voted) = (false, false);
        for (_, job) in jobs {
            // Entries of neighbouring appends share packs. Other jobs between them are written in their place.
            if !matches!(job, Job::Append { .. }) {
                done.times.bytes += self.append(&mut run)?;
            }
            match job {
                Job::Append { entries, generation, bytes, .. } => {
                    durable = true;
                    done.taken += bytes;
                    done.times.entries += entries.len();
                    run.extend(entries);
                    if let Some(entry) = entries.last() {
                        done.written = Some((*generation, entry.log_id.index + 1));
                    }
                }
                Job::Vote { vote, .. } => {
                    (durable, voted) = (true, true);
                    self.put(
                        hard_state::VOTE,
                        &hard_state::encode_vote(vote, self.vote_timing.ms()),
                        "write the vote",
                    )?;
                    self.vote_term = self.vote_term.max(vote.leader_id.term);
                    done.vote = Some(*vote);
                }
                Job::Truncate(from) => self.truncate(*from)?,
                Job::Purge(upto) => self.begin_purge(upto)?,
            }
        }
        done.times.bytes += self.append(&mut run)?;
        let written = Instant::now();
        done.times.insert = written - begun;
        if durable {
            (done.times.flush, done.times.sync) = self.sync(voted)?;
            done.durable = Some(self.next);
        }
        Ok(done)
    }

    fn append(&mut self, run: &mut Vec<&Entry>) -> Result<u64, FailedAttempt> {
        let Some(last) = run.last() else { return Ok(0) };
        self.next = last.log_id.index + 1;
        self.unsynced = true;
        let bytes = self.packs.append(run).map_err(|error| ("append entries", error))?;
        run.clear();
        Ok(bytes)
    }

    /// The mark is lowered, durably, before anything is removed. Were it done after, a crash between the two would
    /// leave a log that ends before its mark, which recovery takes for lost data, and a healthy master would refuse to
    /// start. Done first, a crash leaves a mark below the end of the log, which is always sound: it merely would have
    /// noticed less, and entries from `from` on are not acknowledged any more once a leader has overruled them.
    fn truncate(&mut self, from: u64) -> Result<(), FailedAttempt> {
        if self.marked.next > from {
            self.write_mark(Mark { next: from, ..self.marked })?;
        }
        self.unsynced = true;
        self.next = self.next.min(from);
        self.packs.truncate(from).map_err(|error| ("remove overruled entries", error))
    }

    fn begin_purge(&mut self, upto: &LogId) -> Result<(), FailedAttempt> {
        self.put(hard_state::PURGED, &hard_state::encode_log_id(upto), "write the purged index")?;
        self.next = self.next.max(upto.index + 1);
        self.purge = self.purge.max(Some(upto.index));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8], attempt: &'static str) -> Result<(), FailedAttempt> {
        self.unsynced = true;
        self.packs.put(key, value).map_err(|error| (attempt, error))
    }

    /// Makes what was written durable, as far as `--log-sync` asks for it: a vote always. A vote that a power failure
    /// took back could be given again, and one term could have two leaders: whoever orders by term and index, as the
    /// stores do, would take two different entries for the same.
    /// `votes_survive_a_power_failure_without_sync` (master/log/tests/it/memory/writes.rs) fails without that.
    fn sync(&mut self, voted: bool) -> Result<(Duration, Duration), FailedAttempt> {
        let begun = Instant::now();
        self.options.pace.begin();
        self.packs.flush().map_err(|error| ("flush", error))?;
        let flushed = Instant::now();
        if voted || self.options.sync == LogSync::Fdatasync {
            self.packs.sync().map_err(|error| ("fdatasync", error))?;
        }
        self.options.pace.end();
        self.unsynced = false;
        Ok((flushed - begun, Instant::now() - flushed))
    }

    fn due(&self) -> Option<Instant> {
        if self.purge.is_some() {
            return Some(Instant::now());
        }
        (self.unsynced || self.marked != self.mark()).then(|| self.note_due())
    }

    fn note_due(&self) -> Instant {
        let times = (self.note_took.as_millis() / NOTE_QUICK.as_millis()).clamp(1, LEAST_OFTEN);
        self.noted + self.options.mark_every * times as u32
    }

    fn background(&mut self) -> Result<(), FailedAttempt> {
        if let Some(upto) = self.purge {
            self.unsynced = true;
            let more = self.packs.purge_slice(upto).map_err(|error| ("delete purged entries", error))?;
            self.purge = self.purge.filter(|_| more);
        }
        if self.note_due() <= Instant::now() {
            self.note()?;
        }
        Ok(())
    }

    /// Notes the last durable index, after making it so: the mark never runs ahead of the log.
    ///
    /// The committed position goes with it, in the map, after the entry that it names: [`WriteQueue::drain`] gave it
    /// together with the last of the jobs that wrote that entry, and no later job removes a committed entry but by
    /// purging it. So every prefix of the disk's writes that has the position has its entry, of the same term, or has
    /// purged it.
    fn note(&mut self) -> Result<(), FailedAttempt> {
        let begun = Instant::now();
        if let Some(committed) = self.committed.filter(|committed| self.noted_committed < Some(*committed)) {
            self.put(
                hard_state::COMMITTED,
                &hard_state::encode_log_id(&committed),
                "write the committed index",
            )?;
            self.noted_committed = Some(committed);
        }
        if self.unsynced {
            self.sync(false)?;
        }
        if self.marked != self.mark() {
            self.write_mark(self.mark())?;
        }
        self.noted = Instant::now();
        self.note_took = self.noted - begun;
        Ok(())
    }

    fn mark(&self) -> Mark {
        Mark { next: self.next, term: self.vote_term }
    }

    fn write_mark(&mut self, mark: Mark) -> Result<(), FailedAttempt> {
        self.packs.write_mark(mark).map_err(|error| ("note the durable index", error))?;
        self.marked = mark;
        Ok(())
    }
}
