use std::io;
use std::net::SocketAddr;

use mc_durable::DurableError;
use mc_transfer::AllocateError;

use crate::config::InvalidConfig;

/// Why a store did not start. Nothing is left behind: no memory, no lock, no port.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value cannot be used.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The data directory cannot be read or written, or another process has it.
    #[error("--data-dir: {0}")]
    DataDir(#[from] DurableError),
    /// The memory cannot be had.
    #[error("--segment: {0}")]
    Allocate(#[from] AllocateError),
    /// A port is taken, or not ours to take.
    #[error("cannot listen on {address} ({flag}): {source}; stop what uses it, or choose another {flag}")]
    Listen {
        /// The flag that says so.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// No thread or no event loop.
    #[error("the system gives no {what}: {source}")]
    System {
        /// The resource that was asked for.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}
