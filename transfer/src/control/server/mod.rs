//! The store's end of a connection: one request after the other is admitted to the memory, and answered.
//!
//! `exchange` is a request and its verdicts, over a `socket`. `served` is the memory and who is let at it, by the rules in `check`.

pub(crate) mod check;
mod counters;
mod exchange;
mod pace;
mod served;
mod socket;

pub(crate) use self::check::{MemoryId, Refusal};
pub use self::counters::{Counters, RequestSeconds};
pub(crate) use self::exchange::{Exchange, FetchedWrite};
pub use self::served::Timeouts;
pub(crate) use self::served::{AdmittedWrite, Lent, ServedMemory};
pub(crate) use self::socket::{Closed, MAX_TOGETHER, RECV_CHUNK, Received, Socket};
