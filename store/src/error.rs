use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use mc_durable::DurableError;
use mc_net::TlsError;
use mc_transfer::{AllocateError, NoRdma, SegmentDirError};
use mc_types::ByteSize;

use crate::config::InvalidConfig;

/// The reason why a store did not start. A failed start leaves nothing behind: no memory, no lock, no port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A configuration value cannot be used.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The data directory cannot be read or written, or another process uses it.
    #[error(transparent)]
    DataDir(#[from] DurableError),
    /// The certificates can't be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The memory cannot be allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The segment directory can't be used.
    #[error(transparent)]
    SegmentDir(#[from] SegmentDirError),
    /// The store would lend less than its last process has left.
    #[error(
        "{path} has {kept} of memory, and {asked} are asked for: ask for {kept} or more, and unmount a segment while the store runs, or \
         free all of it with `mc-store --release {path}`",
        path = path.display()
    )]
    Smaller {
        /// The segment directory.
        path: PathBuf,
        /// Memory in it.
        kept: ByteSize,
        /// Memory to lend.
        asked: ByteSize,
    },
    /// RDMA was asked for and can't be used.
    #[error("RDMA was asked for: {0}")]
    Rdma(NoRdma),
    /// A port is in use, or this process may not bind it.
    #[error("cannot listen on {address} for {port}: {source}; stop what uses it, or choose another address")]
    Listen {
        /// The purpose of the port.
        port: Port,
        /// Address that the store tried to listen on.
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

// The text of a `StartError` contains this error. As a source it would be printed twice.
impl From<NoRdma> for StartError {
    fn from(why: NoRdma) -> Self {
        Self::Rdma(why)
    }
}

/// Purpose of a port that a store's process listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Port {
    /// Clients that read and write the memory.
    Data,
    /// Health and metrics over HTTP.
    Http,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "clients",
            Self::Http => "health and metrics",
        })
    }
}
