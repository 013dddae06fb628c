use std::io;
use std::net::SocketAddr;

use crate::Peer;

/// Why memory was not registered or unregistered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RegisterError {
    /// It has no bytes, no address, or an end beyond the last address.
    #[error("{len} bytes at {address:#x} are no memory")]
    NoMemory {
        /// Its address.
        address: usize,
        /// Its bytes.
        len: usize,
    },
    /// Bytes of it are registered already.
    #[error("{len} bytes at {address:#x} overlap {other_len} bytes at {other:#x}: unregister those first")]
    Overlaps {
        /// Its address.
        address: usize,
        /// Its bytes.
        len: usize,
        /// Address of what is registered.
        other: usize,
        /// Bytes of it.
        other_len: usize,
    },
    /// No registered memory begins there.
    #[error("no memory is registered at {0:#x}")]
    Unknown(usize),
}

/// Why a transfer failed. Some of its bytes may have been copied.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The name of its host leads nowhere.
    #[error("{peer} has no address: {why}")]
    NoAddress {
        /// The peer.
        peer: Peer,
        /// The resolver's error.
        why: io::Error,
    },
    /// Nothing was sent.
    #[error("no connection to {peer} at {address}: {why}")]
    NoConnection {
        /// The peer.
        peer: Peer,
        /// The address that was tried last.
        address: SocketAddr,
        /// The system's error.
        why: io::Error,
    },
    /// Something else than an engine of this kind listens there.
    #[error("{peer} is no engine of this package and version: it said {said:?}")]
    Stranger {
        /// The peer.
        peer: Peer,
        /// Its first bytes.
        said: [u8; 8],
    },
    /// The peer did nothing.
    #[error("{peer} refuses: {reason}")]
    Refused {
        /// The peer.
        peer: Peer,
        /// Its words.
        reason: String,
    },
    /// The connection ended, or the time was over.
    #[error("{peer}: {why}")]
    Lost {
        /// The peer.
        peer: Peer,
        /// The system's error.
        why: io::Error,
    },
    /// An address of this process is none that can be copied from or to.
    #[error("an address of this process is no memory of the host, such as memory of a GPU: {0}")]
    NotOfTheHost(io::Error),
    /// A request can't be that long.
    #[error("{0} bytes at once: divide the transfer")]
    TooLong(u128),
    /// Too many transfers are under way.
    #[error("{0} transfers are under way: wait for some of them first")]
    TooMany(usize),
    /// There is no thread for it.
    #[error("no thread for the transfer: {0}")]
    NoThread(io::Error),
    /// Its thread panicked.
    #[error("the transfer panicked")]
    Panicked,
    /// The engine was closed, or memory of the transfer unregistered, before it was done.
    #[error("the engine was closed, or memory of the transfer unregistered meanwhile")]
    Ended,
}
