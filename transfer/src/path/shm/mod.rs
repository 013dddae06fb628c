//! Transfers through memory that a client and a store of one host share.
//!
//! # Reads
//!
//! A store gives the descriptors of its segments to processes of its host ([`DataServer::serve_local`]). Such a client
//! reads from them past the store, and then looks at the [stamps](crate::memory::stamps) of the bytes that it has copied, which the
//! store shares, too. If no newer write was there, the bytes are good. Otherwise, and with a store that shares no stamps, it
//! asks the store over TCP: a block may have a stamp of a neighbour. The store's fence then decides as it does for a read of its
//! own; any other answer, and none, fails the read.
//!
//! The segments are mapped read-only. They can't shrink, because the store has sealed them against that, so that no access
//! faults. A mapping costs 2 bytes of page tables for each KiB that was read; `pread` would do without and take three
//! times as long, because it looks every page up.
//!
//! # Writes
//!
//! The client hands over descriptors of its own memory, and the store copies the bytes of writes out of it when it is asked to
//! over TCP: see [`server::areas`]. Memory that the client did not get from [`Transport::allocate`] is copied into a bounce buffer first.
//! A request whose answer was lost may be carried out late, when its memory has other bytes. Three rules keep it from damaging a
//! value:
//!
//! - No put is ended before a seal of its ranges was answered, and no copy gets past a seal. The caller's memory keeps its bytes until
//!   the call ends, so a write that seals needs no more than that.
//! - A write that does not seal fails if a request for bytes in the caller's memory was not answered, also when a later one was. The
//!   caller publishes no range whose write failed.
//! - The bounce buffer of such a request is not used again. So if the same bytes are written again, a late copy brings the same bytes.
//!
//! # The store of this process
//!
//! Calls copy to and from its memory by themselves, under the checks of its server: see `server::own`.
//!
//! # Ends
//!
//! A client keeps mappings only as long as its connection to the store lasts, and so does the store. Otherwise the memory of
//! a store that has ended could not be freed, and the next one would not find any.
//!
//! [`DataServer::serve_local`]: crate::DataServer::serve_local
//! [`Transport::allocate`]: crate::Transport::allocate

mod access;
pub(crate) mod client;
mod files;
mod record;
pub(crate) mod server;

pub use self::access::{ParseShmAccessError, ShmAccess};
pub use self::record::socket_name;
#[cfg(feature = "testing")]
pub(crate) use self::record::{Message, Record};
