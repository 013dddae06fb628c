//! Committed entries become the index, and the index becomes snapshots: openraft's state machine, and when a snapshot is
//! taken. The index imports `holds`, the state machine imports `audit` and the index, and the task that takes snapshots
//! imports the state machine.

pub(crate) mod audit;
pub(crate) mod holds;
pub(crate) mod index;
pub(crate) mod snapshot_limits;
pub(crate) mod state_machine;
pub(crate) mod take_snapshots;
