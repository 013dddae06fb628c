//! `mcctl`: run, watch, use and measure a pool from one executable.
mod workload;
fn main() {}
