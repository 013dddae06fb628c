use std::io::{self, BufRead as _, IoSlice, Read as _, Write as _};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendFlags};
use rustls::Connection;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::DataStream;
use crate::tls::{Peer, TlsFailed, validity_left};

/// Bytes that are read from the socket with the first system call of a transfer, and with later ones if they fill that. rustls
/// takes 4 KiB at a time, and a system call for each would cost more than they do.
const FIRST_READ: usize = 8 << 10;
const LATER_READ: usize = 64 << 10;

/// TLS of one connection, between its socket and its user.
pub(super) struct Session {
    connection: Connection,
    input: Input,
    /// Bytes of records that the kernel has not taken yet.
    unsent: usize,
}

impl Session {
    pub(super) fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(DataStream::AT_ONCE));
        Self { connection, input: Input::new(), unsent: 0 }
    }

    /// Goes on with the handshake; returns what it has to wait for, or none when it is done.
    pub(super) fn shake_hands(&mut self, tcp: &TcpStream) -> io::Result<Option<Interest>> {
        loop {
            match self.flush(tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Some(Interest::WRITABLE));
                }
                flushed => flushed?,
            }
            if !self.connection.is_handshaking() {
                return Ok(None);
            }
            match self.receive(tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Some(Interest::READABLE));
                }
                Ok(0) => {
                    let why = "the other end closed the connection in the middle of the handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                received => received?,
            };
        }
    }

    /// Returns how long the peer's certificate is still valid; `None` if it has shown none.
    pub(super) fn validity_left(&self) -> Option<Duration> {
        validity_left(self.connection.peer_certificates())
    }

    /// Returns who has shaken hands.
    pub(super) fn peer(&self) -> Peer {
        Peer::of(self.connection.peer_certificates())
    }

    /// Decrypts until there are bytes to read; false when the other end has closed the connection. It need not say that: the
    /// lengths in the protocol show whether something is missing.
    pub(super) fn decrypt(&mut self, tcp: &TcpStream) -> io::Result<bool> {
        loop {
            match self.connection.reader().fill_buf() {
                Ok(bytes) => return Ok(!bytes.is_empty()),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.receive(tcp)?;
        }
    }

    pub(super) fn read(&mut self, tcp: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() || !self.decrypt(tcp)? {
            return Ok(0);
        }
        self.connection.reader().read(into)
    }

    pub(super) fn read_with(
        &mut self,
        tcp: &TcpStream,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<usize> {
        if !self.decrypt(tcp)? {
            return Ok(0);
        }
        let mut reader = self.connection.reader();
        let n = take(reader.fill_buf()?);
        reader.consume(n);
        Ok(n)
    }

    /// Whether a read does something though the socket has nothing: bytes are there, or the end is known.
    pub(super) fn has_input(&mut self) -> bool {
        let waits = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        !self.input.is_empty() || !self.connection.reader().fill_buf().is_err_and(waits)
    }

    /// Encrypts some of `bytes`, after all bytes before have gone to the kernel, and sends what it takes.
    pub(super) fn write(&mut self, tcp: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        self.flush(tcp)?;
        let taken = self.connection.writer().write(bytes)?;
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        match self.flush(tcp) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends all records that are ready: those of bytes, and those of TLS itself.
    pub(super) fn flush(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut Output { tcp, unsent: &mut self.unsent })?;
        }
        Ok(())
    }

    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    pub(super) fn free_buffers(&mut self) {
        if self.input.is_empty() {
            self.input = Input::new();
        }
    }

    /// Takes bytes that have come, of the socket if no others are left, and processes their records; 0 at the end.
    fn receive(&mut self, tcp: &TcpStream) -> io::Result<usize> {
        if self.input.is_empty() {
            self.input.fill(tcp)?;
        }
        let taken = self.connection.read_tls(&mut self.input)?;
        match self.connection.process_new_packets() {
            Ok(_) => Ok(taken),
            Err(error) => {
                // An alert tells the peer why; the connection is over in any case.
                let _ = self.flush(tcp);
                Err(io::Error::new(io::ErrorKind::InvalidData, TlsFailed(error)))
            }
        }
    }
}

/// Bytes of the socket that rustls has not taken yet.
struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes to read at once.
    wanted: usize,
}

impl Input {
    fn new() -> Self {
        Self { bytes: Vec::new(), start: 0, end: 0, wanted: FIRST_READ }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Reads from the socket once; only for an empty one.
    fn fill(&mut self, tcp: &TcpStream) -> io::Result<()> {
        if self.bytes.len() != self.wanted {
            self.bytes = vec![0; self.wanted];
        }
        let n = tcp.try_read(&mut self.bytes)?;
        (self.start, self.end) = (0, n);
        if n == self.bytes.len() {
            self.wanted = LATER_READ;
        }
        Ok(())
    }
}

impl io::Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = (&self.bytes[self.start..self.end]).read(into)?;
        self.start += n;
        Ok(n)
    }
}

/// The socket, as rustls writes records to it. A peer that is gone is an error, and no signal.
struct Output<'a> {
    tcp: &'a TcpStream,
    unsent: &'a mut usize,
}

impl io::Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        *self.unsent = parts.iter().map(|part| part.len()).sum();
        let (flags, mut control) =
            (SendFlags::DONTWAIT | SendFlags::NOSIGNAL, SendAncillaryBuffer::default());
        let sent = self
            .tcp
            .try_io(Interest::WRITABLE, || Ok(rustix::net::sendmsg(self.tcp, parts, &mut control, flags)?))?;
        *self.unsent -= sent;
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
