//! The replicated index of mc.
//!
//! - [`state`]: the pure state machine; every replica applies the same commands and holds the same index.
//! - [`log`]: the Raft log on sled, and its in-memory model.
//! - [`raft`]: the types that bind openraft to both.

pub mod log;
pub mod raft;
pub mod state;
