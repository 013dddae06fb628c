//! Sockets: every listener, every connection and every name lookup of mc is made here, so that TLS has one place to go
//! to and a simulation one thing to replace.

mod network;
mod resolve;
mod tcp;

pub use network::{ChannelOptions, Connection, Listener, Network, TcpNetwork, endpoint};
pub use resolve::resolve;
pub use tcp::{connect, listen, local_address_towards, lookup};
