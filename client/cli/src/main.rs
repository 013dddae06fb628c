//! `mcctl`: runs, watches and uses a pool from one executable.

mod args;
mod cmd;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use mc_console::{Ended, Output, exit_code, format_of, not_a_command, run_to_end};

use args::{Cli, Command};

/// The same allocator as in `mc-master`, because masters run in this executable too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Checked before any parsing here: flags of masters and stores belong to them, even if they look like ours.
    if let Some(code) = mc_testbed::role_of_this_process("mcctl") {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error),
    };
    let format = match &cli.command {
        // Its flags are those of another program, and not parsed here.
        Command::Bench(_) => format_of(std::env::args_os()),
        _ => cli.global.format(),
    };
    let output = Output::new(format);
    exit_code(dispatch(&cli, output), output)
}

fn dispatch(cli: &Cli, output: Output) -> Result<Ended> {
    let global = &cli.global;
    mc_console::connect::use_credentials(global);
    let work = async {
        match &cli.command {
            Command::Playground(args) => cmd::playground::playground(args, output).await,
            Command::Status => cmd::status::status(global, output).await,
            Command::Put(args) => cmd::put::put(global, args, output).await,
            Command::Get(args) => cmd::get::get(global, args, output).await,
            Command::Ls(args) => cmd::ls::ls(global, args, output).await,
            Command::Exist(args) => cmd::exist::exist(global, args, output).await,
            Command::Rm(args) => cmd::rm::rm(global, args, output).await,
            Command::Stat(args) => cmd::stat::stat(global, args, output).await,
            Command::Segments => cmd::segments::segments(global, output).await,
            Command::Members(command) => cmd::members::members(global, command, output).await,
            Command::Tenants(command) => cmd::tenants::tenants(global, command, output).await,
            Command::Principals(command) => cmd::principals::principals(global, command, output).await,
            Command::Whoami(args) => cmd::whoami::whoami(global, args, output).await,
            Command::Security(command) => cmd::security::security(global, command, output).await,
            Command::Audit(args) => cmd::audit::audit(global, args, output).await,
            Command::Config(command) => cmd::config::config(global, command, output).await,
            Command::Upgrade(command) => cmd::upgrade::upgrade(global, command, output).await,
            Command::Check(command) => cmd::check::check(global, command, output).await,
            Command::Cert(command) => cmd::cert::cert(command, output),
            Command::Bench(_) => Err(cmd::bench::bench(&std::env::args_os().collect::<Vec<_>>())),
            // A line that begins with `run` was taken above.
            Command::Run(args) => Err(cmd::run::flags_before(args)),
            Command::Completion(args) => cmd::completion::completion(args, Cli::command(), output),
            Command::Monitoring(args) => cmd::monitoring::monitoring(args, output),
            Command::Reference => cmd::reference::reference(Cli::command(), output),
        }
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime's threads")?;
    run_to_end(runtime, work)
}
