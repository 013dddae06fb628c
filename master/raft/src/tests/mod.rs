//! Whole nodes in one process, over real sockets on loopback, each with its own snapshots and a log in memory.

mod batches;
mod cluster;
mod distant;
mod faults;
mod held_index;
mod hostile;
mod lost_entries;
mod receiving;
mod stream;
mod suite;
