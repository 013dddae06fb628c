use std::fs::File;
use std::io::Write as _;

/// Prints a line of JSON, and appends it to the file that `MC_TEST_REPORT` names: the output of a test that passes is
/// captured.
///
/// # Panics
/// When that file can't be written.
pub fn report(line: &serde_json::Value) {
    println!("{line}");
    if let Some(path) = std::env::var_os("MC_TEST_REPORT") {
        let mut file = File::options().create(true).append(true).open(path).expect("MC_TEST_REPORT");
        // One write, so that the lines of tests that run beside each other stay whole.
        file.write_all(format!("{line}\n").as_bytes()).expect("MC_TEST_REPORT can be written");
    }
}

/// The test, or a part of it, can't be run on this machine: says why. `.ci/run` fails on it.
pub fn passed_over(why: &str) {
    report(&serde_json::json!({ "passed_over": why, "test": std::thread::current().name() }));
}
