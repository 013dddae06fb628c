use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::connection::Connection;
use crate::tcp::{BACKLOG, connect};
use crate::tls::Tls;

/// A bound listener: its address, and the connections that come in.
pub struct Listener {
    /// The bound address, with the port that was picked when 0 was asked for.
    pub address: SocketAddr,
    /// Stream of accepted connections.
    pub incoming: Incoming,
}

/// Accepted connections, and errors of accepting.
pub type Incoming = Pin<Box<dyn Stream<Item = io::Result<Connection>> + Send>>;

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.address).finish()
    }
}

/// Time limits of a gRPC channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions {
    /// Time limit of a connect.
    pub connect_timeout: Duration,
    /// Time limit of every call, in addition to its own deadline; `None` for streams.
    pub call_timeout: Option<Duration>,
    /// Silence on a connection after which the peer is pinged. The peer has a second to answer. Each ping costs both
    /// ends two messages.
    pub keep_alive: Duration,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(300),
            call_timeout: None,
            keep_alive: Duration::from_secs(1),
        }
    }
}

/// Makes listeners, connections and channels. [`TcpNetwork`] and [`TlsNetwork`](crate::TlsNetwork) are the real ones.
pub trait Network: Send + Sync + fmt::Debug {
    /// Binds `address` (`ip:port`; port 0 picks a free one).
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Listener>>;

    /// Connects to a master at `address` (`host:port`, IPv6 in brackets). The caller bounds the time.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>>;

    /// Returns a channel to the master at `address` (`host:port`, IPv6 in brackets). It connects at its first call and reconnects
    /// automatically. Each connect resolves the name again.
    ///
    /// # Errors
    /// When `address` is not a host and a port.
    fn channel(&self, address: &str, options: ChannelOptions) -> Result<Channel, tonic::transport::Error>;

    /// Certificates of this process; `None` where connections are plain.
    fn tls(&self) -> Option<&Arc<Tls>> {
        None
    }
}

/// Sockets of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNetwork;

impl TcpNetwork {
    /// Returns the network, ready to be shared.
    pub fn shared() -> Arc<dyn Network> {
        Arc::new(Self)
    }
}

impl Network for TcpNetwork {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Listener>> {
        Box::pin(listen(address, Connection::from))
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
        Box::pin(async move { Ok(Connection::new(connect(address).await?)) })
    }

    fn channel(&self, address: &str, options: ChannelOptions) -> Result<Channel, tonic::transport::Error> {
        Ok(endpoint(address, options)?.connect_lazy())
    }
}

/// Listens on `address`, and makes connections of what it accepts.
pub(crate) async fn listen(
    address: &str,
    connection: impl Fn(SocketAddr, TcpStream) -> Connection + Send + 'static,
) -> io::Result<Listener> {
    let listener = bind(address).await?;
    let address = listener.local_addr()?;
    let incoming = futures::stream::unfold((listener, connection), |(listener, connection)| async move {
        let accepted = listener.accept().await.map(|(stream, remote)| {
            // Without the option the connection is slower, not broken.
            let _ = stream.set_nodelay(true);
            connection(remote, stream)
        });
        Some((accepted, (listener, connection)))
    });
    Ok(Listener { address, incoming: Box::pin(incoming) })
}

/// Binds the first address of the name that can be bound.
async fn bind(address: &str) -> io::Result<tokio::net::TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in tokio::net::lookup_host(address).await? {
        let bound = (|| {
            let socket = match address {
                std::net::SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
                std::net::SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
            };
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        })();
        match bound {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns an endpoint with the HTTP/2 settings of every channel (reference: tonic's throughput needs larger windows
/// than its defaults).
///
/// # Errors
/// When `address` is not a host and a port.
pub fn endpoint(address: &str, options: ChannelOptions) -> Result<Endpoint, tonic::transport::Error> {
    let mut endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keep_alive_interval(options.keep_alive)
        .keep_alive_timeout(Duration::from_secs(1))
        .keep_alive_while_idle(true);
    if let Some(timeout) = options.call_timeout {
        endpoint = endpoint.timeout(timeout);
    }
    Ok(endpoint)
}
