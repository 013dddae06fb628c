//! `mc-master` as an executable: what it prints, what it refuses, and how it ends.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod master_support;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use master_support::eventually;
use rustix::process::{Pid, Signal, kill_process};

/// It runs in a folder of its own, and finds nothing in its environment.
fn mc_master(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mc-master"));
    command.current_dir(dir).env_clear();
    command
}

/// What `--print-config` prints.
fn printed(command: &mut Command) -> String {
    let output = command.arg("--print-config").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A setting's value and where it came from.
fn setting<'a>(printed: &'a str, name: &str) -> (&'a str, &'a str) {
    let value = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
    let (value, origin) = value.and_then(|line| line.split_once('"')).unwrap_or_else(|| panic!("{printed}"));
    (value, origin.trim_start().strip_prefix("# ").unwrap())
}

#[test]
fn the_printed_configuration_says_where_every_value_is_from_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let printed = printed(mc_master(dir.path()).args(["--peers", "a,b,c"]));
    assert_eq!(setting(&printed, "peers"), ("a,b,c", "flag"));
    for (name, value) in [
        ("listen", "0.0.0.0:50051"),
        ("raft-listen", "0.0.0.0:50055"),
        ("http-listen", "0.0.0.0:9003"),
        ("data-dir", "./mc-data/master"),
        ("log-sync", "fdatasync"),
    ] {
        assert_eq!(setting(&printed, name), (value, "default"));
    }
    assert!(!printed.contains("exit-on-stdin-eof"), "a hidden flag is listed: {printed}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "nothing is made");
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = "listen = \"127.0.0.1:1\"\nraft-listen = \"127.0.0.1:2\"\npeers = [\"f1\", \"f2\", \"f3\"]\n";
    std::fs::write(dir.path().join("mc.toml"), file).unwrap();
    let environment =
        [("MC_CONFIG", "mc.toml"), ("MC_LISTEN", "127.0.0.1:11"), ("MC_RAFT_LISTEN", "127.0.0.1:12")];
    let printed = printed(mc_master(dir.path()).envs(environment).args(["--listen", "127.0.0.1:21"]));
    assert_eq!(setting(&printed, "listen"), ("127.0.0.1:21", "flag"));
    assert_eq!(setting(&printed, "raft-listen"), ("127.0.0.1:12", "env MC_RAFT_LISTEN"));
    assert_eq!(setting(&printed, "peers"), ("f1,f2,f3", "file mc.toml"));
    assert_eq!(setting(&printed, "http-listen"), ("0.0.0.0:9003", "default"));
}

#[test]
fn what_can_not_work_is_one_sentence_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--pears", "a,b,c"][..], "'--peers'"),
        (&["--single", "--peers", "a"], "'--peers"),
        (&["--peers", "a,b,a"], "--peers names a:50055 twice"),
        (&["--peers", "a,b:port"], "--peers: `b:port` is not an address"),
        (&["--single", "--listen", "localhost"], "--listen `localhost` is not an address to listen on"),
        (&["--single", "--config", "no.toml"], "cannot read the configuration file no.toml"),
    ] {
        let Output { status, stdout, stderr } = mc_master(dir.path()).args(args).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{args:?}: {said}");
        assert!(stdout.is_empty(), "{args:?}");
        assert!(said.starts_with("error: ") && said.contains(words), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

/// Killed with its test, and when the test itself is killed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it is dead and reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_cluster_of_one_becomes_ready_and_ends_with_0_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = mc_master(dir.path());
    for flag in ["--listen", "--raft-listen", "--http-listen"] {
        command.args([flag, "127.0.0.1:0"]);
    }
    command.args(["--single", "--exit-on-stdin-eof"]).stdin(Stdio::piped());
    let mut master = Running(command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap());
    let http = eventually("its addresses in its log", async || {
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(master.0.try_wait().unwrap().is_none(), "it has ended: {said}");
        let (whole, _) = said.rsplit_once('\n')?;
        whole.split_whitespace().find_map(|word| word.strip_prefix("http=")).map(str::to_owned)
    })
    .await;
    eventually("a master that is ready", async || {
        let answer = mc_base::http::request("GET", &http, "/readyz").await;
        answer.is_ok_and(|(code, _)| code == 200).then_some(())
    })
    .await;
    assert!(dir.path().join("mc-data/master").is_dir(), "where the printed default says");

    kill_process(Pid::from_child(&master.0), Signal::TERM).unwrap();
    let status = eventually("its end", async || master.0.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(0), "{}", std::fs::read_to_string(&log).unwrap());
}
