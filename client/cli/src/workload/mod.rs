//! Workload of the playground and the benches: the requested blocks, their bytes, and the ledger of acknowledged puts.

mod driver;
mod generator;
mod ledger;
mod trace;
pub(crate) mod value;
mod verify;

pub(crate) use driver::{Driver, Requests, put_until_decided};
pub(crate) use generator::{Block, Generator};
pub(crate) use ledger::{Keyspace, Ledger};
pub(crate) use trace::{Request, read as read_trace};
pub(crate) use verify::{Verdict, verify};
