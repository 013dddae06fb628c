//! Workload of the playground and the benches: the requested blocks, their bytes, the ledger of acknowledged puts, and
//! the caches to compare a pool with.

pub(crate) mod baseline;
mod driver;
mod generator;
mod ledger;
mod trace;
pub(crate) mod value;
mod verify;

pub(crate) use baseline::Capacity;
pub(crate) use driver::{Driver, Requests, put_until_decided};
pub(crate) use generator::{Block, Generator};
pub(crate) use ledger::{Keyspace, Ledger};
pub(crate) use trace::{Request, read as read_trace};
pub(crate) use verify::{Miss, Verdict, verify};
