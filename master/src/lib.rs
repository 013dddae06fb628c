//! The replicated index of mc.
//!
//! - [`state`]: the pure state machine; every replica applies the same commands and holds the same index.
//! - [`log`]: the Raft log on sled, and its in-memory model.
//! - [`identity`]: who this master is, on disk.
//! - [`peers`], [`formation`]: how empty masters that list each other become one cluster, once.
//! - [`raft`]: the types that bind openraft to both.

pub mod formation;
pub mod identity;
pub mod log;
pub mod peers;
pub mod raft;
pub mod state;
