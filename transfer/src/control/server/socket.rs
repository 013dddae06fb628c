mod secured;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use mc_net::{DataStream, Tls};
use rustix::net::SendFlags;
use smallvec::SmallVec;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use self::secured::Held;
use super::pace::Pace;
use super::served::AdmittedWrite;
use crate::control::wire::WireError;
use crate::fence::{HeldPass, ReadPass};
use crate::memory::Segment;

/// Maximum bytes of one receive under write passes: about 50 us, for which a newer write of the same bytes may wait.
pub(crate) const RECV_CHUNK: u64 = 256 << 10;
/// Maximum number of writes that one receive fills.
pub(crate) const MAX_TOGETHER: usize = 64;
/// Maximum bytes of one send under a read's pass, for the same reason.
const SEND_CHUNK: u64 = 256 << 10;
/// Bytes after which a connection that never has to wait yields to the others.
const TURN: usize = 4 << 20;
/// Number of requests after which it yields, however small they are.
const REQUESTS_IN_TURN: usize = 32;
/// Size in bytes of the buffer for the payload of refused writes.
const DISCARD_CHUNK: usize = 64 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    #[error("the peer closed the connection")]
    ByPeer,
    #[error("the connection was idle for longer than {0:?}")]
    Idle(Duration),
    #[error("the connection was idle and was closed to make room for another one")]
    Crowded,
    #[error("the peer stalled in the middle of a message, or sent or read it too slowly")]
    Stalled,
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] WireError),
    #[error("the queue pair beside it can't be used any more")]
    Rdma,
    #[error("the store refused the peer's hello")]
    Refused,
    #[error("the peer's certificate has expired")]
    Expired,
    #[error("the store refuses the peer from now on: {0}")]
    NotServed(String),
    #[error("no TLS with the peer: {0}")]
    Tls(io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Outcome of receiving a write: all its bytes, or its pass was superseded on the way and its other bytes were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    All,
    Superseded,
}

/// Receives once into the first of `writes`, which has `done` bytes, and into as many of the following writes as can be
/// held at this moment; `None` when the first has lost its pass.
fn receive_some(socket: BorrowedFd<'_>, writes: &[AdmittedWrite], done: u64) -> io::Result<Option<usize>> {
    // Each piece with the hold that keeps it valid.
    let mut pieces: SmallVec<[(HeldPass<'_>, &Segment, u64, u64); 1]> = SmallVec::with_capacity(writes.len());
    let mut room = RECV_CHUNK;
    for (nth, write) in writes.iter().enumerate() {
        if room == 0 {
            break;
        }
        let (pass, from) = if nth == 0 { (write.pass.hold(), done) } else { (write.pass.try_hold(), 0) };
        let Some(pass) = pass else { break };
        let len = room.min(write.len - from);
        pieces.push((pass, &*write.lent.segment, write.offset + from, len));
        room -= len;
    }
    if pieces.is_empty() {
        return Ok(None);
    }
    Segment::recv(socket, pieces.iter().map(|(_, segment, offset, len)| (*segment, *offset, *len))).map(Some)
}

/// Returns why a connection ends with an error of its stream.
fn closed_by(error: io::Error) -> Closed {
    match error.kind() {
        // Only TLS judges bytes.
        io::ErrorKind::InvalidData => Closed::Tls(error),
        io::ErrorKind::UnexpectedEof => Closed::ByPeer,
        _ => Closed::Io(error),
    }
}

/// Sends once, at most `len` bytes.
fn send_zeros(socket: BorrowedFd<'_>, len: u64) -> io::Result<usize> {
    static ZEROS: [u8; 16 << 10] = [0; _];
    let zeros = ZEROS.get(..usize::try_from(len).unwrap_or(usize::MAX)).unwrap_or(&ZEROS);
    Ok(rustix::net::send(socket, zeros, SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::MORE)?)
}

/// The server's end of a connection: every wait is bounded, and payload moves directly between socket and segment, if no TLS is in between.
///
/// The futures of TLS are boxed, so that thousands of idle connections reserve no memory for them.
pub(crate) struct Socket {
    stream: DataStream,
    pace: Pace,
    /// Bytes moved since it last waited or yielded.
    since_turn: usize,
    discarded: Vec<u8>,
    /// Bytes that TLS encrypts together with those behind them.
    held: Held,
}

impl Socket {
    pub(crate) fn new(stream: DataStream, stall: Duration) -> Self {
        Self { stream, pace: Pace::new(stall), since_turn: 0, discarded: Vec::new(), held: Held::default() }
    }

    /// Takes a connection that was accepted. The handshake, if it begins with one, has no more time than a first message.
    pub(crate) async fn accept(
        tcp: TcpStream,
        tls: Option<&Arc<Tls>>,
        stall: Duration,
    ) -> Result<Self, Closed> {
        match tokio::time::timeout(stall, Box::pin(DataStream::accept(tcp, tls))).await {
            Ok(Ok(stream)) => Ok(Self::new(stream, stall)),
            Ok(Err(error)) => Err(closed_by(error)),
            Err(_) => Err(Closed::Stalled),
        }
    }

    /// Whether the certificate of the process at the other end is no longer valid.
    pub(crate) fn has_expired(&self) -> bool {
        self.stream.has_expired()
    }

    /// The process at the other end.
    pub(crate) fn peer(&self) -> &mc_net::Peer {
        self.stream.peer()
    }

    /// Its host.
    pub(crate) fn host(&self) -> Option<IpAddr> {
        self.stream.host()
    }

    pub(crate) async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), Closed> {
        self.read_message(into, None).await
    }

    /// Fills `into`. With `idle` it is the start of a message, and its first byte may take that long.
    pub(crate) async fn read_message(
        &mut self,
        into: &mut [u8],
        idle: Option<Duration>,
    ) -> Result<(), Closed> {
        let mut done = 0;
        while done < into.len() {
            match (self.stream.try_read(&mut into[done..]), idle) {
                (Ok(0), _) => return Err(Closed::ByPeer),
                (Ok(n), _) => {
                    if done == 0 && idle.is_some() {
                        self.pace.begin();
                    }
                    done += n;
                    self.moved(n).await;
                }
                // The runtime may believe that there is something to read until an attempt has failed, so this is the
                // place to wait, not before the attempt.
                (Err(error), Some(idle)) if done == 0 && error.kind() == io::ErrorKind::WouldBlock => {
                    match tokio::time::timeout(idle, self.stream.readable()).await {
                        Ok(ready) => ready?,
                        Err(_) => return Err(Closed::Idle(idle)),
                    }
                }
                (Err(error), _) => self.wait(Interest::READABLE, error).await?,
            }
        }
        Ok(())
    }

    /// Waits for the first byte of a message, for at most `idle`, or until this connection's place is `wanted`.
    pub(crate) async fn wait_idle(
        &self,
        idle: Duration,
        wanted: impl Future<Output = ()>,
    ) -> Result<(), Closed> {
        tokio::select! {
            biased;
            ready = self.stream.readable() => Ok(ready?),
            () = wanted => Err(Closed::Crowded),
            () = tokio::time::sleep(idle) => Err(Closed::Idle(idle)),
        }
    }

    /// Sends protocol bytes; `more` says that payload follows at once.
    pub(crate) async fn send(&mut self, bytes: &[u8], more: bool) -> Result<(), Closed> {
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        let mut done = 0;
        loop {
            let Some(tcp) = self.stream.plain() else {
                return Box::pin(self.send_secured(bytes, more)).await;
            };
            if done == bytes.len() {
                return Ok(());
            }
            let send = || Ok(rustix::net::send(tcp.as_fd(), &bytes[done..], flags)?);
            match tcp.try_io(Interest::WRITABLE, send) {
                Ok(n) => {
                    self.pace.moved(n);
                    done += n;
                }
                Err(error) => self.wait(Interest::WRITABLE, error).await?,
            }
        }
    }

    /// Receives the bytes of `writes`, one write after the other, and appends the outcome of each to `outcomes`. Every
    /// byte is received under its write's pass; when a write has lost its pass, the rest of its bytes is dropped.
    pub(crate) async fn receive(
        &mut self,
        writes: &[AdmittedWrite],
        outcomes: &mut SmallVec<[Received; 1]>,
    ) -> Result<(), Closed> {
        // The first write that is not done, and the number of its bytes that have been received.
        let (mut at, mut done) = (0, 0);
        while let Some(write) = writes.get(at) {
            if done >= write.len {
                (at, done) = (at + 1, done - write.len);
                outcomes.push(Received::All);
                continue;
            }
            let Some(tcp) = self.stream.plain() else {
                return Box::pin(self.receive_secured(writes, outcomes)).await;
            };
            let receive = || receive_some(tcp.as_fd(), &writes[at..], done);
            match tcp.try_io(Interest::READABLE, receive) {
                Ok(None) => {
                    self.discard(write.len - done).await?;
                    (at, done) = (at + 1, 0);
                    outcomes.push(Received::Superseded);
                }
                Ok(Some(0)) => return Err(Closed::ByPeer),
                Ok(Some(n)) => {
                    // Some may be bytes of the following writes.
                    done += n as u64;
                    self.moved(n).await;
                }
                Err(error) => self.wait(Interest::READABLE, error).await?,
            }
        }
        Ok(())
    }

    /// Sends `len` bytes of `segment`. Each is sent under the read's pass; once that is lost, zeros follow up to the length, which
    /// the peer was promised. When it returns, the kernel holds copies of all of them, or with TLS this connection does.
    pub(crate) async fn send_segment(
        &mut self,
        segment: &Segment,
        offset: u64,
        len: u64,
        pass: &ReadPass<'_>,
    ) -> Result<(), Closed> {
        let mut done = 0;
        while done < len {
            let Some(tcp) = self.stream.plain() else {
                return Box::pin(self.send_segment_secured(segment, offset, len, pass)).await;
            };
            let send = || match pass.hold() {
                Some(_held) => segment.send(tcp.as_fd(), offset + done, SEND_CHUNK.min(len - done)),
                None => send_zeros(tcp.as_fd(), len - done),
            };
            match tcp.try_io(Interest::WRITABLE, send) {
                Ok(n) => {
                    done += n as u64;
                    self.moved(n).await;
                }
                Err(error) => self.wait(Interest::WRITABLE, error).await?,
            }
        }
        Ok(())
    }

    /// Reads and drops the payload of a refused write. The kernel resets a connection that is closed with unread bytes,
    /// and the refusal would be lost.
    pub(crate) async fn discard(&mut self, len: u64) -> Result<(), Closed> {
        let mut buffer = std::mem::take(&mut self.discarded);
        buffer.resize(DISCARD_CHUNK, 0);
        let mut left = len;
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(usize::MAX).min(DISCARD_CHUNK);
            self.read_exact(&mut buffer[..piece]).await?;
            left -= piece as u64;
        }
        self.discarded = buffer;
        Ok(())
    }

    /// Sends as many bytes as the connection takes at once, and returns their number.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> usize {
        // Those come first.
        if !self.held.is_empty() {
            return 0;
        }
        self.stream.try_write(bytes).unwrap_or(0)
    }

    /// Returns when the peer has closed the connection. No bytes are expected from the peer meanwhile.
    pub(crate) async fn gone(&self) {
        // A request that comes early hides the end until it is read, and then the end is noticed there.
        if let Ok(true) = self.stream.has_bytes().await {
            std::future::pending::<()>().await;
        }
    }

    /// Frees the buffers that it keeps from request to request.
    pub(crate) fn free_buffers(&mut self) {
        (self.discarded, self.held) = (Vec::new(), Held::default());
        self.stream.free_buffers();
    }

    /// Handles the error of an attempt: waits if the socket was not ready.
    async fn wait(&mut self, interest: Interest, error: io::Error) -> Result<(), Closed> {
        match error.kind() {
            io::ErrorKind::WouldBlock => {
                self.since_turn = 0;
                let began = Instant::now();
                let ready = tokio::time::timeout(self.pace.next_wait(), self.stream.ready(interest)).await;
                self.pace.waited(began.elapsed());
                match ready {
                    Ok(ready) => Ok(ready?),
                    Err(_) => Err(Closed::Stalled),
                }
            }
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(closed_by(error)),
        }
    }

    /// Counts a request as a number of bytes, so that a client that sends many small requests also yields its turn.
    pub(crate) async fn take_turn(&mut self) {
        self.yield_after(TURN / REQUESTS_IN_TURN).await;
    }

    async fn moved(&mut self, n: usize) {
        self.pace.moved(n);
        self.yield_after(n).await;
    }

    async fn yield_after(&mut self, n: usize) {
        self.since_turn += n;
        if self.since_turn >= TURN {
            self.since_turn = 0;
            tokio::task::yield_now().await;
        }
    }
}
