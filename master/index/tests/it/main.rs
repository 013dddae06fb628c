//! The index as its users see it: commands in, responses and snapshots out.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod clearing;
mod codec;
mod determinism;
mod golden;
mod groups;
mod model;
mod own_stores;
mod scenarios;
#[path = "../support/mod.rs"]
mod support;
mod versions;
