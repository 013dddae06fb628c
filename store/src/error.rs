use std::io;
use std::net::SocketAddr;

use mc_durable::DurableError;
use mc_transfer::{AllocateError, NoRdma};

use crate::config::InvalidConfig;

/// The reason why a store did not start. A failed start leaves nothing behind: no memory, no lock, no port.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A configuration value cannot be used.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The data directory cannot be read or written, or another process uses it.
    #[error("--data-dir: {0}")]
    DataDir(#[from] DurableError),
    /// The memory cannot be allocated.
    #[error("--segment: {0}")]
    Allocate(#[from] AllocateError),
    /// RDMA was asked for and can't be used.
    #[error("--transport, --rdma-devices, --rdma-options: {0}")]
    Rdma(#[from] NoRdma),
    /// A port is in use, or this process may not bind it.
    #[error("cannot listen on {address} ({flag}): {source}; stop what uses it, or choose another {flag}")]
    Listen {
        /// The flag that sets the address.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused a resource, such as a thread or an event loop.
    #[error("the system gives no {what}: {source}")]
    System {
        /// The resource that was asked for.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
