//! mcctl as its users run it.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod bench;
mod command_line;
mod monitoring;
mod objects;
mod playground;
mod reference;
mod security;
