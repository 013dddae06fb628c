//! The store's end of shared memory.

pub(crate) mod areas;
mod copies;
mod own;
mod past_reads;
mod sharing;

pub(crate) use self::areas::AreaTable;
pub(crate) use self::copies::Copiers;
pub(crate) use self::own::OwnCalls;
pub(crate) use self::sharing::{close, share};
