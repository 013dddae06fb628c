//! Committed entries become the index: openraft's state machine over it. Imports snapshots.

pub(crate) mod machine;
