//! `mc-store` as an executable: what it prints, what it refuses, and a pool of it and `mc-master`.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const STORE: &str = env!("CARGO_BIN_EXE_mc-store");

/// It runs in a folder of its own, and finds nothing in its environment.
fn executable(path: impl AsRef<Path>, dir: &Path) -> Command {
    let mut command = Command::new(path.as_ref());
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
fn the_printed_configuration_says_where_every_value_is_from_and_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // 50 GB do not fit into 4 GiB of addresses.
    let shell = ["-c", "ulimit -v 4194304 && exec \"$0\" \"$@\"", STORE];
    let printed = printed(executable("/bin/sh", dir.path()).args(shell).args(["--segment", "50gb"]));
    assert_eq!(setting(&printed, "segment"), ("50gb", "flag"));
    for (name, value) in [
        ("masters", "127.0.0.1:50051"),
        ("listen", "0.0.0.0:50060"),
        ("http-listen", "0.0.0.0:9300"),
        ("data-dir", "./mc-data/store"),
    ] {
        assert_eq!(setting(&printed, name), (value, "default"));
    }
    assert!(!printed.contains("fault-http"), "a hidden flag is listed: {printed}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "nothing is made");
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = "segment = [\"1gb\", \"2gb\"]\nmasters = \"f\"\ndata-dir = \"from-the-file\"\n";
    fs::write(dir.path().join("mc.toml"), file).unwrap();
    let environment = [("MC_CONFIG", "mc.toml"), ("MC_MASTERS", "a,b,c"), ("MC_SEGMENT", "3gb")];
    let printed = printed(executable(STORE, dir.path()).envs(environment).args(["--segment", "50gb"]));
    assert_eq!(setting(&printed, "segment"), ("50gb", "flag"));
    assert_eq!(setting(&printed, "masters"), ("a,b,c", "env MC_MASTERS"));
    assert_eq!(setting(&printed, "data-dir"), ("from-the-file", "file mc.toml"));
    assert_eq!(setting(&printed, "listen"), ("0.0.0.0:50060", "default"));
}

#[test]
fn what_can_not_work_is_one_sentence_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--segment", "1.5gb"][..], "`1.5gb` is not a size"),
        (&["--segment", "50gb", "--master", "a"], "'--masters'"),
        (&["--segment", "50gb", "--masters", "a:port"], "`a:port` is not an address"),
        (&["--segment", "1kb", "--listen", "127.0.0.1:0"], "--segment 1KiB is too small"),
        (&[], "--segment"),
    ] {
        let Output { status, stdout, stderr } = executable(STORE, dir.path()).args(args).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{args:?}: {said}");
        assert!(stdout.is_empty(), "{args:?}");
        assert!(said.starts_with("error: ") && said.contains(words), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

/// Killed with its test, and when the test itself is killed.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts it in a new folder, on free ports of loopback.
    fn start(path: impl AsRef<Path>, dir: PathBuf, args: &[&str]) -> Self {
        fs::create_dir(&dir).unwrap();
        let log = dir.join("log");
        let mut command = executable(path, &dir);
        command.args(args).arg("--exit-on-stdin-eof").stdin(Stdio::piped());
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The address that it logs under this name.
    async fn address(&mut self, name: &str) -> String {
        let name = format!("{name}=");
        eventually(&name, async || {
            let said = self.output();
            assert!(self.child.try_wait().unwrap().is_none(), "it has ended: {said}");
            let (whole, _) = said.rsplit_once('\n')?;
            whole.split_whitespace().find_map(|word| word.strip_prefix(&*name)).map(str::to_owned)
        })
        .await
    }

    /// SIGTERM, and its end.
    async fn terminate(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        eventually("its end", async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it is dead and reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again and again until there is something; fails after half a minute.
async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "waited 30 s in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The body of an answer of 200.
async fn get(address: &str, path: &str) -> Option<String> {
    let answer = mc_base::http::request("GET", address, path).await;
    answer.ok().filter(|(code, _)| *code == 200).map(|(_, body)| body)
}

/// Cargo puts it beside `mc-store` when it builds the workspace.
fn master() -> PathBuf {
    let path = Path::new(STORE).with_file_name("mc-master");
    assert!(path.is_file(), "no {}: build it first with `cargo build -p mc-master`", path.display());
    path
}

#[tokio::test]
async fn a_store_mounts_at_a_master_and_both_end_with_0_when_they_are_told_to() {
    const ANY: &str = "127.0.0.1:0";
    let dir = tempfile::tempdir().unwrap();
    let args = ["--single", "--listen", ANY, "--raft-listen", ANY, "--http-listen", ANY];
    let mut master = Running::start(master(), dir.path().join("master"), &args);
    let (clients, status) = (master.address("clients").await, master.address("http").await);
    eventually("a master that is ready", async || get(&status, "/readyz").await).await;

    let args = ["--segment", "2mb", "--masters", clients.as_str(), "--listen", ANY, "--http-listen", ANY];
    let mut store = Running::start(STORE, dir.path().join("store"), &args);
    let http = store.address("http").await;
    eventually("a store that is mounted", async || get(&http, "/readyz").await).await;
    let stores = eventually("a store that is alive to the master", async || {
        let status: serde_json::Value = serde_json::from_str(&get(&status, "/status").await?).unwrap();
        Some(status["stores"].clone()).filter(|stores| stores[0]["state"] == "alive")
    })
    .await;
    assert_eq!(stores[0]["capacity_bytes"], 2 << 20, "{stores}");

    assert_eq!(store.terminate().await.code(), Some(0), "{}", store.output());
    assert_eq!(master.terminate().await.code(), Some(0), "{}", master.output());
}
