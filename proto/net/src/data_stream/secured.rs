use std::fmt;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::Connection;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::session::Session;
use crate::tls::Peer;

/// A connection with TLS. Its ends may be read and written by two tasks; the lock is never held while one waits.
pub(super) struct Secured {
    tcp: TcpStream,
    session: Mutex<Session>,
    /// CallerRecord after the handshake.
    peer: Peer,
    /// Its end: of the validity of the peer's certificate, or before.
    expires: Option<Instant>,
}

impl Secured {
    /// Begins the handshake.
    pub(super) fn begin(tcp: TcpStream, connection: Connection) -> Box<Self> {
        let session = Mutex::new(Session::new(connection));
        Box::new(Self { tcp, session, peer: Peer::Anonymous, expires: None })
    }

    /// Ends the connection after so much time at the latest.
    pub(super) fn let_go_after(&mut self, age: Duration) {
        self.expires = Instant::now().checked_add(age);
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(super) fn has_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= Instant::now())
    }

    /// Does the handshake, which tells who is at the other end.
    pub(super) async fn shake_hands(&mut self) -> io::Result<()> {
        while let Some(interest) = self.session.get_mut().shake_hands(&self.tcp)? {
            self.tcp.ready(interest).await?;
        }
        let session = self.session.get_mut();
        self.peer = session.peer();
        let valid_until = session.validity_left().and_then(|left| Instant::now().checked_add(left));
        self.expires = self.expires.into_iter().chain(valid_until).min();
        Ok(())
    }

    pub(super) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.session.lock().read(&self.tcp, into)
    }

    pub(super) fn try_read_with(&self, take: impl FnOnce(&[u8]) -> usize) -> io::Result<usize> {
        self.session.lock().read_with(&self.tcp, take)
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.session.lock().write(&self.tcp, bytes)
    }

    pub(super) fn try_flush(&self) -> io::Result<()> {
        self.session.lock().flush(&self.tcp)
    }

    pub(super) fn unsent(&self) -> usize {
        self.session.lock().unsent()
    }

    /// Whether a read does something though the socket has nothing.
    pub(super) fn has_input(&self) -> bool {
        self.session.lock().has_input()
    }

    pub(super) async fn has_bytes(&self) -> io::Result<bool> {
        loop {
            let decrypted = self.session.lock().decrypt(&self.tcp);
            match decrypted {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.tcp.ready(Interest::READABLE).await?;
                }
                known => return known,
            }
        }
    }

    pub(super) fn free_buffers(&self) {
        self.session.lock().free_buffers();
    }
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secured").field(&self.tcp).finish()
    }
}
