//! The layer that hands events of `tracing` to the [`Lines`](super::lines::Lines) of the process, and the calls by which Python takes them.

use std::fmt::{self, Write as _};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use super::lines::Line;
use super::options::seconds;
use super::process;

/// Passes events on to the lines of the process.
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
        process.lines.stop();
    }
}
