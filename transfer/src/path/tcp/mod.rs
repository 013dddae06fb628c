//! Bytes on the connection itself.

mod client;
mod server;
