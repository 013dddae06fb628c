//! A bench as a user runs it, on a pool of its own.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

#[test]
fn a_put_of_one_key_is_told_in_parts_that_the_masters_measured() {
    let dir = TempDir::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_mcctl"))
        .args([
            "bench",
            "put",
            "--threads",
            "1",
            "--size",
            "4kb",
            "--keys",
            "50",
            "--duration",
            "500ms",
            "--json",
        ])
        .arg("--data-dir")
        .arg(dir.path())
        .env_remove("MC_MASTERS")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["failed"], &report["wrong"]), (&0.into(), &0.into()), "{report}");

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
