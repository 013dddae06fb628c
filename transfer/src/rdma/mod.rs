//! Bytes by RDMA.
//!
//! A connection to a store can have a pair of queue pairs beside it, one at each end. Requests and verdicts stay on the
//! connection; the bytes go through the pair. The store moves them, in both directions: it reads a write's bytes out of the
//! client's memory, and writes a read's bytes into it. NFS, SMB Direct and NVMe over Fabrics do the same. Clients get no key
//! to the store's memory, so nothing that a client does, late or wrong, can touch it, and the fence needs no word of theirs:
//!
//! - **Writes.** While its card may touch a range, the store holds the range's pass for it ([`DeviceHold`]).
//! - **Reads.** The store looks the range up again once its card has read the last byte, as it does after a send over TCP.
//!
//! Memory stays where it is for as long as a card may touch it:
//!
//! - At the store, the requests under way keep the segments and the holds. If they don't end well, the queue pair is
//!   destroyed before these are let go ([`StoreEnd::carry`]).
//! - At the client, a request keeps its buffers, and the memory of the caller that it names. If it doesn't end well, because it
//!   fails, is dropped or takes too long, the queue pair is destroyed before they are let go ([`Buffers`]). From then on nothing
//!   of the store's card gets in.
//!
//! Bytes of writes are read where the caller has them, if that is an area (see [`crate::memory::areas`]): the key permits no writes. Bytes of reads
//! come straight into an area only if that was lent, or is named by its address (see [`crate::RawBytes`]): a future that borrows memory
//! could be leaked, and then the borrow would be over before the card is. All others go through staging memory.
//!
//! If a queue pair can't be destroyed, a client never uses its buffers again and does not take lent memory back. A store ends its process,
//! and so does a client that reads into memory that is named by its address: they could not keep it from being overwritten.
//!
//! A pair lives as long as its connection and serves one request at a time. It has a completion queue of its own, which is
//! large enough for all that one request has under way, so that no queue can overflow.
//!
//! [`DeviceHold`]: crate::fence::DeviceHold

mod buffers;
mod client;
mod completions;
mod ends;
mod store;
mod subnets;

pub(crate) use self::buffers::Buffers;
pub(crate) use self::client::ClientEnd;
pub(crate) use self::store::{Part, StoreEnd};

/// Direction in which the store's card moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client's memory.
    FromClient,
    /// To the client's memory. Once all bytes are there, the client gets this number as a message.
    ToClient(u32),
}

/// Why a transfer did not end well.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It was cut off, because a range belongs to another write now.
    CutOff,
    /// The client closed the connection.
    Gone,
    /// The card, the network or the client's card failed.
    Device(String),
}
