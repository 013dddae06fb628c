//! `mcctl bench`: becomes `mc-bench`, a program of its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::anyhow;
use clap::Args;
use clap::Parser;
use mc_console::Global;

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct BenchArgs {
    /// Bench and its flags; `mcctl bench --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCH")]
    pub(crate) args: Vec<OsString>,
}

const PROGRAM: &str = "mc-bench";

/// Flags that may stand before the command.
#[derive(Debug, Parser)]
struct Before {
    #[command(flatten)]
    _global: Global,
}

/// Replaces this process by `mc-bench` with the arguments of `line`, whose command is `bench`. Returns only if that fails.
pub(crate) fn bench(line: &[OsString]) -> anyhow::Error {
    let here = std::env::current_exe().ok();
    let beside = here.as_deref().and_then(Path::parent).map(|dir| dir.join(PROGRAM));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(without_command(line)).exec();
    match error.kind() {
        io::ErrorKind::NotFound => anyhow!(
            "there is no {PROGRAM} beside mcctl or on PATH, and `mcctl bench` starts it: build it with \
             `cargo build --release --bin {PROGRAM}` and put it beside mcctl"
        ),
        _ => anyhow!("cannot start {}: {error}", program.display()),
    }
}

/// Returns the arguments of a line without the program and without the command. The command is the first `bench` before which
/// all are complete flags: another may be the value of a flag.
fn without_command(line: &[OsString]) -> impl Iterator<Item = &OsString> {
    let is_command = |at: &usize| line[*at] == "bench" && Before::try_parse_from(&line[..*at]).is_ok();
    let command = (1..line.len()).find(is_command);
    line.iter().enumerate().skip(1).filter(move |(at, _)| Some(*at) != command).map(|(_, arg)| arg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_command_is_handed_over() {
        let handed = |line: &str| {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            without_command(&line).map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(handed("mcctl bench put --size 1mb --json"), "put --size 1mb --json");
        assert_eq!(handed("mcctl --json --masters a,b bench get"), "--json --masters a,b get");
        assert_eq!(handed("mcctl --tenant bench bench put bench"), "--tenant bench put bench");
        assert_eq!(handed("mcctl bench"), "");
    }
}
