//! Logging, for `main`s only: a library never installs a subscriber.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, IsTerminal as _, stderr};
use std::panic::{PanicHookInfo, set_hook};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::lines::Lines;

/// Time that the last lines get at the end of the process, if standard error takes them slowly or not at all.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// The log of this process, of which there is one.
static LINES: OnceLock<Lines> = OnceLock::new();

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Time, level, message, fields.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The flags of logging, to flatten into a process' flags.
#[derive(Clone, Debug, clap::Args)]
pub struct LogOptions {
    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// Log level (error, warn, info, debug, trace), or a filter by crate such as `info,mc_raft=debug`
    #[arg(long, default_value = "info,openraft=off", value_name = "FILTER")]
    pub log: String,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { log_format: LogFormat::Text, log: "info,openraft=off".into() }
    }
}

/// The reason why logging did not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter can't be parsed.
    #[error("--log `{filter}` is not a log filter ({why}): write a level, or module=level pairs with commas")]
    Filter {
        /// The filter as given.
        filter: String,
        /// The defect.
        why: String,
    },
    /// The thread that writes the lines did not start.
    #[error("the log did not start to write to standard error: {0}")]
    Writer(io::Error),
    /// This process already has a subscriber.
    #[error("logging has been started before in this process")]
    Twice,
}

/// The log of a process, until its end.
#[must_use = "it writes the last lines when it is dropped"]
pub struct Log(Lines);

impl Log {
    /// Writes a line as it is, such as the reason why the process ends.
    pub fn say(&self, line: impl fmt::Display) {
        self.0.say(line);
    }
}

impl Drop for Log {
    /// Waits until the last lines are written. Runs also when `main` panics.
    fn drop(&mut self) {
        self.0.flush_within(LAST_LINES_WITHIN);
    }
}

/// Number of log lines of this process that were dropped because standard error did not take them.
pub fn dropped_lines() -> u64 {
    LINES.get().map_or(0, Lines::dropped)
}

/// Sends log lines and panics of this process to standard error. If that does not take them in time, lines are dropped and
/// counted ([`dropped_lines`]). Only errors and panics wait for it, up to a second, because the process may abort after them.
pub fn init(options: &LogOptions) -> Result<Log, TelemetryError> {
    let filter = EnvFilter::builder()
        .parse(&options.log)
        .map_err(|err| TelemetryError::Filter { filter: options.log.clone(), why: err.to_string() })?;
    let lines = Lines::start(stderr()).map_err(TelemetryError::Writer)?;
    LINES.set(lines.clone()).map_err(|_| TelemetryError::Twice)?;
    let registry = tracing_subscriber::registry().with(filter);
    let writer = lines.clone();
    let started = match options.log_format {
        LogFormat::Text => {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(writer)
                .with_ansi(stderr().is_terminal())
                .with_target(false);
            registry.with(layer).try_init()
        }
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_writer(writer);
            registry.with(layer).try_init()
        }
    };
    started.map_err(|_| TelemetryError::Twice)?;
    let panics = lines.clone();
    // The standard library's hook waits for standard error, and a thread that panics would never end.
    set_hook(Box::new(move |panic| {
        panics.say(described(panic));
        panics.flush_for_abort();
    }));
    Ok(Log(lines))
}

/// Describes a panic as the standard library does.
fn described(panic: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => format!("thread '{name}' {panic}\nstack backtrace:\n{backtrace}"),
        _ => format!("thread '{name}' {panic}\nnote: run with `RUST_BACKTRACE=1` to display a backtrace"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_named_with_its_flag() {
        let options = LogOptions { log: "mc=loud=1".into(), ..LogOptions::default() };
        let said = init(&options).err().unwrap().to_string();
        assert!(said.starts_with("--log `mc=loud=1` is not a log filter"), "{said}");
    }
}
