//! `mcctl`: runs, watches, uses and measures a pool from one executable.

mod args;
mod children;
mod cmd;
mod connect;
mod failover;
mod failure;
mod interrupt;
mod output;
mod progress;
mod view;
mod workload;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use mc_client::Outcome;

use args::{Cli, Command};
use failure::{Failure, INTERRUPTED, UNUSABLE};
use output::Output;

/// The same allocator as in `mc-master`, because masters run in this executable too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Result of a command, which sets its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Done, yes or healthy.
    Well,
    /// No: not found, degraded, lost.
    Negative,
    /// The pool can't be used.
    Down,
}

fn main() -> ExitCode {
    // Checked before any parsing here: flags of masters and stores belong to them, even if they look like ours.
    if let Some(code) = cmd::run::role_of_this_process() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error),
    };
    let output = Output::new(cli.global.format());
    match dispatch(&cli, output) {
        Ok(ended) => code_unless_lost(match ended {
            Ended::Well => ExitCode::SUCCESS,
            Ended::Negative => ExitCode::from(1),
            Ended::Down => ExitCode::from(2),
        }),
        Err(error) => {
            let failure = Failure::of(&error);
            if failure.exit_code != INTERRUPTED {
                output::note(&format!("error: {error:#}"));
            }
            output.failure(&format!("{error:#}"), failure.code, failure.outcome);
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Prints the parser's message when there is no command to run, and returns the exit code. The message is help or a
/// version, always as text, or an error in the command line.
fn not_a_command(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if !error.use_stderr() {
        output::note_lost(printed);
        return code_unless_lost(ExitCode::SUCCESS);
    }
    Output::new(args::format_of(std::env::args_os())).failure(
        &args::what_is_wrong(error),
        None,
        Outcome::Definite,
    );
    ExitCode::from(2)
}

/// Returns `code`, or the code of a failure if a part of the output was lost.
fn code_unless_lost(code: ExitCode) -> ExitCode {
    let Some(why) = output::lost() else { return code };
    output::note(&format!(
        "error: cannot write to standard output: {why}; the command is done, and a part of its result is lost"
    ));
    ExitCode::from(UNUSABLE)
}

/// Builds a runtime with a thread per core, or per caller of a bench with fewer callers: more threads would pass a
/// single caller back and forth.
fn runtime(command: &Command) -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = command.callers().map_or(cores, |callers| cores.min(callers as usize));
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

fn dispatch(cli: &Cli, output: Output) -> Result<Ended> {
    let global = &cli.global;
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
            Command::Config(command) => cmd::config::config(global, command, output).await,
            Command::Upgrade(command) => cmd::upgrade::upgrade(global, command, output).await,
            Command::Check(command) => cmd::check::check(global, command, output).await,
            Command::Bench(args) => cmd::bench::bench(global, args, output).await,
            // Reached only when flags precede `run`. Where they belong is unknown.
            Command::Run(args) => anyhow::bail!(
                "write `mcctl run {}`, then its flags: no flag may stand before `run`",
                clap::ValueEnum::to_possible_value(&args.role)
                    .map_or_else(String::new, |v| v.get_name().to_owned())
            ),
            Command::Completion(args) => cmd::completion::completion(args, output),
            Command::Monitoring(args) => cmd::monitoring::monitoring(args, output),
            Command::Reference => cmd::reference::reference(output),
        }
    };
    let runtime = runtime(&cli.command).context("cannot start the runtime's threads")?;
    run_to_end(runtime, work)
}

/// Runs `work` and waits for nothing else. A thread that hangs in a DNS lookup can't be interrupted, and ends with the
/// process.
fn run_to_end<T>(runtime: tokio::runtime::Runtime, work: impl Future<Output = T>) -> T {
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_lookup_that_hangs_does_not_hold_up_the_end() {
        let (ended, still) = mpsc::channel();
        let (_hangs, until_it_is_dropped) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            super::run_to_end(runtime, async {
                tokio::task::spawn_blocking(move || until_it_is_dropped.recv());
                tokio::task::yield_now().await;
            });
            ended.send(()).unwrap();
        });
        assert!(still.recv_timeout(Duration::from_secs(20)).is_ok(), "it waits for the lookup");
    }
}
