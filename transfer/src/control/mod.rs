//! Messages between a client and a store, which all paths share: hello, request under a grant, verdict, seal.
//!
//! `client` and `server` are the two ends of a connection. Neither knows the other, and both know `wire` alone.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod socket_options;
pub(crate) mod wire;
