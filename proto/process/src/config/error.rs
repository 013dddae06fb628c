use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;

/// The reason why a process has no configuration. Each message is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not an error: the user asked for help or the version, and this is the text.
    #[error("{0}")]
    Shown(String),
    /// The command line, or a value that a lower layer added to it, is not valid.
    #[error("{0}")]
    Usage(String),
    /// The file can't be read.
    #[error("cannot read the configuration file {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file {path} is not valid TOML: {why}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The defect and its line.
        why: String,
    },
    /// The file has a key that is not a flag of this program.
    #[error(
        "the configuration file {path} has the unknown key `{key}`{}",
        nearest.as_ref().map_or(String::new(), |near| format!("; did you mean `{near}`?")),
        path = path.display()
    )]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The unknown key.
        key: String,
        /// The nearest valid key, if one is near.
        nearest: Option<String>,
    },
    /// A value of the environment or the file has the wrong shape for its flag.
    #[error("`{name}` ({origin}) {why}")]
    Value {
        /// The long flag.
        name: String,
        /// Layer that the value comes from.
        origin: super::Origin,
        /// The defect.
        why: String,
    },
}

/// Returns the exit code of a process that only had to write something to standard output: 0, also when the reader
/// closed the pipe, or 2 with an error if the output was lost.
#[must_use]
pub fn printed(written: std::io::Result<()>) -> ExitCode {
    match written {
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "error: cannot write to standard output: {why}");
            ExitCode::from(2)
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

impl ConfigError {
    /// Prints the help on standard output, or the error on standard error, and returns the exit code: 0 or 2.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Shown(text) => {
                let mut out = std::io::stdout();
                printed(write!(out, "{text}").and_then(|()| out.flush()))
            }
            error => {
                // A closed standard error leaves no place to report the failure.
                let _ = writeln!(std::io::stderr(), "error: {error}");
                ExitCode::from(2)
            }
        }
    }

    /// Turns clap's report into one sentence, with the origin of the value if a lower layer gave it.
    pub(super) fn from_clap(error: &clap::Error, origin: Option<&super::Origin>) -> Self {
        match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Self::Shown(error.to_string()),
            _ => {
                let text = error.to_string();
                let paragraphs: Vec<String> = text
                    .split("\n\n")
                    .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
                    .filter(|part| !part.is_empty() && !part.starts_with("Usage:"))
                    .collect();
                let first = paragraphs.first().map_or("", String::as_str);
                let mut sentence = first.strip_prefix("error: ").unwrap_or(first).to_owned();
                if let Some(origin) = origin {
                    sentence.push_str(&format!(" ({origin})"));
                }
                for tip in paragraphs.iter().filter_map(|part| part.strip_prefix("tip: ")) {
                    sentence.push_str(&format!("; {tip}"));
                }
                sentence.push_str("; --help lists what there is");
                Self::Usage(sentence)
            }
        }
    }
}
