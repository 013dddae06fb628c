//! Lines of the log on their way to Python's `logging`.
//!
//! A thread of the runtime never waits for the GIL: it appends to a bounded queue, from which a Python thread takes the lines.
//! Lines that don't fit are counted.
//!
//! The queue uses the locks of the standard library. Those of `parking_lot` keep the threads that wait in a table of the process: a forked child inherits
//! the entries, whose memory its new threads overwrite, and a Python thread waits here most of the time.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use super::options::seconds;
use super::process;

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
    /// Nobody takes lines any more.
    stopped: bool,
}

/// Level as a number of `logging`, target and text.
type Line = (u8, String, String);

impl Lines {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics under the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: Line) {
        let mut waiting = self.waiting();
        if waiting.lines.len() < WAITING && !waiting.stopped {
            waiting.lines.push_back(line);
            self.came.notify_one();
        } else {
            waiting.lost += 1;
        }
    }

    /// Takes all lines, and the number of those that were lost; waits for the first one.
    fn take(&self, timeout: Duration) -> (Vec<Line>, u64) {
        let mut waiting = self.waiting();
        if waiting.lines.is_empty() && !waiting.stopped {
            waiting = self.came.wait_timeout(waiting, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        (waiting.lines.drain(..).collect(), std::mem::take(&mut waiting.lost))
    }
}

/// Passes events on to the [`Lines`] of the process.
struct ToPython;

impl<S: Subscriber> Layer<S> for ToPython {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(process) = process::started() else { return };
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            Level::INFO => 20,
            Level::DEBUG | Level::TRACE => 10,
        };
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, fields } = text;
        process.lines.add((level, event.metadata().target().to_owned(), message + &fields));
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Collects lines from this level on: a number of `logging`. The first call decides, also for forked children.
#[pyfunction]
pub(super) fn start_logs(py: Python<'_>, level: u8) -> PyResult<()> {
    process::current(py)?;
    let level = match level {
        40.. => LevelFilter::ERROR,
        30.. => LevelFilter::WARN,
        20.. => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    // It fails if there is one already, from an earlier call.
    let _ = tracing::subscriber::set_global_default(
        tracing_subscriber::registry().with(ToPython.with_filter(level)),
    );
    Ok(())
}

/// Takes the lines that came, and the number of those that were lost; waits for the first one.
#[pyfunction]
pub(super) fn next_logs(py: Python<'_>, timeout: f64) -> PyResult<(Vec<Line>, u64)> {
    let timeout = seconds("timeout", timeout)?;
    let lines = &process::current(py)?.lines;
    Ok(py.detach(|| lines.take(timeout)))
}

/// Wakes the thread that waits for lines, and collects none any more.
#[pyfunction]
pub(super) fn stop_logs() {
    if let Some(process) = process::started() {
        process.lines.waiting().stopped = true;
        process.lines.came.notify_all();
    }
}
