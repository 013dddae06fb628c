//! Sockets: every listener, connection and name lookup of mc is made here. So there is one place to add TLS, and one
//! thing for a simulation to replace.

mod gate;
mod local;
mod network;
mod resolve;
mod tcp;

pub use gate::{Greeting, Place, Room, Rules};
pub use local::{connect_local, listen_local};
pub use network::{
    ChannelOptions, ConnectInfo, Connection, Incoming, Listener, Network, TcpNetwork, endpoint,
};
pub use resolve::resolve;
pub use tcp::{connect, listen, local_address_towards, lookup};
