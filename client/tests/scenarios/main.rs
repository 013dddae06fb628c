//! The client library against fake masters over loopback and stores in memory: what must hold when things fail.
//!
//! The masters speak real gRPC; each can be killed, stopped, deposed, and told which call to lose. Nothing here
//! asserts how long something took, only that what a promise bounds came before what would come much later.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod blocking;
mod bursts;
mod doubtful;
mod get_sessions;
mod gets;
mod leaders;
mod limits;
mod listing;
mod local_only;
mod outcomes;
mod principals;
mod put_sessions;
mod puts;
mod ranges;
mod raw;
mod readers;
mod runtimes;
mod spans;
mod support;
mod tokens;
mod writers;
