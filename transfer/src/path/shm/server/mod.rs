//! The store's end of shared memory.

mod areas;
mod copies;
pub(crate) mod own;
mod past_reads;
mod requests;
mod sharing;

pub(crate) use self::requests::ShmServer;
pub(crate) use self::sharing::{close, share};
