use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use mc_types::TlsLevel;

use super::{Peer, Tls, validity_left};

/// First byte of a TLS connection: the type of a handshake record. No plain protocol of ours begins with it.
pub(crate) const HANDSHAKE: u8 = 0x16;

/// A connection without TLS.
struct Plain {
    stream: TcpStream,
    /// Whether TLS was not required when it was accepted. It is closed once that is, so that its peer comes back by TLS.
    is_tolerated: bool,
}

/// A connection that was accepted, by TLS or plain as its first byte says. The handshake is part of the first read.
pub(crate) struct Accepted {
    state: State,
    tls: Arc<Tls>,
    peer: Arc<OnceLock<Peer>>,
    /// End of the validity of the peer's certificate, and of the connection.
    end: Option<Pin<Box<Sleep>>>,
}

enum State {
    Silent(TcpStream),
    /// It owns the socket, so dropping it closes the connection.
    Handshake(BoxFuture<'static, io::Result<TlsStream<TcpStream>>>),
    Plain(Plain),
    Secured(Box<TlsStream<TcpStream>>),
    Broken,
}

impl Accepted {
    pub(crate) fn new(stream: TcpStream, tls: Arc<Tls>) -> Self {
        Self { state: State::Silent(stream), tls, peer: Arc::default(), end: None }
    }

    /// Returns the place where the peer is written once it is known: before the first read ends.
    pub(crate) fn peer(&self) -> Arc<OnceLock<Peer>> {
        self.peer.clone()
    }

    /// Waits until the protocol is known and the handshake, if there is one, is done.
    fn poll_known(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                State::Plain(plain) => {
                    let is_over = plain.is_tolerated && self.tls.level() == TlsLevel::Require;
                    let over = || io::Error::new(io::ErrorKind::ConnectionAborted, "TLS is required by now");
                    return Poll::Ready(if is_over { Err(over()) } else { Ok(()) });
                }
                State::Secured(_) => {
                    let is_over = self.end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready());
                    let over =
                        || io::Error::new(io::ErrorKind::TimedOut, "the peer's certificate has expired");
                    return Poll::Ready(if is_over { Err(over()) } else { Ok(()) });
                }
                State::Broken => return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
                State::Silent(stream) => {
                    let mut first = [0];
                    let read = ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut first)))?;
                    let State::Silent(stream) = std::mem::replace(&mut self.state, State::Broken) else {
                        continue;
                    };
                    if read == 1 && first[0] == HANDSHAKE {
                        let tls = self.tls.clone();
                        self.state = State::Handshake(Box::pin(async move { tls.accept(stream).await }));
                    } else {
                        let _ = self.peer.set(Peer::Plain);
                        let is_tolerated = self.tls.level() < TlsLevel::Require;
                        self.state = State::Plain(Plain { stream, is_tolerated });
                    }
                }
                State::Handshake(accept) => {
                    let secured = ready!(accept.as_mut().poll(cx));
                    self.state = State::Broken;
                    let secured = secured?;
                    let chain = secured.get_ref().1.peer_certificates();
                    let _ = self.peer.set(Peer::of(chain));
                    self.end = validity_left(chain).map(|left| Box::pin(tokio::time::sleep(left)));
                    self.state = State::Secured(Box::new(secured));
                }
            }
        }
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_known(cx))?;
        match &mut self.state {
            State::Plain(plain) => Pin::new(&mut plain.stream).poll_read(cx, buf),
            State::Secured(stream) => Pin::new(stream).poll_read(cx, buf),
            State::Silent(_) | State::Handshake(_) | State::Broken => Poll::Ready(Ok(())),
        }
    }
}

/// Runs a write on the stream, once its protocol is known. Servers of ours speak after their clients.
macro_rules! on_stream {
    ($self:ident, $cx:ident, |$stream:ident| $write:expr) => {{
        ready!($self.poll_known($cx))?;
        match &mut $self.state {
            State::Plain(plain) => {
                let $stream = Pin::new(&mut plain.stream);
                $write
            }
            State::Secured($stream) => {
                let $stream = Pin::new($stream);
                $write
            }
            State::Silent(_) | State::Handshake(_) | State::Broken => {
                Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
            }
        }
    }};
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self, cx, |stream| stream.poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, cx, |stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, cx, |stream| stream.poll_shutdown(cx))
    }
}
