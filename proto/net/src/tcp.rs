use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use mc_types::HostPort;
use tokio::net::{TcpStream, ToSocketAddrs, UdpSocket};

use crate::resolve::resolve;

/// Length of the accept queue: connections that may wait to be accepted.
///
/// A fleet that moves to a new leader opens thousands of connections in a second. The kernel repeats a connect that
/// finds no place only a second later. The kernel's own bound (`somaxconn`) is 4,096.
pub(crate) const BACKLOG: u32 = 4096;

/// Resolves `host:port` to all its present addresses.
pub async fn lookup(address: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host(address).await?.collect())
}

/// Connects to the first address that answers.
///
/// # Errors
/// The error of the last address that was tried.
pub async fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    TcpStream::connect(address).await
}

/// Binds a port for raw connections, non-blocking. The listener outlives any runtime, and each server of the port gets
/// a clone.
///
/// # Errors
/// The system's error: the port is in use, or this process may not bind it.
pub fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    // The standard library sets a shorter accept queue; a second `listen` lengthens it.
    rustix::net::listen(&listener, BACKLOG as i32)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns the local address that routes to `host`. Nothing is sent: connecting a datagram socket only picks the route.
///
/// # Errors
/// The error of the last address tried, or of the resolver.
pub async fn local_address_towards(host: &HostPort) -> io::Result<IpAddr> {
    let mut last = io::Error::other("no address");
    for address in resolve(host).await? {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let routed = async {
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(address).await?;
            socket.local_addr()
        };
        match routed.await {
            Ok(local) => return Ok(local.ip()),
            Err(err) => last = err,
        }
    }
    Err(last)
}
