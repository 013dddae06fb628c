//! Each bench as a user runs it, on a pool of its own.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

/// One at a time: a bench needs the machine to itself.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `mc-bench` with these arguments; its document, and what it said beside that.
fn bench(line: &str) -> (Value, String) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().to_str().unwrap();
    bench_in_process(&format!("{line} --data-dir {path}"))
}

/// The same for a bench that starts no processes and so has no data directory.
fn bench_in_process(line: &str) -> (Value, String) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(env!("CARGO_BIN_EXE_mc-bench"))
        .args(line.split(' '))
        .arg("--json")
        .env_remove("MC_MASTERS")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{line}: {said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

/// The numbers of these names, each of which must be there.
fn figures<const N: usize>(report: &Value, names: [&str; N]) -> [f64; N] {
    names.map(|name| report[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report}")))
}

/// Asserts the figures that every load reports.
fn assert_rates(report: &Value, moves_bytes: bool) {
    let [ops, ops_s, seconds] = figures(report, ["ops", "ops_s", "seconds"]);
    assert!(ops > 0.0 && ops_s > 0.0 && seconds > 0.0, "{report}");
    let [p50, p99, max] = figures(report, ["p50_us", "p99_us", "max_us"]);
    assert!(0.0 < p50 && p50 <= p99 && p99 <= max, "{report}");
    for name in ["mib_s", "loopback_percent"] {
        assert_eq!(report[name].is_number(), moves_bytes, "{name}: {report}");
    }
    assert_eq!((&report["failed"], &report["wrong"]), (&0.into(), &0.into()), "{report}");
}

#[test]
fn every_load_tells_its_rates_and_how_long_its_calls_took() {
    for (kind, moves_bytes) in
        [("put", true), ("get", true), ("exist", false), ("lookup", false), ("mixed", true)]
    {
        let shape = "--single --threads 2 --batch 3 --size 64kb --keys 60 --duration 500ms";
        let (report, _) = bench(&format!("{kind} {shape}"));
        assert_eq!(report["bench"], kind);
        assert_eq!(figures(&report, ["threads", "batch", "size_bytes", "keys"]), [2.0, 3.0, 65_536.0, 60.0]);
        assert_rates(&report, moves_bytes);
    }
}

/// So many that most of them wait longer for a connection than a store may be silent.
#[test]
fn a_healthy_pool_fails_none_of_a_thousand_callers() {
    let (report, _) = bench("get --single --threads 1024 --size 1mb --keys 128 --duration 2s");
    assert_rates(&report, true);
}

#[test]
fn failovers_are_told_one_by_one_with_what_became_of_the_puts() {
    for signal in ["kill", "term"] {
        let (report, _) =
            bench(&format!("failover --rounds 1 --signal {signal} --threads 1 --batch 2 --size 4kb"));
        assert_eq!((&report["bench"], &report["signal"]), (&"failover".into(), &signal.into()), "{report}");
        let [rounds, threads, batch, size] = figures(&report, ["rounds", "threads", "batch", "size_bytes"]);
        assert_eq!([rounds, threads, batch, size], [1.0, 1.0, 2.0, 4_096.0], "{report}");
        let [median, max] = figures(&report, ["median_ms", "max_ms"]);
        assert!(median > 0.0 && median == max, "of one round: {report}");
        assert_eq!(report["rounds_ms"], serde_json::json!([max]), "{report}");
        assert!(report["acked"].as_u64().unwrap() > 0, "{report}");
        assert_eq!((&report["lost"], &report["wrong"]), (&0.into(), &0.into()), "{report}");
        figures(&report["machine"], ["loopback_mib_s", "memcpy_mib_s", "fdatasync_p50_us"]);
    }
}

#[test]
fn a_put_of_one_key_is_told_in_parts_that_the_masters_measured() {
    let (report, said) = bench("put --threads 1 --size 4kb --keys 50 --duration 500ms");
    assert_rates(&report, true);

    let parts = &report["parts"];
    let part = |name: &str| parts[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report}; {said}"));
    let sum: f64 = ["start_rpc", "start_commit", "transfer", "end_rpc", "end_commit", "client"]
        .iter()
        .map(|name| part(&format!("{name}_mean_us")))
        .sum();
    assert!((sum - part("put_mean_us")).abs() < 1.0, "the parts add up: {report}");
    // Only the start's and the end's own syncs are sure: a round's removal adds one now and then.
    assert!(part("fdatasyncs_a_put") >= 2.0, "{report}");
    for name in ["fdatasync_leader_mean_us", "fdatasync_followers_mean_us", "commit_alone_fdatasync_mean_us"]
    {
        assert!(part(name) > 0.0, "{name}: {report}");
    }
    assert!(part("commit_alone_p50_us") > 0.0 && part("commit_alone_mean_us") > 0.0, "{report}");
    assert!((part("bound_us") - 2.0 * part("commit_alone_p50_us") - 500.0).abs() < 1.0, "{report}");
    assert_eq!(parts["bound_met"], part("put_p50_us") <= part("bound_us"), "{report}");
    assert!(
        report["machine"]["fdatasync_p50_us"].as_f64().unwrap() > 0.0,
        "the disk alone, beside them: {report}"
    );
}

#[test]
fn the_allocator_is_told_by_workload() {
    for (workload, lowest) in [("kv", 0.99), ("paired", 0.99), ("uniform", 0.98), ("random", 0.92)] {
        let (report, _) = bench_in_process(&format!("allocator --workload {workload} --segments 1"));
        assert_eq!((&report["bench"], &report["workload"]), (&"allocator".into(), &workload.into()));
        let [average, worst] = figures(&report, ["utilization_avg", "utilization_min"]);
        assert!(lowest <= worst && worst <= average && average <= 1.0, "{report}");
        let [rate, objects, full] = figures(&report, ["allocs_per_s", "objects", "full"]);
        assert!(rate > 0.0 && objects > full && full > 0.0, "{report}");
        assert_eq!(report["sizes"].is_array(), workload == "uniform", "{report}");
    }
    let (report, _) = bench_in_process("allocator --segments 4 --replicas 3");
    assert_eq!(figures(&report, ["segments", "replicas"]), [4.0, 3.0]);
}

#[test]
fn a_full_pool_is_told_beside_one_with_room() {
    let (report, _) = bench("full --rounds 1 --duration 500ms --threads 4");
    let loads = report["loads"].as_array().unwrap();
    assert_eq!(loads.len(), 2, "{report}");
    for load in loads {
        let [room, full, percent] = figures(load, ["room_puts_s", "full_puts_s", "full_percent"]);
        // The rates are rounded to tenths, and may be low on a busy machine.
        assert!(room > 0.0 && full > 0.0 && (percent - 100.0 * full / room).abs() < 1.0, "{report}");
        let [evicted, used] = figures(load, ["evicted", "used_before_first_wait"]);
        assert!(evicted > 0.0 && used > 0.9 && used <= 1.0, "{report}");
        assert_eq!((&load["room_failed"], &load["full_failed"]), (&0.into(), &0.into()), "{report}");
    }
    figures(&report["machine"], ["loopback_mib_s", "memcpy_mib_s", "fdatasync_p50_us"]);
}

#[test]
fn a_wrong_line_is_refused_in_words_and_in_one_document() {
    for (line, part) in [
        ("--json", "command"),
        ("put --size 1.5gb --output=json", "1.5gb"),
        ("failover --masters 127.0.0.1:9 --json", "--masters"),
        ("full --masters 127.0.0.1:9 --json", "--masters"),
        ("allocator --segments 2 --replicas 3 --json", "--segments 2"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_mc-bench"))
            .args(line.split(' '))
            .env_remove("MC_MASTERS")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = json["error"].as_str().unwrap();
        assert!(error.contains(part) && !error.contains("Usage"), "{line}: {error}");
        assert_eq!((&json["code"], &json["outcome"]), (&Value::Null, &"definite".into()), "{line}");
        assert!(!output.stderr.is_empty(), "{line}: people are told on standard error");
    }
}
