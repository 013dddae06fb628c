//! The store's end of shared memory.

mod areas;
mod copies;
mod listen;
pub(crate) mod own;
mod past_reads;
mod requests;
mod sharing;

pub(crate) use self::listen::listen;
pub(crate) use self::requests::ShmServer;
