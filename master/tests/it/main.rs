//! Whole masters over real sockets, and the executable.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod data_disk;
mod executable;
mod master_support;
mod payload_limits;
