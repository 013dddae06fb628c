//! How a program ends: the exit code of a command, and of a line that names none.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use mc_client::Outcome;

use crate::failure::{Failure, INTERRUPTED, UNUSABLE};
use crate::output::{self, Format, Output, note};

/// Result of a command, which sets its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Done, yes or healthy.
    Well,
    /// No: not found, degraded, lost.
    Negative,
    /// The pool can't be used.
    Down,
}

/// Returns the exit code of a command, after it has told of its failure.
pub fn exit_code(outcome: anyhow::Result<Ended>, output: Output) -> ExitCode {
    match outcome {
        Ok(ended) => code_unless_lost(match ended {
            Ended::Well => ExitCode::SUCCESS,
            Ended::Negative => ExitCode::from(1),
            Ended::Down => ExitCode::from(2),
        }),
        Err(error) => {
            let failure = Failure::of(&error);
            if failure.exit_code != INTERRUPTED {
                note(&format!("error: {error:#}"));
            }
            output.failure(&format!("{error:#}"), failure.code, failure.outcome);
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Prints the parser's message when there is no command to run, and returns the exit code. The message is help or a
/// version, always as text, or an error in the command line.
pub fn not_a_command(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if !error.use_stderr() {
        output::note_lost(printed);
        return code_unless_lost(ExitCode::SUCCESS);
    }
    Output::new(format_of(std::env::args_os())).failure(&what_is_wrong(error), None, Outcome::Definite);
    ExitCode::from(2)
}

/// Returns `code`, or the code of a failure if a part of the output was lost.
fn code_unless_lost(code: ExitCode) -> ExitCode {
    let Some(why) = output::lost() else { return code };
    note(&format!(
        "error: cannot write to standard output: {why}; the command is done, and a part of its result is lost"
    ));
    ExitCode::from(UNUSABLE)
}

/// Guesses the requested format from a command line that may not parse.
pub fn format_of(args: impl IntoIterator<Item = OsString>) -> Format {
    let args: Vec<_> = args.into_iter().take_while(|arg| arg != "--").collect();
    let text: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap_or_default()).collect();
    let in_one = |arg: &&str| matches!(*arg, "--json" | "-ojson" | "-o=json" | "--output=json");
    let in_two = |pair: &[&str]| matches!(pair, ["-o" | "--output", "json"]);
    if text.iter().any(in_one) || text.windows(2).any(in_two) { Format::Json } else { Format::Table }
}

/// Returns the parser's complaint without the usage and hints below it.
pub(crate) fn what_is_wrong(error: &clap::Error) -> String {
    // The text of such an error is only the help.
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "the command is not complete".to_owned();
    }
    let text = error.to_string();
    let what = text.split("\n\n").next().unwrap_or_default();
    what.strip_prefix("error: ").unwrap_or(what).trim_end().to_owned()
}

/// Runs `work` and waits for nothing else. A thread that hangs in a DNS lookup can't be interrupted, and ends with the
/// process.
pub fn run_to_end<T>(runtime: tokio::runtime::Runtime, work: impl Future<Output = T>) -> T {
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[test]
    fn a_lookup_that_hangs_does_not_hold_up_the_end() {
        let (ended, still) = mpsc::channel();
        let (_hangs, until_it_is_dropped) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            run_to_end(runtime, async {
                tokio::task::spawn_blocking(move || until_it_is_dropped.recv());
                tokio::task::yield_now().await;
            });
            ended.send(()).unwrap();
        });
        assert!(still.recv_timeout(Duration::from_secs(20)).is_ok(), "it waits for the lookup");
    }

    #[test]
    fn the_format_is_known_of_a_wrong_line_too() {
        let format = |line: &str| format_of(line.split(' ').map(OsString::from));
        for line in ["--json no", "no --output=json", "no -o json", "no --output json", "no -ojson"] {
            assert_eq!(format(line), Format::Json, "{line}");
        }
        for line in ["no", "no -o table", "-- --json", "json"] {
            assert_eq!(format(line), Format::Table, "{line}");
        }
    }

    #[derive(Debug, clap::Parser)]
    #[command(name = "tool")]
    struct Tool {
        #[command(subcommand)]
        _command: Command,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Command {
        Get {
            #[arg(value_name = "KEY")]
            _key: String,
        },
    }

    #[test]
    fn what_is_wrong_is_said_without_the_usage() {
        let wrong = |line: &str| what_is_wrong(&Tool::try_parse_from(line.split(' ')).unwrap_err());
        assert!(wrong("tool no-such-command").starts_with("unrecognized subcommand 'no-such-command'"));
        assert!(wrong("tool get").ends_with("<KEY>"), "{}", wrong("tool get"));
        assert_eq!(wrong("tool"), "the command is not complete");
    }
}
