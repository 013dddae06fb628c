//! The client's end of RDMA: requests by the queue pair beside a connection, and the routes by which such pairs are made.

mod buffers;
mod end;
mod failure;
mod pairing;
mod places;
mod probe;
mod process;
mod requests;
mod routes;
mod store;

pub use self::process::OnRdma;
pub(crate) use self::process::RdmaClient;
pub(crate) use self::routes::RDMA;
