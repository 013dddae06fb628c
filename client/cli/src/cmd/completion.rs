//! `mcctl completion`: prints the completion script of a shell.

use anyhow::Result;
use clap::Args;
use clap::Command;
use mc_console::{Ended, Output};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// Shell to print completions for
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Serialize)]
struct Document {
    shell: String,
    script: String,
}

pub(crate) fn completion(args: &CompletionArgs, mut mcctl: Command, output: Output) -> Result<Ended> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut mcctl, "mcctl", &mut script);
    let document = Document { shell: args.shell.to_string(), script: String::from_utf8(script)? };
    output.result(&document, || document.script.clone());
    Ok(Ended::Well)
}
