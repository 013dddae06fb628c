//! The table of docs/fault-matrix.md, from what the rows of the matrix have printed (`MC_TEST_REPORT`), on standard input.
//!
//!     cargo run -p mc-tests --example fault_table < matrix.jsonl

use std::io::BufRead as _;

use serde_json::Value;

const HEADER: &str = "| Fault | Role | Promised: longest gap | Promised otherwise | Runs | Gap of the worst client: median, max \
    | Failed, unknown, local-only, false misses | Acknowledged puts | Ledger | Lost | Wrong | A store suspected | Test |";

fn main() {
    let lines = std::io::stdin().lock().lines().map(|line| line.expect("text"));
    let mut rows: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line).expect("a line of JSON for each row")).collect();
    // The same file says what could not be run here.
    rows.retain(|line| line["fault"].is_string());
    rows.sort_by_key(|row| row["test"].to_string());
    println!("{HEADER}\n|{}", "---|".repeat(13));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ms = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let mut runs = 0;
    for row in &rows {
        runs += row["runs"].as_u64().unwrap_or_default();
        let allowed = text(&row["allowed"]);
        println!(
            "| {} | {} | {:.0} ms | {} | {} | {:.0}, {:.0} ms | {}, {}, {}, {} | {} | {} | {} | {} | {} | `{}` |",
            text(&row["fault"]),
            text(&row["role"]),
            ms(&row["gap_ms"]),
            if allowed.is_empty() { "every call is answered" } else { &*allowed },
            row["runs"],
            ms(&row["median_ms"]),
            ms(&row["max_ms"]),
            row["failed"],
            row["unknown"],
            row["local_only"],
            row["false_misses"],
            row["acknowledged"],
            row["ledger"],
            row["lost"],
            row["wrong"],
            if row["suspected"].as_bool() == Some(true) { "yes" } else { "no" },
            text(&row["test"]),
        );
    }
    println!("\n{} rows, {runs} rounds.", rows.len());
}
