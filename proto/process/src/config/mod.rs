//! Configuration in layers: flags > environment > file > default, with the origin of every value.
//!
//! A process declares its flags once, as a clap struct. Every long flag `--some-name` can then also be set by the
//! environment as `MC_SOME_NAME` (or the name that the struct gives it), and by a TOML file as `some-name = ...`. An
//! empty environment variable counts as not set. A process that supports a file flattens [`FileOptions`] into its
//! flags.

mod error;
mod file;
mod layers;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

use clap::{Command, FromArgMatches};

pub use error::{ConfigError, printed};
pub use layers::variable;

/// The flags that name the configuration file and print the resolved settings.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FileOptions {
    /// Read settings from this TOML file; its keys are the names of the flags
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print each setting and where it came from, then end
    #[arg(long)]
    pub print_config: bool,
}

/// Layer that a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// This environment variable.
    Env(String),
    /// This configuration file.
    File(PathBuf),
    /// The built-in default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One setting after all layers are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The long flag, without dashes.
    pub name: String,
    /// The value as text, given or defaulted. Several values are joined by commas. `None` means that there is no value.
    pub value: Option<String>,
    /// Layer that the value came from.
    pub origin: Origin,
}

/// Parsed arguments, and each setting with its origin.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// Parsed arguments.
    pub args: T,
    /// Every long flag that `--help` shows, in the order of its declaration.
    pub settings: Vec<Setting>,
}

impl<T> Loaded<T> {
    /// Returns the layer that the value of the long flag `name` came from; `None` if the flag is hidden or unknown.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.settings.iter().find(|setting| setting.name == name).map(|setting| &setting.origin)
    }

    /// Prints one line per setting: `name = "value"  # origin`. The lines are themselves a configuration file.
    pub fn print(&self, out: &mut impl io::Write) -> io::Result<()> {
        let left = |setting: &Setting| match &setting.value {
            // The file can't name itself.
            Some(value) if setting.name == layers::CONFIG => format!("# {} is {value}", setting.name),
            // JSON's escapes are a subset of those of a TOML basic string.
            Some(value) => format!("{} = {}", setting.name, serde_json::Value::from(value.as_str())),
            None => format!("# {} is not set", setting.name),
        };
        let width = self.settings.iter().map(|setting| left(setting).len()).max().unwrap_or(0);
        for setting in &self.settings {
            writeln!(out, "{:width$}  # {}", left(setting), setting.origin)?;
        }
        Ok(())
    }
}

/// Parses `args` (the first is the program's name) with `command`. Settings that `args` leave out are filled from `env`
/// and from the file that `--config` names. Flags of subcommands come from the command line alone; global flags are
/// layered.
///
/// # Errors
/// [`ConfigError`]; [`ConfigError::Shown`] when help or the version was asked for.
pub fn load<T: FromArgMatches>(
    command: Command,
    args: impl IntoIterator<Item = OsString>,
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Loaded<T>, ConfigError> {
    layers::load(command, args.into_iter().collect(), &env)
}

#[cfg(test)]
mod tests;
