use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time since which the writer waits for the disk; none if it does not wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct BusySince(Arc<Mutex<Option<Instant>>>);

impl BusySince {
    /// Records that the writer waits for the disk from now on.
    pub(crate) fn begin(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Records that the writer does not wait any more.
    pub(crate) fn end(&self) {
        *self.0.lock() = None;
    }

    /// Returns the time since which the writer waits.
    pub(crate) fn get(&self) -> Option<Instant> {
        *self.0.lock()
    }

    /// Restarts the wait, because the disk has answered within a batch of many syncs.
    pub(crate) fn answered(&self) {
        if let Some(since) = self.0.lock().as_mut() {
            *since = Instant::now();
        }
    }
}
