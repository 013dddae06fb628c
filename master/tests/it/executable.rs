//! `mc-master` as an executable: what it prints, what it refuses, and how it ends.

use mc_process::http::request;
use mc_testkit::{
    Daemon, Ports, assert_refused, bare_command, eventually, http_get, is_ready, printed_config, setting,
    unit_arguments, until,
};
use rustix::process::{Pid, Signal, kill_process};

const ANY: &str = "127.0.0.1:0";
const MASTER: &str = env!("CARGO_BIN_EXE_mc-master");

#[test]
fn the_printed_configuration_says_where_every_value_is_from_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let printed = printed_config(bare_command(MASTER, dir.path()).args(["--peers", "a,b,c"]));
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
    let printed =
        printed_config(bare_command(MASTER, dir.path()).envs(environment).args(["--listen", "127.0.0.1:21"]));
    assert_eq!(setting(&printed, "listen"), ("127.0.0.1:21", "flag"));
    assert_eq!(setting(&printed, "raft-listen"), ("127.0.0.1:12", "env MC_RAFT_LISTEN"));
    assert_eq!(setting(&printed, "peers"), ("f1,f2,f3", "file mc.toml"));
    assert_eq!(setting(&printed, "http-listen"), ("0.0.0.0:9003", "default"));
}

#[test]
fn the_systemd_unit_has_a_command_line_that_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = bare_command(MASTER, dir.path());
    let printed = printed_config(command.args(unit_arguments("mc-master")).envs([("MC_PEERS", "a,b,c")]));
    assert_eq!(setting(&printed, "data-dir"), ("/var/lib/mc/master", "flag"));
    assert_eq!(setting(&printed, "peers"), ("a,b,c", "env MC_PEERS"));
}

#[test]
fn what_can_not_work_is_one_sentence_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--pears", "a,b,c"][..], "'--peers'"),
        (&["--single", "--peers", "a"], "'--peers"),
        (&["--peers", "a,b,a"], "--peers names a:50055 twice"),
        (&["--peers", "a,b:port"], "--peers: `b:port` is not an address"),
        (
            &["--single", "--metadata-listen", "8080"],
            "--metadata-listen `8080` is not an address to listen on",
        ),
        (&["--single", "--listen", "localhost"], "--listen `localhost` is not an address to listen on"),
        (&["--single", "--config", "no.toml"], "cannot read the configuration file no.toml"),
    ] {
        assert_refused(bare_command(MASTER, dir.path()).args(args), words);
    }
}

#[tokio::test]
async fn the_metadata_port_answers_before_there_is_a_cluster_and_serves_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let peers = ["127.0.0.1:1", "127.0.0.1:2"];
    let mut ports = Ports::default();
    let raft = ports.address();
    let list = [&*raft, peers[0], peers[1]].join(",");
    let args = ["--peers", &list, "--raft-listen", &raft, "--listen", ANY, "--http-listen", ANY];
    let args = [&args[..], &["--metadata-listen", ANY]].concat();
    let mut master = Daemon::start(MASTER, &dir.path().join("master"), &args);
    let address = master.address("metadata").await;
    let get = async |path: &str| http_get(&address, path).await.unwrap();
    assert_eq!(get("/metadata").await.0, 400);
    let (status, why) = get("/metadata?key=a").await;
    assert_eq!((status, &*why), (503, "this master belongs to no cluster yet\n"));
    assert_eq!(get("/health").await, (200, "OK".to_owned()));
    for path in ["/status", "/metrics", "/readyz"] {
        assert_eq!(get(path).await.0, 404, "{path}");
    }
    assert_eq!(master.terminate().await.code(), Some(0), "{}", master.output());
}

#[tokio::test]
async fn the_metadata_port_serves_the_table_of_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--single", "--listen", ANY, "--raft-listen", ANY, "--http-listen", ANY];
    let args = [&args[..], &["--metadata-listen", ANY]].concat();
    let mut master = Daemon::start(MASTER, &dir.path().join("master"), &args);
    let (http, metadata) = (master.address("http").await, master.address("metadata").await);
    until("the master leads", async || is_ready(&http).await).await;
    for (method, address, answer) in [
        ("PUT", &http, (200, "metadata updated\n")),
        ("GET", &metadata, (200, "")),
        ("DELETE", &metadata, (200, "metadata deleted\n")),
        ("GET", &http, (404, "metadata not found\n")),
    ] {
        let (status, text) = request(method, address, "/metadata?key=a").await.unwrap();
        assert_eq!((status, &*text), answer, "{method} at {address}");
    }
}

#[tokio::test]
async fn metrics_have_both_names_where_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["--single", "--listen", ANY, "--raft-listen", ANY, "--http-listen", ANY, "--mooncake-metrics"];
    let mut master = Daemon::start(MASTER, &dir.path().join("master"), &args);
    let http = master.address("http").await;
    until("the master leads", async || is_ready(&http).await).await;
    let (_, page) = http_get(&http, "/metrics").await.unwrap();
    for line in ["mc_objects 0", "master_key_count 0"] {
        assert_eq!(page.lines().filter(|shown| *shown == line).count(), 1, "{line} in\n{page}");
    }
    let (_, page) = http_get(&http, "/metrics?compat=mooncake").await.unwrap();
    assert!(!page.contains("mc_objects"), "{page}");
}

#[tokio::test]
async fn the_log_sums_the_pool_up_where_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["--single", "--listen", ANY, "--raft-listen", ANY, "--http-listen", ANY, "--metrics-log", "1s"];
    let mut master = Daemon::start(MASTER, &dir.path().join("master"), &args);
    let state = |state: &str| {
        format!(
            "INFO Master Admin Metrics: role={state}, master={{Mem Storage: 0 B / 0 B | Keys: 0 | Clients: 0}}"
        )
    };
    let leads = state("leader, state=serving, service_ready=true");
    until("a second line of a leader", async || master.output().matches(&*leads).count() >= 2).await;
    assert_eq!(master.terminate().await.code(), Some(0), "{}", master.output());
}

#[tokio::test]
async fn a_master_goes_on_and_ends_when_nobody_reads_what_it_logs() {
    let dir = tempfile::tempdir().unwrap();
    let mut ports = Ports::default();
    let http = ports.address();
    let mut command = bare_command(MASTER, dir.path());
    command.args([
        "--single",
        "--listen",
        ANY,
        "--raft-listen",
        ANY,
        "--http-listen",
        &http,
        "--log",
        "trace",
    ]);
    // Both streams are one pipe, as with `2>&1 |`.
    let (unread, pipe) = std::io::pipe().unwrap();
    let mut master = Killed(command.stdout(pipe.try_clone().unwrap()).stderr(pipe).spawn().unwrap());
    drop(command);
    until("lines are dropped", async || {
        let page = http_get(&http, "/metrics").await.map(|(_, page)| page).unwrap_or_default();
        let mut dropped =
            page.lines().filter_map(|line| line.strip_prefix("mc_master_log_lines_dropped_total "));
        dropped.any(|lines| lines != "0")
    })
    .await;
    // Every request and every entry logs lines.
    for n in 0..20 {
        let path = format!("/metadata?key={n}");
        assert_eq!(request("PUT", &http, &path).await.unwrap().0, 200);
        assert_eq!(request("GET", &http, &path).await.unwrap().0, 200);
    }
    kill_process(Pid::from_child(&master.0), Signal::TERM).unwrap();
    let status = eventually("its end", async || master.0.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(0));
    drop(unread);
}

/// A child that is killed with its test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only when it is dead and reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_cluster_of_one_becomes_ready_and_ends_with_0_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("master");
    let args = ["--single", "--listen", ANY, "--raft-listen", ANY, "--http-listen", ANY];
    let mut master = Daemon::start(MASTER, &dir, &args);
    let http = master.address("http").await;
    until("the master is ready", async || is_ready(&http).await).await;
    assert!(dir.join("mc-data/master").is_dir(), "where the printed default says");
    assert_eq!(master.terminate().await.code(), Some(0), "{}", master.output());
}
