//! Moves bytes between clients and the memory that stores lend.
//!
//! [`Transport`] is what the client library calls: batches of (remote range, local buffers), each checked by the store
//! against a grant. It is shaped for one-sided transports too: remote ranges rather than keys, scatter/gather lists
//! on the local side, batches, and registration of local memory.

mod transport;

pub use transport::{Checksum, Peer, PeerEndpoint, ReadOp, TransferError, Transport, WriteOp};
