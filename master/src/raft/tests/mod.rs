//! Whole nodes in one process, over real sockets on loopback, each with its own snapshots and a log in memory.

mod batches;
mod cluster;
mod distant;
mod faults;
mod hostile;
mod mem_log;
mod pool;
mod receiving;
mod stream;
mod suite;
mod upgrade;
