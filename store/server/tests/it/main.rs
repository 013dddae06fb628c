//! Whole stores before masters that do what a test tells them, and the executable.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;
mod connections;
mod data;
mod executable;
mod kept;
mod link;
mod masters;
mod segments;
