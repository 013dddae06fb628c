//! The log on sled and in memory: crashes, segments, openraft's own suite.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

#[path = "../common/mod.rs"]
mod common;
mod crash;
mod memory;
mod suite;
