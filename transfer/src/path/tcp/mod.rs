//! Connections: every request goes over one, and so do the bytes that no other path carries.

pub(crate) mod client;
pub(crate) mod server;
