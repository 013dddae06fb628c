use std::fs::File;
use std::io::Write as _;

/// Prints a line of JSON and appends it to the file that `MC_TEST_REPORT` names. The file is needed because the output
/// of a test that passes is captured.
pub fn report(line: &serde_json::Value) {
    println!("{line}");
    if let Some(path) = std::env::var_os("MC_TEST_REPORT") {
        let mut file = File::options().create(true).append(true).open(path).expect("MC_TEST_REPORT");
        // Write the line at once, so that lines of concurrent tests stay whole.
        file.write_all(format!("{line}\n").as_bytes()).expect("MC_TEST_REPORT can be written");
    }
}

/// Reports why the test, or a part of it, can't run on this machine. `.ci/run` fails on such a report.
pub fn passed_over(why: &str) {
    report(&serde_json::json!({ "passed_over": why, "test": std::thread::current().name() }));
}
