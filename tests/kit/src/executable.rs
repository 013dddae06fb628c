use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

/// Returns a command that runs an executable in `dir`, with an empty environment.
pub fn bare_command(path: impl AsRef<OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(path);
    command.current_dir(dir).env_clear();
    command
}

/// Runs the command with `--print-config`, and returns its output.
pub fn printed_config(command: &mut Command) -> String {
    let output = command.arg("--print-config").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a setting's value in a [`printed_config`], and the layer that it came from.
pub fn setting<'a>(printed: &'a str, name: &str) -> (&'a str, &'a str) {
    let value = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
    let (value, origin) = value.and_then(|line| line.split_once('"')).unwrap_or_else(|| panic!("{printed}"));
    (value, origin.trim_start().strip_prefix("# ").unwrap())
}

/// Asserts that the command refuses to run: it prints one sentence that contains `words`, and ends with exit code 2.
#[track_caller]
pub fn assert_refused(command: &mut Command, words: &str) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{command:?}: {said}");
    assert!(stdout.is_empty(), "{command:?}");
    assert!(said.starts_with("error: ") && said.contains(words), "{command:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{command:?}: {said}");
}

/// Returns the arguments with which a unit of `deploy/systemd` starts its executable.
pub fn unit_arguments(executable: &str) -> Vec<String> {
    let path = format!("{}/../../deploy/systemd/{executable}.service", env!("CARGO_MANIFEST_DIR"));
    let unit = std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{path}: {err}"));
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let mut words = start.split_whitespace();
    assert_eq!(words.next(), Some(&*format!("/usr/bin/{executable}")), "{path}");
    words.map(str::to_owned).collect()
}
