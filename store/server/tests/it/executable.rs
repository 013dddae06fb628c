//! `mc-store` as an executable: what it prints, what it refuses, and a pool of it and `mc-master`.

use std::fs;
use std::path::{Path, PathBuf};

use mc_testkit::{
    Daemon, assert_refused, bare_command, eventually, http_get, printed_config, setting, unit_arguments,
};

const STORE: &str = env!("CARGO_BIN_EXE_mc-store");

#[test]
fn the_printed_configuration_says_where_every_value_is_from_and_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // 50 GB do not fit into 4 GiB of addresses.
    let shell = ["-c", "ulimit -v 4194304 && exec \"$0\" \"$@\"", STORE];
    let printed = printed_config(bare_command("/bin/sh", dir.path()).args(shell).args(["--segment", "50gb"]));
    assert_eq!(setting(&printed, "segment"), ("50gb", "flag"));
    for (name, value) in [
        ("masters", "127.0.0.1:50051"),
        ("listen", "0.0.0.0:50060"),
        ("http-listen", "0.0.0.0:9300"),
        ("data-dir", "./mc-data/store"),
    ] {
        assert_eq!(setting(&printed, name), (value, "default"));
    }
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "nothing is made");
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = "segment = [\"1gb\", \"2gb\"]\nmasters = \"f\"\ndata-dir = \"from-the-file\"\n";
    fs::write(dir.path().join("mc.toml"), file).unwrap();
    let environment = [("MC_CONFIG", "mc.toml"), ("MC_MASTERS", "a,b,c"), ("MC_SEGMENT", "3gb")];
    let printed =
        printed_config(bare_command(STORE, dir.path()).envs(environment).args(["--segment", "50gb"]));
    assert_eq!(setting(&printed, "segment"), ("50gb", "flag"));
    assert_eq!(setting(&printed, "masters"), ("a,b,c", "env MC_MASTERS"));
    assert_eq!(setting(&printed, "data-dir"), ("from-the-file", "file mc.toml"));
    assert_eq!(setting(&printed, "listen"), ("0.0.0.0:50060", "default"));
}

#[test]
fn the_systemd_unit_has_a_command_line_that_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = bare_command(STORE, dir.path());
    let printed = printed_config(command.args(unit_arguments("mc-store")).envs([("MC_SEGMENT", "50gb")]));
    assert_eq!(setting(&printed, "data-dir"), ("/var/lib/mc/store", "flag"));
    assert_eq!(setting(&printed, "segment"), ("50gb", "env MC_SEGMENT"));
}

#[test]
fn what_can_not_work_is_one_sentence_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--segment", "1.5gb"][..], "`1.5gb` is not a size"),
        (&["--segment", "50gb", "--master", "a"], "'--masters'"),
        (&["--segment", "50gb", "--masters", "a:port"], "`a:port` is not an address"),
        (&["--segment", "1kb", "--listen", "127.0.0.1:0"], "--segment: a segment of 1KiB is too small"),
        (&[], "--segment"),
    ] {
        assert_refused(bare_command(STORE, dir.path()).args(args), words);
    }
}

/// The body of an answer of 200.
async fn get(address: &str, path: &str) -> Option<String> {
    let answer = http_get(address, path).await;
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
    let mut master = Daemon::start(master(), &dir.path().join("master"), &args);
    let (clients, status) = (master.address("clients").await, master.address("http").await);
    eventually("a master that is ready", async || get(&status, "/readyz").await).await;

    let args = ["--segment", "2mb", "--masters", clients.as_str(), "--listen", ANY, "--http-listen", ANY];
    let mut store = Daemon::start(STORE, &dir.path().join("store"), &args);
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
