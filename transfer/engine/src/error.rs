use std::io;
use std::net::SocketAddr;

use crate::Peer;

/// Why memory was not registered or unregistered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RegisterError {
    /// The range has no bytes, the address 0, or an end past the address space.
    #[error(
        "cannot register {len} bytes at {address:#x}: the range is empty, starts at 0 or ends past the address space"
    )]
    NoMemory {
        /// Address of the range.
        address: usize,
        /// Length of the range in bytes.
        len: usize,
    },
    /// Part of the range is registered already.
    #[error("{len} bytes at {address:#x} overlap {other_len} bytes at {other:#x}: unregister those first")]
    Overlaps {
        /// Address of the range.
        address: usize,
        /// Length of the range in bytes.
        len: usize,
        /// Address of the registered range.
        other: usize,
        /// Length of the registered range in bytes.
        other_len: usize,
    },
    /// No registered memory begins there.
    #[error("no memory is registered at {0:#x}")]
    Unknown(usize),
}

/// Why a transfer failed. Some of its bytes may have been copied.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The host name of the peer does not resolve.
    #[error("cannot resolve the host of {peer}: {why}")]
    NoAddress {
        /// The peer.
        peer: Peer,
        /// The resolver's error.
        why: io::Error,
    },
    /// No connection to the peer could be made. No byte was sent.
    #[error("cannot connect to {peer} at {address}: {why}")]
    NoConnection {
        /// The peer.
        peer: Peer,
        /// The address that was tried last.
        address: SocketAddr,
        /// The system's error.
        why: io::Error,
    },
    /// The process at the peer's address is not an engine of this protocol version.
    #[error("{peer} is no engine of this package and version: it said {said:?}")]
    Stranger {
        /// The peer.
        peer: Peer,
        /// First bytes that the process sent.
        said: [u8; 8],
    },
    /// The peer refused the request and moved no byte.
    #[error("{peer} refuses: {reason}")]
    Refused {
        /// The peer.
        peer: Peer,
        /// Reason that the peer gave.
        reason: String,
    },
    /// The connection broke, or the time limit passed.
    #[error("the connection to {peer} broke or timed out, the request may be done in part: {why}")]
    Lost {
        /// The peer.
        peer: Peer,
        /// The system's error.
        why: io::Error,
    },
    /// Memory of this process that the kernel can't copy from or to.
    #[error("an address of this process is no memory of the host, such as memory of a GPU: {0}")]
    NotOfTheHost(io::Error),
    /// The transfer has more bytes than a request can have.
    #[error("a transfer of {0} bytes is too long: split it")]
    TooLong(u128),
    /// Too many transfers are under way.
    #[error("{0} transfers are under way: wait for some of them first")]
    TooMany(usize),
    /// The system gave no thread for the transfer.
    #[error("cannot start a thread for the transfer: {0}")]
    NoThread(io::Error),
    /// The thread of the transfer panicked.
    #[error("the thread of the transfer panicked, which is a bug")]
    Panicked,
    /// The engine was closed, or memory of the transfer unregistered, before it was done.
    #[error("the transfer was ended: the engine was closed, or memory of the transfer was unregistered")]
    Ended,
}
