//! Bytes on the connection itself.

mod client;
pub(crate) mod server;
