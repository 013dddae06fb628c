//! The playground as a user runs it: real processes, a real `kill -9`, and nothing left behind however it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// `dir` owns what the run leaves behind: logs after a loss, everything after a `kill -9`.
fn playground(dir: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcctl"));
    command.args(["playground", "--puts", "2000", "--data-dir"]).arg(dir.path()).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// The processes that `pid` has started and not yet reaped.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

/// Waits until none of `pids` runs.
fn wait_gone(pids: &[u32]) {
    let start = Instant::now();
    let alive = |pid: &&u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie that nobody has reaped runs no more.
        !stat.is_empty() && !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z')
    };
    while let Some(pid) = pids.iter().find(alive) {
        assert!(start.elapsed() < LIMIT, "process {pid} was left behind");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until `child` has its five processes running.
fn wait_children(child: &mut Child) -> Vec<u32> {
    let start = Instant::now();
    loop {
        let pids = children(child.id());
        if pids.len() == 5 {
            return pids;
        }
        assert!(child.try_wait().unwrap().is_none() && start.elapsed() < LIMIT, "it never had five children");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Standard output, which is one JSON document and nothing else.
fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|why| panic!("{why}: {}", String::from_utf8_lossy(&output.stdout)))
}

/// The report of a run that must have gone well.
fn survived(output: &Output) -> Value {
    let report = document(output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert_eq!((&report["lost"], &report["wrong"]), (&0.into(), &0.into()), "{report}");
    assert!(report["acked"].as_u64().unwrap() >= 4_000, "blocks and records: {report}");
    assert!(report["old_keys_read"].as_u64().unwrap() >= 1_000, "{report}");
    assert!(report["evicted"].as_u64().unwrap() > 500, "the pool is too small: {report}");
    for ratio in ["hit_ratio", "lru"] {
        assert!((0.01..1.0).contains(&report[ratio].as_f64().unwrap()), "{ratio}: {report}");
    }
    assert!(report["failover_ms"].as_f64().unwrap() > 0.0, "{report}");
    assert_ne!(report["leader_before"], report["leader_after"], "{report}");
    let pid = report["killed_pid"].as_u64().unwrap();
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the killed leader is gone");
    report
}

/// A trace of so many requests, each for block 0, the ten of the request before, and ten that nothing has asked for yet.
fn trace(dir: &TempDir, requests: u64) -> PathBuf {
    let lines = (0..requests).map(|n| {
        let blocks: Vec<_> = std::iter::once(0).chain((n.max(1) - 1) * 10 + 1..=(n + 1) * 10).collect();
        format!("{{\"timestamp\": {}, \"hash_ids\": {blocks:?}}}\n", n * 250)
    });
    let path = dir.path().join("trace.jsonl");
    fs::write(&path, lines.collect::<String>()).unwrap();
    path
}

#[test]
fn the_leader_dies_under_load_and_every_acknowledged_byte_lives() {
    let output = playground(&TempDir::new().unwrap(), &["--once", "--json"]).output().unwrap();
    assert_eq!(survived(&output)["workload"], "generated");
}

#[test]
fn a_trace_is_replayed_through_the_death_of_the_leader() {
    let dir = TempDir::new().unwrap();
    let path = trace(&dir, 200);
    let output = playground(&dir, &["--once", "--json", "--trace", path.to_str().unwrap()]).output().unwrap();
    assert_eq!(survived(&output)["workload"], "trace");
}

#[test]
fn a_trace_that_is_too_short_is_refused_before_anything_starts() {
    let dir = TempDir::new().unwrap();
    let path = trace(&dir, 199);
    let output = playground(&dir, &["--once", "--json", "--trace", path.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let document = document(&output);
    let error = document["error"].as_str().unwrap_or_else(|| panic!("{document}"));
    for part in [path.to_str().unwrap(), "1991 different blocks", "2000 puts", "--puts"] {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [path], "it made no directory for a pool");
}

/// Runs the playground and harms its pool after the last put and before the check. `harm` gets the addresses of the
/// masters and the pids of the stores.
fn harmed(harm: impl FnOnce(&[String], &[i32])) -> Value {
    let dir = TempDir::new().unwrap();
    let mut child = playground(&dir, &["--once", "--json"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let (mut masters, mut stores) = (Vec::new(), Vec::new());
    for line in lines.by_ref() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["master", _, address, "pid", _] => masters.push(address.to_owned()),
            ["store", _, _, "pid", pid, ..] => stores.push(pid.trim_end_matches(',').parse().unwrap()),
            _ => {}
        }
        if line.contains("blocks put,") {
            break;
        }
    }
    send(&child, Signal::STOP);
    harm(&masters, &stores);
    send(&child, Signal::CONT);
    lines.for_each(drop);
    let output = child.wait_with_output().unwrap();
    let report = document(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    report
}

/// A check that can't fail proves nothing: here bytes really get lost, with the store that held them.
#[test]
fn lost_bytes_are_counted_and_end_with_1() {
    let report = harmed(|_, stores| {
        kill_process(Pid::from_raw(stores[0]).unwrap(), Signal::KILL).unwrap();
    });
    assert!(report["lost"].as_u64().unwrap() > 0, "{report}");
}

/// To the check, an object that was removed is one that the masters forgot.
#[test]
fn each_record_that_the_masters_forget_is_a_loss() {
    let mut removed = Value::Null;
    let report = harmed(|masters, _| {
        let output = Command::new(env!("CARGO_BIN_EXE_mcctl"))
            .args(["rm", "--regex", "^playground/generated-records/7", "--force", "--json"])
            .args(["--masters", &masters.join(",")])
            .output()
            .unwrap();
        removed = document(&output)["removed"].clone();
    });
    assert!(removed.as_u64().unwrap() > 100, "{removed}");
    assert_eq!((&report["lost"], &report["wrong"]), (&removed, &0.into()), "{report}");
}

#[test]
fn it_stays_up_with_its_addresses_until_it_is_interrupted() {
    let dir = TempDir::new().unwrap();
    let mut child = playground(&dir, &[]).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let masters = lines
        .map(|line| line.trim().to_owned())
        .find_map(|line| line.strip_prefix("export MC_MASTERS=").map(str::to_owned))
        .expect("it prints how to reach it");
    let pids = wait_children(&mut child);
    let status = Command::new(env!("CARGO_BIN_EXE_mcctl"))
        .args(["status", "--json"])
        .env("MC_MASTERS", masters)
        .output()
        .unwrap();
    assert_eq!(
        status.status.code(),
        Some(0),
        "the killed master is back: {}",
        String::from_utf8_lossy(&status.stdout)
    );
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(0), "Ctrl-C is how it ends");
    wait_gone(&pids);
}

#[test]
fn no_process_is_left_behind_however_it_ends() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let dir = TempDir::new().unwrap();
        let mut child = playground(&dir, &["--once", "--json"]).spawn().unwrap();
        let pids = wait_children(&mut child);
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        if signal == Signal::KILL {
            assert!(!output.status.success(), "{}", output.status);
        } else {
            assert_eq!(output.status.code(), Some(130), "{signal:?}");
            assert_eq!(document(&output)["error"], "interrupted", "{signal:?}");
        }
        wait_gone(&pids);
    }
}
