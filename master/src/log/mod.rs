//! The Raft log.
