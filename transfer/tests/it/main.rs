//! The TCP transport, both ends over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod bounds;
mod bytes;
#[path = "../common/mod.rs"]
mod common;
mod fence;
mod fence_room;
mod grants;
mod hostile;
mod proofs;
mod raw;
mod sharing;
mod tls;
