//! Committed entries become the index, and the index becomes snapshots: openraft's state machine, and when a snapshot is
//! taken. The machine imports the index, the snapshots' task the machine.

pub(crate) mod index;
pub(crate) mod snapshot_limits;
pub(crate) mod state_machine;
pub(crate) mod take_snapshots;
