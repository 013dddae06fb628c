//! `mcctl run`: what to say where a line has it in the wrong place. Lines that begin with it are taken before any parsing.

use std::ffi::OsString;

use anyhow::anyhow;
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct RunArgs {
    /// The process to run
    #[arg(value_enum)]
    pub(crate) role: Role,
    /// Flags of the process; `mcctl run master --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    pub(crate) args: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// mc-master
    Master,
    /// mc-store
    Store,
}

/// Returns the error of a line with flags before `run`: they may belong to either program.
pub(crate) fn flags_before(args: &RunArgs) -> anyhow::Error {
    let role = args.role.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    anyhow!("write `mcctl run {role}`, then its flags: no flag may stand before `run`")
}
