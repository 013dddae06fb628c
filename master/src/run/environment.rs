use std::sync::Arc;

use mc_durable::FreeSpace;
use mc_log::OpenLog;
use mc_net::Network;
use mc_types::Clock;
use tokio::runtime::Handle;

/// Everything outside a master that a test replaces: its clock, its network, its log's disk and the free space there, and
/// the threads for Raft.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Monotonic clock.
    pub clock: Clock,
    /// Network on which it listens and connects.
    pub network: Arc<dyn Network>,
    /// Opens the Raft log.
    pub log: Arc<dyn OpenLog>,
    /// Runtime on which Raft runs, apart from the calls.
    pub raft: Handle,
    /// Reports the free space of the data directory.
    pub free_space: Arc<dyn FreeSpace>,
}
