//! A connection of the data port, for callers that move its bytes themselves and never block.

mod expected;
mod secured;
mod session;

use std::io;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

pub use self::expected::ExpectedStore;
use self::secured::Secured;
use crate::tcp;
use crate::tls::{HANDSHAKE, Peer, Server, Tls, speaks_no_tls};
use mc_types::TlsLevel;

/// One connection of the data port, plain or with TLS.
///
/// Attempts come first: [`Self::ready`] is waited for after one has failed with `WouldBlock`. With TLS a write takes bytes once
/// they are encrypted, and [`Self::try_flush`] brings the last of them to the kernel.
#[derive(Debug)]
pub struct DataStream(Io);

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Secured(Box<Secured>),
}

impl DataStream {
    /// Maximum bytes that one write takes with TLS: four records, which go to the kernel with one system call.
    pub const AT_ONCE: usize = 64 << 10;

    /// Connects to the data port of a store, as far as `tls` insists with a handshake. Then its certificate must be that of the
    /// `expected` store, if that is known.
    ///
    /// # Errors
    /// The system's error, or the reason why there is no TLS with the store.
    pub async fn connect(
        address: SocketAddr,
        tls: Option<&Arc<Tls>>,
        expected: Option<&ExpectedStore>,
    ) -> io::Result<Self> {
        let tcp = dial(address).await?;
        let Some((tls, level)) =
            tls.map(|tls| (tls, tls.level_to_stores())).filter(|(_, level)| *level > TlsLevel::Allow)
        else {
            return Ok(tcp.into());
        };
        let server = expected.map_or(Server::Store, ExpectedStore::server);
        match Self::secure(Secured::begin(tcp, tls.client_session(server)?.into())).await {
            Ok(stream) => stream.leading_to(expected),
            // A store without certificates takes the handshake for a broken hello.
            Err(error) if level == TlsLevel::Prefer && speaks_no_tls(&error) => {
                tracing::debug!(%address, %error, "connecting in the clear: the store speaks no TLS");
                Ok(dial(address).await?.into())
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("no TLS with {address}: {error}"))),
        }
    }

    /// Takes a connection that was accepted. With certificates it waits for the first byte, which says whether the peer speaks
    /// TLS, and for the handshake. The caller bounds the time.
    ///
    /// # Errors
    /// The system's error, or one of kind `InvalidData` that says why the handshake failed.
    pub async fn accept(tcp: TcpStream, tls: Option<&Arc<Tls>>) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(tcp.into()) };
        let mut first = [0];
        if tcp.peek(&mut first).await? == 1 && first[0] == HANDSHAKE {
            let (tcp, session) = tls.shake_hands(tcp).await?;
            let mut secured = Secured::begin(tcp, session.into());
            secured.let_go_after(tls.random_connection_age());
            Self::secure(secured).await
        } else {
            Ok(tcp.into())
        }
    }

    /// Returns the connection if it leads to the `expected` store.
    fn leading_to(self, expected: Option<&ExpectedStore>) -> io::Result<Self> {
        match (expected, self.peer()) {
            (Some(store), Peer::Named(id)) if !store.may_show(id) => {
                let why = format!("its certificate is that of {id}, and the store {store} is expected there");
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
            _ => Ok(self),
        }
    }

    /// Does what is left of the handshake. It goes on in its box: a future is as large as all that it may hold.
    async fn secure(mut secured: Box<Secured>) -> io::Result<Self> {
        secured.shake_hands().await?;
        Ok(Self(Io::Secured(secured)))
    }

    /// The process at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        match &self.0 {
            Io::Plain(_) => &Peer::Plain,
            Io::Secured(secured) => secured.peer(),
        }
    }

    /// Its host; `None` if the connection has ended.
    #[must_use]
    pub fn host(&self) -> Option<IpAddr> {
        self.tcp().peer_addr().ok().map(|address| address.ip())
    }

    /// Whether the certificate that the process at the other end has shown is no longer valid, or the connection is as old as an
    /// accepted one may be.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        match &self.0 {
            Io::Plain(_) => false,
            Io::Secured(secured) => secured.has_expired(),
        }
    }

    /// Returns the socket of a connection without TLS, for calls that move bytes directly.
    #[must_use]
    pub fn plain(&self) -> Option<&TcpStream> {
        match &self.0 {
            Io::Plain(tcp) => Some(tcp),
            Io::Secured(_) => None,
        }
    }

    fn tcp(&self) -> &TcpStream {
        match &self.0 {
            Io::Plain(tcp) => tcp,
            Io::Secured(secured) => secured.tcp(),
        }
    }

    /// Reads what is there, as much as fits; 0 when the other end has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; `InvalidData` when the bytes are not those that the peer has encrypted.
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            Io::Plain(tcp) => tcp.try_read(into),
            Io::Secured(secured) => secured.try_read(into),
        }
    }

    /// Passes the next decrypted bytes to `take`, which returns how many of them it has used; 0 when the other end has closed
    /// the connection. On a plain connection nothing is decrypted, and it fails.
    ///
    /// # Errors
    /// As [`Self::try_read`].
    pub fn try_read_with(&self, take: impl FnOnce(&[u8]) -> usize) -> io::Result<usize> {
        match &self.0 {
            Io::Plain(_) => Err(io::ErrorKind::Unsupported.into()),
            Io::Secured(secured) => secured.try_read_with(take),
        }
    }

    /// Takes some of `bytes`, and returns how many. With TLS they may not be sent before the next write or flush.
    ///
    /// # Errors
    /// `WouldBlock` when none was taken.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            Io::Plain(tcp) => tcp.try_write(bytes),
            Io::Secured(secured) => secured.try_write(bytes),
        }
    }

    /// Brings all bytes that were taken to the kernel.
    ///
    /// # Errors
    /// `WouldBlock` when some are left.
    pub fn try_flush(&self) -> io::Result<()> {
        match &self.0 {
            Io::Plain(_) => Ok(()),
            Io::Secured(secured) => secured.try_flush(),
        }
    }

    /// Number of bytes that were taken and that the kernel does not have, as they are on the wire.
    #[must_use]
    pub fn unsent(&self) -> usize {
        match &self.0 {
            Io::Plain(_) => 0,
            Io::Secured(secured) => secured.unsent(),
        }
    }

    /// Waits until another attempt may do something.
    ///
    /// # Errors
    /// The system's error.
    pub async fn ready(&self, interest: Interest) -> io::Result<()> {
        if let Io::Secured(secured) = &self.0
            && interest.is_readable()
            && secured.has_input()
        {
            return Ok(());
        }
        self.tcp().ready(interest).await.map(drop)
    }

    /// [`Self::ready`] to read.
    ///
    /// # Errors
    /// The system's error.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await
    }

    /// [`Self::ready`] to write.
    ///
    /// # Errors
    /// The system's error.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await
    }

    /// Waits until there are bytes to read, and leaves them there; false when the other end has closed the connection.
    ///
    /// # Errors
    /// As [`Self::try_read`], but for `WouldBlock`.
    pub async fn has_bytes(&self) -> io::Result<bool> {
        match &self.0 {
            Io::Plain(tcp) => tcp.peek(&mut [0]).await.map(|n| n > 0),
            Io::Secured(secured) => secured.has_bytes().await,
        }
    }

    /// Whether the connection is open, and nothing has come. It asks the kernel, because the runtime may not have heard of a
    /// close yet.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        if let Io::Secured(secured) = &self.0
            && secured.has_input()
        {
            return false;
        }
        let mut byte = [0];
        let peeked = rustix::net::recv(self.tcp(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        peeked.is_err_and(|error| error == rustix::io::Errno::WOULDBLOCK)
    }

    /// Frees buffers that are empty, for a time without transfers.
    pub fn free_buffers(&self) {
        if let Io::Secured(secured) = &self.0 {
            secured.free_buffers();
        }
    }
}

/// A plain connection.
impl From<TcpStream> for DataStream {
    fn from(tcp: TcpStream) -> Self {
        Self(Io::Plain(tcp))
    }
}

/// The socket, to set its options and to ask about it. Bytes go over it with TLS or not: see [`DataStream::plain`].
impl AsFd for DataStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp().as_fd()
    }
}

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let tcp = tcp::connect(address).await?;
    // Without the option the connection is slower, not broken.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}
