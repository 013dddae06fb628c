use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::room::Place;
use crate::time_limit::TimeLimit;
use crate::tls::{Accepted, Peer};

/// An accepted connection over any transport.
pub struct Connection {
    io: Pin<Box<dyn Duplex>>,
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "only servers ask who connects"))]
    remote: Option<SocketAddr>,
    /// Bytes that the gate has read and the server has not.
    read_ahead: Vec<u8>,
    /// Its place, if it came through a gate.
    time: Option<TimeLimit>,
    /// Who is at the other end; not known before the first read, nor where it was not asked.
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "only servers ask who connects"))]
    peer: Arc<OnceLock<Peer>>,
}

/// The other end of an accepted connection: an extension of each request that comes in over it.
#[derive(Clone, Debug)]
pub struct ConnectInfo {
    /// Its address; `None` where connections have none, as in a simulation.
    pub remote: Option<SocketAddr>,
    /// Its place on the port; `None` without a gate.
    pub place: Option<Arc<Place>>,
    /// Its identity.
    pub peer: Peer,
}

trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl Connection {
    /// Wraps a stream of bytes.
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self { io: Box::pin(io), remote: None, read_ahead: Vec::new(), time: None, peer: Arc::default() }
    }

    /// Wraps a stream of bytes from an address.
    pub fn from(remote: SocketAddr, io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self { remote: Some(remote), ..Self::new(io) }
    }

    /// Wraps a stream from an address that was accepted, by TLS or plain.
    pub(crate) fn accepted(remote: SocketAddr, stream: Accepted) -> Self {
        let peer = stream.peer();
        Self { peer, ..Self::from(remote, stream) }
    }

    /// Lets the connection through a gate: `read_ahead` was read of it, and it may stay for `time` if its place is not better
    /// than that of a guest.
    pub(crate) fn admitted(self, read_ahead: Vec<u8>, place: Place, time: Option<Duration>) -> Self {
        Self { read_ahead, time: Some(TimeLimit::new(place, time)), ..self }
    }

    /// Its place on the port, if it came through a gate.
    #[cfg(any(feature = "server", test))]
    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.time.as_ref().map(|time| time.place.clone())
    }

    /// Who is at the other end. CallerRecord once something was read.
    #[cfg(any(feature = "server", test))]
    pub fn info(&self) -> ConnectInfo {
        let peer = self.peer.get().cloned().unwrap_or(Peer::Plain);
        ConnectInfo { remote: self.remote, place: self.place(), peer }
    }

    /// Fails once the connection's time is over.
    fn check_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let is_over = self.time.as_mut().is_some_and(|time| time.is_over(cx));
        if is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_time(cx)?;
        if !self.read_ahead.is_empty() {
            let now = self.read_ahead.len().min(buf.remaining());
            buf.put_slice(&self.read_ahead[..now]);
            self.read_ahead.drain(..now);
            return Poll::Ready(Ok(()));
        }
        self.io.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_time(cx)?;
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
        self.info()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}
