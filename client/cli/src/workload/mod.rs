//! Workload of the playground and the benches: which blocks are asked for, which bytes they hold, and the
//! account of what was acknowledged.

mod driver;
mod generator;
mod ledger;
mod trace;
pub(crate) mod value;
mod verify;

pub(crate) use driver::{Driver, Requests};
pub(crate) use generator::{Block, Generator};
pub(crate) use ledger::{Keyspace, Ledger};
pub(crate) use trace::read as read_trace;
pub(crate) use verify::{Verdict, verify};
