use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::{Channel, Endpoint};

use crate::gate::{Place, Stay};

/// An accepted connection over any transport.
pub struct Connection {
    io: Pin<Box<dyn Duplex>>,
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "only servers ask who connects"))]
    remote: Option<SocketAddr>,
    /// Bytes that the gate has read and the server has not.
    said: Vec<u8>,
    /// Its place, if it came through a gate.
    stay: Option<Stay>,
}

/// Who is at the other end of an accepted connection: an extension of each request that comes in over it.
#[derive(Clone, Debug)]
pub struct ConnectInfo {
    /// Its address; `None` where connections have none, as in a simulation.
    pub remote: Option<SocketAddr>,
    /// Its place on the port; `None` without a gate.
    pub place: Option<Arc<Place>>,
}

trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl Connection {
    /// Wraps a stream of bytes.
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self { io: Box::pin(io), remote: None, said: Vec::new(), stay: None }
    }

    /// Wraps a stream of bytes from an address.
    pub fn from(remote: SocketAddr, io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self { io: Box::pin(io), remote: Some(remote), said: Vec::new(), stay: None }
    }

    /// Lets the connection through a gate: `said` was read of it, and it may stay for `time` if its place is not better
    /// than that of a guest.
    pub(crate) fn admitted(self, said: Vec<u8>, place: Place, time: Option<Duration>) -> Self {
        Self { said, stay: Some(Stay::new(place, time)), ..self }
    }

    /// Its place on the port, if it came through a gate.
    #[cfg(any(feature = "server", test))]
    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.stay.as_ref().map(|stay| stay.place.clone())
    }

    /// Fails once the connection's time is over.
    fn check_stay(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let is_over = self.stay.as_mut().is_some_and(|stay| stay.is_over(cx));
        if is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_stay(cx)?;
        if !self.said.is_empty() {
            let now = self.said.len().min(buf.remaining());
            buf.put_slice(&self.said[..now]);
            self.said.drain(..now);
            return Poll::Ready(Ok(()));
        }
        self.io.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_stay(cx)?;
        self.io.as_mut().poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}

#[cfg(feature = "server")]
impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = ConnectInfo;
    fn connect_info(&self) -> ConnectInfo {
        ConnectInfo { remote: self.remote, place: self.place() }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

/// A bound listener: its address, and the connections that come in.
pub struct Listener {
    /// The bound address, with the port that was picked when 0 was asked for.
    pub address: SocketAddr,
    /// Accepted connections.
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

/// Makes listeners, connections and channels. [`TcpNetwork`] is the real one.
pub trait Network: Send + Sync + fmt::Debug {
    /// Binds `address` (`ip:port`; port 0 picks a free one).
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Listener>>;

    /// Connects to `address` (`host:port`, IPv6 in brackets). The caller bounds the time.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>>;

    /// Returns a channel to `address` (`host:port`, IPv6 in brackets). It connects at its first call and reconnects
    /// automatically. Each connect resolves the name again.
    ///
    /// # Errors
    /// When `address` is not a host and a port.
    fn channel(&self, address: &str, options: ChannelOptions) -> Result<Channel, tonic::transport::Error>;
}

/// Sockets of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNetwork;

impl TcpNetwork {
    /// Returns the network, ready to be shared.
    #[must_use]
    pub fn shared() -> Arc<dyn Network> {
        Arc::new(Self)
    }
}

impl Network for TcpNetwork {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Listener>> {
        Box::pin(async move {
            let listener = bind(address).await?;
            let address = listener.local_addr()?;
            let incoming = futures::stream::unfold(listener, |listener| async move {
                let accepted = listener.accept().await.map(|(stream, remote)| {
                    // Without the option the connection is slower, not broken.
                    let _ = stream.set_nodelay(true);
                    Connection::from(remote, stream)
                });
                Some((accepted, listener))
            });
            Ok(Listener { address, incoming: Box::pin(incoming) })
        })
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
        Box::pin(async move { Ok(Connection::new(crate::connect(address).await?)) })
    }

    fn channel(&self, address: &str, options: ChannelOptions) -> Result<Channel, tonic::transport::Error> {
        Ok(endpoint(address, options)?.connect_lazy())
    }
}

/// Length of the accept queue: connections that may wait to be accepted.
///
/// A fleet that moves to a new leader opens thousands of connections in a second. The kernel repeats a connect that
/// finds no place only a second later. The kernel's own bound (`somaxconn`) is 4,096.
pub(crate) const BACKLOG: u32 = 4096;

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
