//! The client's end of shared memory.

mod bounce;
mod connect;
mod requests;
mod session;
mod transport;

pub use self::transport::{OnShared, ShmTransport};
