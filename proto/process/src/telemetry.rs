//! Logging, for `main`s only: a library never installs a subscriber.

use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

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
    /// This process already has a subscriber.
    #[error("logging has been started before in this process")]
    Twice,
}

/// Sends log lines of this process to standard error.
///
/// # Errors
/// [`TelemetryError`]
pub fn init(options: &LogOptions) -> Result<(), TelemetryError> {
    let filter = EnvFilter::builder()
        .parse(&options.log)
        .map_err(|err| TelemetryError::Filter { filter: options.log.clone(), why: err.to_string() })?;
    let registry = tracing_subscriber::registry().with(filter);
    let started = match options.log_format {
        LogFormat::Text => {
            let lines = tracing_subscriber::fmt::layer()
                .with_writer(stderr)
                .with_ansi(stderr().is_terminal())
                .with_target(false);
            registry.with(lines).try_init()
        }
        LogFormat::Json => {
            let lines = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_writer(stderr);
            registry.with(lines).try_init()
        }
    };
    started.map_err(|_| TelemetryError::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_named_with_its_flag() {
        let options = LogOptions { log: "mc=loud=1".into(), ..LogOptions::default() };
        let said = init(&options).unwrap_err().to_string();
        assert!(said.starts_with("--log `mc=loud=1` is not a log filter"), "{said}");
    }
}
