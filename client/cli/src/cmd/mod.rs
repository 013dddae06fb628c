//! The commands of `mcctl`, one per file, each beside its arguments.

pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod cert;
pub(crate) mod check;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod exist;
pub(crate) mod get;
pub(crate) mod ls;
pub(crate) mod members;
pub(crate) mod monitoring;
pub(crate) mod playground;
pub(crate) mod principals;
pub(crate) mod put;
pub(crate) mod reference;
mod rescue;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod security;
pub(crate) mod segments;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod tenants;
pub(crate) mod upgrade;
pub(crate) mod whoami;

use std::fmt;

/// Whether something is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::On { "on" } else { "off" })
    }
}
