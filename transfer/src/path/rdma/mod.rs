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
//! [`StoreEnd::carry`]: self::server::end::StoreEnd::carry
//! [`Buffers`]: self::client::buffers::Buffers

pub(crate) mod client;
mod completions;
mod ends;
pub(crate) mod server;
