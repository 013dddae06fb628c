//! The client's end of RDMA: requests by the queue pair beside a connection, and the ways by which such pairs are made.

mod buffers;
mod end;
pub(crate) mod probe;
mod requests;
mod ways;

pub use self::requests::OnRdma;
pub(crate) use self::requests::{ByRdma, NoPair, PairedLink, Places, Prepared, REQUEST};
pub(crate) use self::ways::{RDMA, Target, Ways};
