//! What the playground and the benches do to a pool: which blocks are asked for, which bytes they hold, and the
//! account of what was acknowledged.

mod generator;
mod trace;
pub(crate) mod value;

pub(crate) use generator::{Block, Generator};
pub(crate) use trace::read as read_trace;
