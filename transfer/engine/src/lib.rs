//! Copies memory between two processes over TCP: the transfer engine beside the pool.
//!
//! An [`Engine`] listens on a port, and lets its peers read and write the memory that it has registered. There is no
//! master and no grant: any process that reaches the port may read and write that memory, as with Mooncake's engine,
//! which this one replaces. It is for hosts that trust each other, and for memory of the host only.
//!
//! All calls block, and each has a deadline, to which the look-up of a peer's name may add. The kernel alone touches
//! the memory (`sendmsg`, `recvmsg`), so an invalid address causes an error and does not end the process.

mod connection;
mod engine;
mod error;
mod limits;
mod pool;
mod raw_parts;
mod regions;
mod serve;
mod sockets;
mod submitted;
mod wire;

pub use engine::Engine;
pub use error::{RegisterError, TransferError};
pub use limits::Limits;
pub use submitted::Submitted;
pub use wire::Notice;

/// A range of memory of the process that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Bytes to copy between this process and a peer.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Address in this process.
    pub local: usize,
    /// Address in the peer.
    pub remote: u64,
    /// Number of bytes.
    pub len: usize,
}

/// Direction of a transfer, seen from the process that asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's memory into the caller's.
    Read,
    /// From the caller's memory into the peer's.
    Write,
}

/// Address at which an engine listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Name or address of its host.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}
