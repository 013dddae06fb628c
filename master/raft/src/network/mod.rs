//! Messages between masters: their form (`wire`), the calls that openraft makes (`client`), and the Raft port that
//! answers those of others (`server`). Client and server import the form, and not each other.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod silent_peers;
pub(crate) mod wire;
