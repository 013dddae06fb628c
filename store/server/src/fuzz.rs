//! Reads configuration files, for tests/fuzz.

use std::path::Path;

use clap::CommandFactory as _;

use crate::args::Flags;

/// Reads a configuration file of `mc-store`; returns whether it is valid.
pub fn config(file: &Path) -> bool {
    let args = ["mc-store".into(), "--config".into(), file.as_os_str().to_owned()];
    let loaded = mc_process::config::load::<Flags>(Flags::command(), args, |_| None);
    loaded.is_ok_and(|loaded| loaded.args.store.config(0).check().is_ok())
}
