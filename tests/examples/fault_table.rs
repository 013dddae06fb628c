//! The table of docs/fault-matrix.md, from what the rows of the matrix have printed (`MC_TEST_REPORT`), on standard input.
//!
//!     cargo run -p mc-tests --example fault_table < matrix.jsonl

use std::io::BufRead as _;

fn main() {
    let lines = std::io::stdin().lock().lines().map(|line| line.expect("text"));
    let mut rows: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(&line).expect("a line of JSON for each row")).collect();
    // The same file says what could not be run here.
    rows.retain(|line| line["fault"].is_string());
    rows.sort_by_key(|row| row["test"].to_string());
    println!(
        "| Fault | Role | Runs | Without service: median, max | Acknowledged puts | Lost | Wrong | A store suspected | Test |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut runs = 0;
    for row in &rows {
        runs += row["runs"].as_u64().unwrap_or_default();
        println!(
            "| {} | {} | {} | {:.0}, {:.0} ms | {} | {} | {} | {} | `{}` |",
            text(&row["fault"]),
            text(&row["role"]),
            row["runs"],
            row["median_ms"].as_f64().unwrap_or(f64::NAN),
            row["max_ms"].as_f64().unwrap_or(f64::NAN),
            row["acknowledged"],
            row["lost"],
            row["wrong"],
            if row["suspected"].as_bool() == Some(true) { "yes" } else { "no" },
            text(&row["test"]),
        );
    }
    println!("\n{} rows, {runs} rounds.", rows.len());
}
