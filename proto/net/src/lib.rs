//! Sockets: every listener, connection and name lookup of mc is made here, with TLS or without. So there is one thing for
//! a simulation to replace.

mod access;
mod connection;
mod data_stream;
mod dials;
mod gate;
mod local;
mod network;
mod resolve;
mod room;
mod tcp;
mod time_limit;
mod tls;
mod tls_network;

pub use access::{
    CallerRecord, CallerRecords, Demands, DenialReason, Denied, Guard, OpenTo, Principal, RoleKind, Stranger,
    bearer_of,
};
pub use connection::{ConnectInfo, Connection};
pub use data_stream::{DataStream, ExpectedStore};
pub use gate::{Greeting, Rules};
pub use local::{connect_local, listen_local};
pub use network::{ChannelOptions, Incoming, Listener, Network, TcpNetwork, endpoint};
pub use resolve::resolve;
pub use room::{Place, Room};
pub use tcp::{connect, listen, local_address_towards, lookup};
pub use tls::{CredentialPaths, Peer, Server, Tls, TlsError};
pub use tls_network::TlsNetwork;
