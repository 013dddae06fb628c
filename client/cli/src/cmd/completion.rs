//! `mcctl completion`: prints the completion script of a shell.

use anyhow::Result;
use clap::CommandFactory;
use mc_console::{Ended, Output};
use serde::Serialize;

use crate::args::{Cli, CompletionArgs};

#[derive(Serialize)]
struct Document {
    shell: String,
    script: String,
}

pub(crate) fn completion(args: &CompletionArgs, output: Output) -> Result<Ended> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "mcctl", &mut script);
    let document = Document { shell: args.shell.to_string(), script: String::from_utf8(script)? };
    output.result(&document, || document.script.clone());
    Ok(Ended::Well)
}
