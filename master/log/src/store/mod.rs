//! openraft's log storage over a [`LogDisk`]: the log's handle and its threads. The reader and the handle import the
//! way to the disk.

pub(crate) mod handle;
pub(crate) mod open;
pub(crate) mod read_path;
pub(crate) mod reader;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::disk::pace::SyncPace;
use crate::disk::packs::Packs;
use crate::disk::panics::caught;
use crate::disk::sled::{SledDisk, SledOptions};
use crate::disk::{LogDisk, LogView};
use crate::error::{Damage, LogFailure, OpenError};
use crate::recover::{Recovered, recover};
use crate::types::{Entry, LogId, TypeConfig, Vote};
use crate::write::observe::LogStats;
use crate::write::options::LogOptions;
use crate::write::queue::{Job, WriteQueue};
use crate::write::vote_timing::VoteTiming;
use crate::write::writer::LogWriter;
use handle::LogHandle;
use read_path::{ReadPath, serve};
use reader::LogReader;

/// Handle of the Raft log. Clones are handles of the same log. The writer stops when the last handle is dropped, or at
/// [`Self::close`].
#[derive(Clone)]
pub struct LogStore {
    handle: Arc<LogHandle>,
}

impl LogStore {
    /// Opens the log in a directory of its own, on sled.
    ///
    /// # Errors
    /// [`OpenError`], which says what was found and what to do.
    pub async fn open_sled(
        dir: impl Into<PathBuf>,
        sled: SledOptions,
        options: LogOptions,
    ) -> Result<(Self, Recovered), OpenError> {
        let dir = dir.into();
        Self::open(move || Ok(Box::new(SledDisk::open(&dir, &sled)?)), options).await
    }

    /// Opens a log on the disk that `disk` opens.
    ///
    /// Opening, writing and closing happen on a thread of the log's own, reads of old entries on a second one: both
    /// block, and neither may happen inside a runtime.
    ///
    /// # Errors
    /// Those of `disk`, and [`OpenError`] for what is found on it.
    pub async fn open(
        disk: impl FnOnce() -> Result<Box<dyn LogDisk>, OpenError> + Send + 'static,
        options: LogOptions,
    ) -> Result<(Self, Recovered), OpenError> {
        let (opened, opening) = oneshot::channel();
        let io = |source| OpenError::Io { place: NOWHERE.to_owned(), attempt: "start its thread", source };
        std::thread::Builder::new()
            .name("raft-log".to_owned())
            .spawn(move || run(disk, &options, opened))
            .map_err(io)?;
        opening.await.unwrap_or_else(|_| Err(io(io::Error::other("it ended"))))
    }

    /// Opens a log without a thread, and returns its writer for the caller to drive. A simulation thus decides when a
    /// batch is written and how long its sync takes. Reads run on the caller's thread.
    pub fn open_inline(
        disk: Box<dyn LogDisk>,
        options: &LogOptions,
    ) -> Result<(Self, LogWriter, Recovered), OpenError> {
        let OpenedLog { queue, writer, recovered, packs_view } = open(disk, options)?;
        let (_, ended) = watch::channel(false);
        let store = Self::new(queue, ReadPath::Inline(packs_view), options, ended);
        Ok((store, writer, recovered))
    }

    fn new(
        queue: Arc<WriteQueue>,
        read_path: ReadPath,
        options: &LogOptions,
        ended: watch::Receiver<bool>,
    ) -> Self {
        let read_path = Mutex::new(Some(read_path));
        Self {
            handle: Arc::new(LogHandle {
                queue,
                read_path,
                read_bytes: options.read_bytes,
                stuck_after: options.stuck_after,
                pace: options.pace.clone(),
                ended,
            }),
        }
    }

    /// Resolves when the log has failed, or its disk has not answered for [`LogOptions::stuck_after`], and the process
    /// should exit; never otherwise.
    pub async fn failed(&self) -> LogFailure {
        self.handle.queue.failed(self.handle.stuck_after).await
    }

    /// Finishes the queued jobs, writes the mark, and releases the disk. After that the directory can be opened again.
    pub async fn close(&self) {
        self.handle.queue.close();
        self.handle.read_path.lock().take();
        // An error means that there is no thread to wait for.
        drop(self.handle.ended.clone().wait_for(|ended| *ended).await);
    }

    /// Returns the log's extent.
    pub fn stats(&self) -> LogStats {
        self.handle.queue.stats()
    }

    /// Returns the durations of its syncs.
    pub fn pace(&self) -> Arc<SyncPace> {
        self.handle.pace.clone()
    }

    /// Number of bytes of the entries that are in memory only, because the disk has not taken them yet.
    pub fn unwritten_bytes(&self) -> u64 {
        self.handle.queue.unwritten_bytes()
    }

    /// Returns the election timeout that is stored with its vote.
    pub fn vote_timing(&self) -> Arc<VoteTiming> {
        self.handle.queue.vote_timing.clone()
    }

    /// Number of bytes of the entries after index `index`, to within 64 KiB. A restart would apply them on top of a
    /// snapshot that ends there.
    pub fn bytes_since(&self, index: u64) -> u64 {
        self.handle.queue.state().sizes.since(index.saturating_add(1))
    }

    /// Returns a reader of the log.
    pub fn reader(&self) -> LogReader {
        LogReader { handle: Arc::clone(&self.handle) }
    }
}

/// Place in the error of a log whose thread could not be started.
const NOWHERE: &str = "(not reached)";

struct OpenedLog {
    queue: Arc<WriteQueue>,
    writer: LogWriter,
    recovered: Recovered,
    packs_view: Arc<dyn LogView>,
}

fn open(mut disk: Box<dyn LogDisk>, options: &LogOptions) -> Result<OpenedLog, OpenError> {
    let place = disk.place();
    let place_of_failures = place.clone();
    let loaded = caught(|| recover(&mut *disk, options.tail_bytes)).unwrap_or_else(|why| {
        let what = format!("it panicked while it was read: {why}");
        Err(OpenError::Refused { place, found: Damage::Engine { what } })
    });
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            // The database writes when it is dropped, and may panic once more.
            drop(caught(|| drop(disk)));
            return Err(error);
        }
    };
    let (contents, recovered) = loaded;
    let next = contents.next;
    let queue = WriteQueue::new(contents, place_of_failures.into());
    let packs = Packs::new(disk, options.pace.clone(), queue.busy_since());
    let packs_view = packs.view();
    let writer = LogWriter::new(Arc::clone(&queue), packs, next, options);
    Ok(OpenedLog { queue, writer, recovered, packs_view })
}

/// Runs the writer's thread, from opening to closing the disk.
fn run(
    disk: impl FnOnce() -> Result<Box<dyn LogDisk>, OpenError>,
    options: &LogOptions,
    opened: oneshot::Sender<Result<(LogStore, Recovered), OpenError>>,
) {
    let OpenedLog { queue, mut writer, recovered, packs_view } =
        match disk().and_then(|disk| open(disk, options)) {
            Ok(opened) => opened,
            Err(error) => return drop(opened.send(Err(error))),
        };
    let (reads, asked) = mpsc::channel();
    let reading = std::thread::Builder::new()
        .name("raft-log-read".to_owned())
        .spawn(move || serve(&packs_view, &asked));
    let reading = match reading {
        Ok(reading) => reading,
        Err(source) => {
            let (place, attempt) = (NOWHERE.to_owned(), "start its reading thread");
            return drop(opened.send(Err(OpenError::Io { place, attempt, source })));
        }
    };
    let (ended, watch_ended) = watch::channel(false);
    let store = LogStore::new(queue, ReadPath::Thread(reads), options, watch_ended);
    drop(opened.send(Ok((store, recovered))));
    // A panic of the database is an error of the job. Any other one would end this thread without a word: jobs would wait
    // for ever, and this master would keep its place among the voters.
    let worked = caught(|| {
        while writer.ready_blocking() {
            writer.step();
        }
        writer.finish();
    });
    if let Err(why) = worked {
        writer.panicked(&why);
    }
    // Closed means that no handle can ask for a read any more, so the reading thread ends, and the database is dropped
    // here.
    drop(reading.join());
    if writer.has_failed() {
        // The database writes when it is dropped, and panics when it can't: there is nothing left to save. Its lock on
        // the directory ends with the process.
        std::mem::forget(writer);
    } else {
        drop(writer);
    }
    ended.send_replace(true);
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let state = self.handle.queue.state();
        Ok(LogState { last_purged_log_id: state.purged, last_log_id: state.last })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.reader()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let (done, durable) = oneshot::channel();
        self.handle.queue.submit(|_| Ok(Job::Vote { vote: *vote, done }))?;
        durable.await.map_err(|_| io::Error::other("the Raft log ended before the vote was durable"))?
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        // With the committed position, a restarted master applies entries at once instead of waiting for a leader. It
        // answers nothing from them before it hears a leader, so the position may lag. It is written with the next
        // mark: a write for each commit would double the writes of a log with little load.
        self.handle.queue.state().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.handle.queue.state().committed)
    }

    async fn append<I>(&mut self, entries: I, done: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        self.handle.queue.submit(|state| {
            let bytes = state.append(&entries)?;
            Ok(Job::Append { entries, generation: state.generation, bytes, done })
        })
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        self.handle.queue.submit(|state| Ok(Job::Truncate(state.truncate(last))))
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        self.handle.queue.submit(|state| Ok(Job::Purge(state.purge(upto))))
    }
}
