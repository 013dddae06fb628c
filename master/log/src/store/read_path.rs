use std::io;
use std::sync::{Arc, mpsc};

use tokio::sync::oneshot;

use crate::disk::panics::caught;
use crate::disk::{LogView, packs};
use crate::types::Entry;

/// Way in which reads reach the disk.
pub(crate) enum ReadPath {
    /// Reads run on a thread of their own, because they block, and because the database must never be dropped inside a
    /// runtime.
    Thread(mpsc::Sender<ReadJob>),
    /// On the caller's thread, for a disk in memory.
    Inline(Arc<dyn LogView>),
}

/// A read for the reading thread.
pub(crate) struct ReadJob {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) max_bytes: usize,
    pub(crate) reply: oneshot::Sender<io::Result<Vec<Entry>>>,
}

/// Runs the reading thread. It ends when all senders of jobs are gone.
pub(crate) fn serve(view: &Arc<dyn LogView>, jobs: &mpsc::Receiver<ReadJob>) {
    while let Ok(job) = jobs.recv() {
        let result = caught(|| packs::read(&**view, job.from, job.to, job.max_bytes))
            .unwrap_or_else(|why| Err(io::Error::other(format!("the log's database panicked: {why}"))));
        drop(job.reply.send(result));
    }
}
