//! Calls to other masters, as openraft's network: a factory of clients, a client, and what it streams.

pub(crate) mod append_stream;
pub(crate) mod connections;
pub(crate) mod peer_client;
pub(crate) mod peer_clients;
pub(crate) mod route;
pub(crate) mod send_snapshot;
