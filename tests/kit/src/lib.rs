//! Helpers for the tests of any crate. They depend on `mc-net` and `mc-process` alone, so that the tests of a master do not build the
//! client.
//!
//! The helpers panic where a test would: their errors are the test's failure.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod daemon;
mod executable;
mod http;
mod links;
mod not_served;
mod ports;
mod report;
mod seeded;
mod wait;

pub use daemon::Daemon;
pub use executable::{assert_refused, bare_command, printed_config, setting, unit_arguments};
pub use http::{http_get, is_ready};
pub use links::{Link, Links, STORES_AT};
pub use ports::Ports;
pub use report::{passed_over, report};
pub use seeded::Seeded;
pub use wait::{eventually, until, until_within};
