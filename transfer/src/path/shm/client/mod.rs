//! The client's end of shared memory.

mod bounce;
mod connect;
mod requests;
mod session;

pub(crate) use self::bounce::{BOUNCE, BounceBuffer, BounceBuffers};
pub(crate) use self::connect::connect;
pub(crate) use self::requests::{area_writes, checks};
pub(crate) use self::session::{LocatedRead, Session};
