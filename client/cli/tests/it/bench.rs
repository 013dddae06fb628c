//! `mcctl bench` starts `mc-bench`, from beside itself or from PATH.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Puts mcctl alone into a folder of its own.
fn alone() -> TempDir {
    let built = Path::new(env!("CARGO_BIN_EXE_mcctl"));
    let dir = TempDir::new_in(built.parent().unwrap()).unwrap();
    fs::hard_link(built, dir.path().join("mcctl")).unwrap();
    dir
}

/// Writes an `mc-bench` that says where it is and what it was given, and ends with 7.
fn write_bench(dir: &Path) {
    let path = dir.join("mc-bench");
    fs::write(&path, "#!/bin/sh\necho \"$0: $*\"\ncat\nexit 7\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn arguments_streams_and_exit_code_are_those_of_mc_bench() {
    let (dir, elsewhere) = (alone(), TempDir::new().unwrap());
    write_bench(elsewhere.path());
    let path = format!("{}:/usr/bin:/bin", elsewhere.path().display());
    for place in [elsewhere.path(), dir.path()] {
        // The one beside mcctl comes first.
        write_bench(place);
        let mut bench = Command::new(dir.path().join("mcctl"))
            .args(["--json", "--tenant", "bench", "bench", "put", "--size", "1mb"])
            .env("PATH", &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        bench.stdin.take().unwrap().write_all(b"given").unwrap();
        let output = bench.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let program = place.join("mc-bench");
        assert_eq!(said, format!("{}: --json --tenant bench put --size 1mb\ngiven", program.display()));
        assert_eq!(output.status.code(), Some(7));
    }
}

#[test]
fn without_mc_bench_the_command_that_builds_it_is_named() {
    let dir = alone();
    let output = Command::new(dir.path().join("mcctl"))
        .args(["bench", "put", "--json"])
        .env("PATH", dir.path())
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = json["error"].as_str().unwrap();
    assert!(error.contains("cargo build --release --bin mc-bench"), "{error}");
    assert!(!output.stderr.is_empty(), "people are told on standard error");
}
