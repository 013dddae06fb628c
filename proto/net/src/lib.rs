//! Sockets: every listener, connection and name lookup of mc is made here. So there is one place to add TLS, and one
//! thing for a simulation to replace.

mod connection;
mod gate;
mod local;
mod network;
mod resolve;
mod room;
mod tcp;
mod time_limit;

pub use connection::{ConnectInfo, Connection};
pub use gate::{Greeting, Rules};
pub use local::{connect_local, listen_local};
pub use network::{ChannelOptions, Incoming, Listener, Network, TcpNetwork, endpoint};
pub use resolve::resolve;
pub use room::{Place, Room};
pub use tcp::{connect, listen, local_address_towards, lookup};
