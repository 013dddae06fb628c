use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::read_path::ReadPath;
use crate::disk::pace::SyncPace;
use crate::write::queue::WriteQueue;

/// The open log, which the clones of a [`LogStore`](super::LogStore) and their readers share. The last of them closes
/// it.
pub(crate) struct LogHandle {
    pub(crate) queue: Arc<WriteQueue>,
    pub(crate) read_path: Mutex<Option<ReadPath>>,
    pub(crate) read_bytes: usize,
    pub(crate) stuck_after: Duration,
    pub(crate) pace: Arc<SyncPace>,
    /// Whether the disk has been released; the channel is closed for a log without a thread.
    pub(crate) ended: watch::Receiver<bool>,
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.queue.close();
    }
}
