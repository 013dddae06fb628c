//! `mcctl completion`.

use std::io::{self, Write};

use anyhow::Result;
use clap::CommandFactory;

use crate::Ended;
use crate::args::{Cli, CompletionArgs};

pub(crate) fn completion(args: &CompletionArgs) -> Result<Ended> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "mcctl", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(Ended::Well)
}
