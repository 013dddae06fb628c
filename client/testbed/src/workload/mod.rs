//! Workload of the playground and the benches: the requested blocks, their bytes, the ledger of acknowledged puts, and
//! the caches to compare a pool with.

pub mod baseline;
mod driver;
mod generator;
mod ledger;
mod trace;
pub mod value;
mod verify;

pub use baseline::Capacity;
pub use driver::{Attempt, Counted, Driver, Object, Requests, put_until_decided};
pub use generator::{Block, Generator};
pub use ledger::{Keyspace, Ledger};
pub use trace::{Request, TraceError, read as read_trace};
pub use verify::{Miss, Verdict, verify};
