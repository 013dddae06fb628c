//! `mcctl` without a pool: what it says and which exit code it ends with.

use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Nothing listens on the discard port of loopback.
const NOBODY: &str = "127.0.0.1:9";

fn mcctl(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcctl"));
    command.args(args).env_remove("MC_MASTERS").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_so_on_standard_error() {
    for args in [&["put", "key"][..], &["no-such-command"], &["run", "queen"]] {
        let output = mcctl(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn with_json_what_fails_is_one_document_with_an_error_too() {
    for (line, part) in [
        ("put key --json", "<FILE>"),
        ("no-such-command -o json", "no-such-command"),
        ("--json run master", "mcctl run master"),
        ("get key - --json", "standard output"),
        ("put key /no/such/file --json", "/no/such/file"),
        ("playground --trace /no/such/trace --json", "/no/such/trace"),
    ] {
        let output = mcctl(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{line}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|why| panic!("{line}: {why}: {}", text(&output.stdout)));
        let error = json["error"].as_str().unwrap_or_else(|| panic!("{line}: {json}"));
        assert!(error.contains(part) && !error.contains("Usage"), "{line}: {error}");
        assert_eq!(
            (&json["code"], &json["outcome"]),
            (&serde_json::Value::Null, &"definite".into()),
            "{line}"
        );
        assert!(!output.stderr.is_empty(), "{line}: people are told on standard error");
    }
}

#[test]
fn what_is_wrong_with_the_connection_is_said_once() {
    for (line, part) in [
        ("--masters a:b:c ls", "is not an address"),
        ("--rdma-devices no-such-device ls", "RDMA was asked for"),
    ] {
        let output = mcctl(&line.split(' ').collect::<Vec<_>>());
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.matches(part).count()), (Some(2), 1), "{line}: {said}");
        let (_, reason) = said.trim_end().rsplit_once(": ").unwrap();
        assert_eq!(said.matches(reason).count(), 1, "{line}: {said}");
    }
}

#[test]
fn status_of_nobody_is_down_and_still_one_json_document() {
    let output = mcctl(&["--masters", NOBODY, "status", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["health"], "down");
    assert_eq!(json["leader"], serde_json::Value::Null);
    assert_eq!(json["masters"][0]["addr"], NOBODY);
    assert_eq!(json["masters"][0]["role"], "unreachable");
}

#[test]
fn a_command_without_a_leader_says_once_that_it_waits_then_ends_with_2() {
    let output = mcctl(&["--masters", NOBODY, "--timeout", "3s", "exist", "key", "-o", "json"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert_eq!(said.matches("waiting").count(), 1, "{said}");
    assert!(said.contains(NOBODY) && said.contains("mcctl status"), "what, where and what next: {said}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["error"].as_str().unwrap().contains("no leader"), "{json}");
    assert_eq!((&json["code"], &json["outcome"]), (&"NO_LEADER".into(), &"definite".into()), "{json}");
}

#[test]
fn objects_that_cannot_travel_are_refused_before_anything_is_asked() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let output = mcctl(&["--masters", NOBODY, "put", "key", empty.path().to_str().unwrap()]);
    assert_eq!((output.status.code(), text(&output.stderr).contains("empty")), (Some(2), true));
    let output = mcctl(&["--masters", NOBODY, "put", "key", "/no/such/file"]);
    assert_eq!((output.status.code(), text(&output.stderr).contains("/no/such/file")), (Some(2), true));
    let output = mcctl(&["--masters", NOBODY, "get", "key", "-", "--json"]);
    assert_eq!(output.status.code(), Some(2), "the bytes and the document can't share standard output");
}

/// The command and where its output goes.
fn writing_to(args: &[&str], out: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcctl"));
    command.args(args).env_remove("MC_MASTERS").stdout(out).output().unwrap()
}

#[test]
fn a_command_whose_output_is_lost_fails() {
    for line in ["completion bash", "completion bash --json", "--help", "--version", "run master --help"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = writing_to(&line.split(' ').collect::<Vec<_>>(), full);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains("cannot write to standard output: No space left"), "{line}: {said}");
    }
}

#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    for line in ["completion bash", "--help", "run master --help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = writing_to(&line.split(' ').collect::<Vec<_>>(), writer);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{line}");
    }
}

#[test]
fn a_quota_is_set_by_at_least_one_limit() {
    let output = mcctl(&["--masters", NOBODY, "tenants", "set", "team"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--bytes"), "{}", text(&output.stderr));
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = mcctl(&["completion", shell]);
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("playground"), "{shell}");

        let as_json = mcctl(&["completion", shell, "--json"]);
        assert!(as_json.status.success());
        let json: serde_json::Value = serde_json::from_slice(&as_json.stdout).unwrap();
        assert_eq!(json["shell"], shell);
        assert_eq!(json["script"].as_str().unwrap().trim_end(), text(&output.stdout).trim_end(), "{shell}");
    }
}

#[test]
fn help_goes_to_standard_output_without_colour() {
    let output = mcctl(&["--help"]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    assert!(help.contains("Exit codes") && help.contains("MC_MASTERS") && !help.contains('\x1b'), "{help}");
}
