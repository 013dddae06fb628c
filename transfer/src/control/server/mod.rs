//! The store's end of a connection: one request after the other is admitted to the memory, and answered.
//!
//! `exchange` is a request and its verdicts, over a `socket`. `proofs` are those of the connection. `served` is the memory and who is
//! let at it, by the rules in `check` and the `keys` of grants, and `memory` its segments, with which this process's own calls find
//! the server.

pub(crate) mod check;
mod counters;
mod exchange;
mod keys;
mod memory;
mod own_calls;
mod pace;
mod proofs;
mod served;
mod socket;

use std::time::Duration;

pub(crate) use self::check::{GrantsTaken, MemoryId, Refusal};
pub use self::counters::{Counters, RequestSeconds};
pub(crate) use self::exchange::{Exchange, FetchedWrite};
pub(crate) use self::keys::Keys;
pub use self::memory::Memory;
pub(crate) use self::memory::OwnServer;
pub(crate) use self::own_calls::OwnCalls;
pub(crate) use self::proofs::Proofs;
pub use self::served::Timeouts;
pub(crate) use self::served::{AdmittedWrite, Lent, ServedMemory};
pub(crate) use self::socket::{Closed, MAX_TOGETHER, RECV_CHUNK, Received, Socket};

/// Pause after a failed accept, which mostly means that no file descriptors are left.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
