//! The client's end of RDMA: requests by the queue pair beside a connection, and the routes by which such pairs are made.

mod buffers;
mod end;
pub(crate) mod probe;
mod requests;
mod routes;

pub use self::requests::OnRdma;
pub(crate) use self::requests::{NoPair, PairedLink, Places, Prepared, REQUEST, RdmaClient};
pub(crate) use self::routes::{RDMA, Routes, Target};
