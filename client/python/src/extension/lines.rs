//! Lines of the log on their way to Python's `logging`.
//!
//! A thread of the runtime never waits for the GIL: it appends to a bounded queue, from which a Python thread takes the lines.
//! Lines that don't fit are counted.
//!
//! The queue uses the locks of the standard library. Those of `parking_lot` keep the threads that wait in a table of the process: a forked child inherits
//! the entries, whose memory its new threads overwrite, and a Python thread waits here most of the time.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of lines that wait.
const WAITING: usize = 1024;

/// Lines that Python has not taken yet.
#[derive(Default)]
pub(super) struct Lines {
    waiting: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Line>,
    lost: u64,
    /// Whether the reader has stopped, so that no more lines are kept.
    stopped: bool,
}

/// Level as a number of `logging`, target and text.
pub(super) type Line = (u8, String, String);

impl Lines {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics under the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, line: Line) {
        let mut waiting = self.waiting();
        if waiting.lines.len() < WAITING && !waiting.stopped {
            waiting.lines.push_back(line);
            self.came.notify_one();
        } else {
            waiting.lost += 1;
        }
    }

    /// Takes all lines, and the number of those that were lost; waits for the first one.
    pub(super) fn take(&self, timeout: Duration) -> (Vec<Line>, u64) {
        let mut waiting = self.waiting();
        if waiting.lines.is_empty() && !waiting.stopped {
            waiting = self.came.wait_timeout(waiting, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        (waiting.lines.drain(..).collect(), std::mem::take(&mut waiting.lost))
    }

    /// Wakes the thread that waits for lines, and collects none any more.
    pub(super) fn stop(&self) {
        self.waiting().stopped = true;
        self.came.notify_all();
    }
}
