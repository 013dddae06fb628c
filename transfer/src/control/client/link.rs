use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use mc_net::DataStream;
use mc_types::{Nonce, Receipt, SealedGrant};
use smallvec::SmallVec;
use tokio::io::Interest;

use super::iovecs::{IoVecs, MAX_PARTS};
use super::options::TcpOptions;
use super::pieces::Piece;
use super::progress::{Moved, Progress, Watch, within};
use crate::ReadBuffer;
use crate::checksum::{Checksum, Sums};
use crate::control::socket_options;
use crate::control::wire::{
    self, HELLO_REPLY_LEN, Hello, HelloReply, NONCE_SINCE, Request, RequestKind, VERDICT_LEN, VerdictHeader,
    WireError,
};
use crate::transport::Written;

/// Bytes checksummed and sent, or received and checksummed, in one step: few enough to stay in the cache.
pub(crate) const CACHED: usize = 128 << 10;
/// Size in bytes of the read-ahead buffer. At most this much of a value is copied twice.
const AHEAD: usize = 4 << 10;
/// Bytes after which a transfer that never has to wait yields to the caller's other futures and its deadline.
const TURN: usize = 4 << 20;

/// Outcome of one piece: the checksum of its bytes with the receipt of a range that it has sealed, or the store's refusal.
pub(crate) type Outcome = Result<Written, Refused>;

/// The store's refusal of a request or an operation.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// Whether the store is only busy, and may do the same in a moment.
    pub(crate) busy: bool,
    /// Whether RDMA has failed, so that the same may work over another way.
    pub(crate) device: bool,
    /// Whether the bytes can't go by RDMA, or out of an area, and may go over TCP.
    pub(crate) other_way: bool,
    pub(crate) reason: String,
}

impl Refused {
    /// A refusal that another attempt would meet as well.
    pub(crate) fn for_good(reason: String) -> Self {
        Self { busy: false, device: false, other_way: false, reason }
    }
}

/// Whether the store may do what it has refused, in a moment or over TCP.
pub(crate) fn is_for_now(outcome: &Outcome) -> bool {
    outcome.as_ref().is_err_and(|refused| refused.busy || refused.other_way)
}

/// Why a connection can't be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the store closed the connection")]
    Closed,
    #[error(transparent)]
    Protocol(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why a connection could not be made.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Failed(String),
    TooLong(String),
    Refused(Refused),
}

/// A connection to a store. One call at a time owns it and does all of its I/O in the caller's own future. A connection
/// that is dropped or fails halfway is closed, so nothing can touch a caller's buffer later.
pub(crate) struct Link {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    /// Hello that the other end accepted, which names its memory.
    pub(crate) hello: Hello,
    /// Protocol version that both ends speak.
    version: u16,
    /// Nonce of the connection, for proofs; `None` with a store of an earlier version.
    pub(crate) nonce: Option<Nonce>,
    next_id: u64,
    /// Buffer for requests, reused.
    out: Vec<u8>,
    pub(crate) sums: Sums,
}

/// Sending direction of a connection.
pub(crate) struct Sender {
    stream: Arc<DataStream>,
    progress: Progress,
    since_turn: usize,
    /// Copies of parts that TLS encrypts together with those behind them.
    held: Vec<u8>,
}

/// Receiving direction of a connection.
pub(crate) struct Receiver {
    stream: Arc<DataStream>,
    progress: Progress,
    since_turn: usize,
    input: Input,
}

/// Received bytes that were not looked at yet. Verdicts are three bytes, and small values not many more: a system call
/// for each would cost more than they do.
struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    fn new(ahead: usize) -> Self {
        Self { bytes: vec![0; ahead].into(), start: 0, end: 0 }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Moves as many bytes as there are and fit into `into`, and returns their number.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let there = &self.bytes[self.start..self.end];
        let n = there.len().min(into.len());
        into[..n].copy_from_slice(&there[..n]);
        self.start += n;
        n
    }

    /// [`Self::take`] into a buffer, from its byte `at` on.
    fn take_into(&mut self, buffer: &mut ReadBuffer<'_>, at: usize) -> usize {
        let there = &self.bytes[self.start..self.end];
        let n = there.len().min(buffer.len() - at);
        buffer.put(at, &there[..n]);
        self.start += n;
        n
    }
}

impl Link {
    /// Connects to the first address of `address` that answers, each within the connect timeout, and says hello.
    pub(crate) async fn connect(
        address: &str,
        hello: Hello,
        options: &TcpOptions,
        moved: &Arc<Moved>,
    ) -> Result<Self, ConnectError> {
        let timeout = options.connect_timeout;
        let failed = |error: io::Error| ConnectError::Failed(error.to_string());
        let addresses = within(timeout, mc_net::lookup(address)).await;
        let addresses = addresses.ok_or_else(|| too_long("looking the name up", timeout))?.map_err(failed)?;
        let mut last = ConnectError::Failed("the name has no address".to_owned());
        for address in addresses {
            match within(timeout, Self::open(address, hello, options, moved)).await {
                Some(Ok(link)) => return Ok(link),
                Some(Err(error)) => last = error,
                None => last = too_long("connecting", timeout),
            }
        }
        Err(last)
    }

    async fn open(
        address: SocketAddr,
        hello: Hello,
        options: &TcpOptions,
        moved: &Arc<Moved>,
    ) -> Result<Self, ConnectError> {
        let failed = |error: io::Error| ConnectError::Failed(error.to_string());
        let stream = DataStream::connect(address, options.tls.as_ref(), options.store.as_ref());
        let stream = stream.await.map_err(failed)?;
        socket_options::set(&stream);
        let (stream, progress) = (Arc::new(stream), Progress::new(moved.clone()));
        let input = Input::new(AHEAD);
        let mut link = Self {
            sender: Sender::new(stream.clone(), progress.clone()),
            receiver: Receiver { stream, progress, since_turn: 0, input },
            hello,
            version: 0,
            nonce: None,
            next_id: 1,
            out: Vec::new(),
            sums: options.sums,
        };
        match link.shake_hands().await {
            Ok(Ok(())) => Ok(link),
            Ok(Err(refused)) => Err(ConnectError::Refused(refused)),
            Err(broken) => Err(ConnectError::Failed(format!("no hello: {broken}"))),
        }
    }

    async fn shake_hands(&mut self) -> Result<Result<(), Refused>, Broken> {
        let hello = self.hello.encode();
        self.sender.send(&hello).await?;
        let mut reply = [0; HELLO_REPLY_LEN];
        self.receiver.read_exact(&mut reply).await?;
        let reply = HelloReply::decode(&reply)?;
        let verdict = self.receiver.reason(reply.verdict).await?;
        let (ours, theirs) = (self.hello.versions, reply.versions);
        let agreed = (ours.0..=ours.1).contains(&reply.chosen);
        self.version = reply.chosen;
        if verdict.is_ok() && agreed && self.version >= NONCE_SINCE {
            let mut nonce = Nonce([0; Nonce::LEN]);
            self.receiver.read_exact(&mut nonce.0).await?;
            self.nonce = Some(nonce);
        }
        Ok(verdict.and_then(|_| {
            agreed.then_some(()).ok_or_else(|| {
                let reason = format!(
                    "it chose version {} of the transfer protocol and speaks {} to {}, this client {} to {}",
                    reply.chosen, theirs.0, theirs.1, ours.0, ours.1
                );
                Refused::for_good(reason)
            })
        }))
    }

    /// Whether the connection is as it was left: open, and with nothing to read.
    pub(crate) fn is_fresh(&self) -> bool {
        self.receiver.input.is_empty() && self.receiver.stream.is_quiet()
    }

    /// Frees the buffers for TLS, before a time without a call.
    pub(crate) fn free_buffers(&mut self) {
        self.sender.held = Vec::new();
        self.sender.stream.free_buffers();
    }

    /// Returns a watch that sees whether bytes move from here on.
    pub(crate) fn watch(&self) -> Watch {
        Watch::new(self.sender.stream.clone(), self.sender.progress.clone())
    }

    /// Sends a request without payload, and returns the verdict on it as a whole.
    pub(crate) async fn ask<B>(
        &mut self,
        kind: RequestKind,
        grant: &SealedGrant,
        pieces: &[Piece<B>],
    ) -> Result<Result<(), Refused>, Broken> {
        let id = self.request(kind, grant, pieces);
        self.send_out().await?;
        self.receiver.reply(id).await
    }

    /// Bytes that move over it.
    pub(crate) fn progress(&self) -> Progress {
        self.receiver.progress.clone()
    }

    /// Protocol version that both ends speak.
    pub(crate) fn version(&self) -> u16 {
        self.version
    }

    /// The encoded request.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends the encoded request.
    pub(crate) async fn send_out(&mut self) -> Result<(), Broken> {
        let out = std::mem::take(&mut self.out);
        let sent = self.sender.send(&out).await;
        self.out = out;
        sent
    }

    /// Encodes a request, without its payload, into `out` and returns its id.
    pub(crate) fn request<B>(&mut self, kind: RequestKind, grant: &SealedGrant, pieces: &[Piece<B>]) -> u64 {
        self.request_of(kind, pieces.len() as u16, grant, |out| {
            pieces.iter().for_each(|piece| piece.wire_op().encode(out));
        })
    }

    /// Encodes a request of `ops` operations, which `put_ops` appends, into `out` and returns its id.
    pub(crate) fn request_of(
        &mut self,
        kind: RequestKind,
        ops: u16,
        grant: &SealedGrant,
        put_ops: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.out.clear();
        put_request(&mut self.out, (id, kind, ops), grant, self.nonce, put_ops);
        id
    }
}

impl Sender {
    fn new(stream: Arc<DataStream>, progress: Progress) -> Self {
        Self { stream, progress, since_turn: 0, held: Vec::new() }
    }

    /// Sends bytes of our own.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.write_held().await?;
        self.write(bytes).await?;
        self.flush().await
    }

    /// Sends the rest of what [`Self::send_parts`] was given.
    pub(crate) async fn flush(&mut self) -> Result<(), Broken> {
        self.write_held().await?;
        loop {
            match self.stream.try_flush() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    self.moved(n).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn write_held(&mut self) -> Result<(), Broken> {
        let mut held = std::mem::take(&mut self.held);
        self.write(&held).await?;
        held.clear();
        self.held = held;
        Ok(())
    }

    /// Sends parts; the last ones perhaps only with the next ones or [`Self::flush`].
    pub(crate) async fn send_parts(&mut self, parts: &mut IoVecs<'_>) -> Result<(), Broken> {
        while !parts.are_sent() {
            let Some(tcp) = self.stream.plain() else {
                parts.take(DataStream::AT_ONCE - self.held.len(), &mut self.held);
                if self.held.len() == DataStream::AT_ONCE {
                    self.write_held().await?;
                }
                continue;
            };
            match tcp.try_io(Interest::WRITABLE, || parts.send(tcp.as_fd())) {
                Ok(n) => self.moved(n).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn moved(&mut self, n: usize) {
        self.progress.add(n);
        take_turn(&mut self.since_turn, n).await;
    }
}

impl Receiver {
    /// Reads so many bytes ahead from now on.
    pub(crate) fn read_ahead(&mut self, bytes: usize) {
        debug_assert!(self.input.is_empty());
        self.input = Input::new(bytes);
    }

    /// Returns when there is something to read, or the other end has closed the connection.
    pub(crate) async fn unexpected(&self) {
        if self.input.is_empty() {
            // An error is the end as well.
            let _ = self.stream.has_bytes().await;
        }
    }

    /// Receives once into `buffers`, of which the first is filled up to `at`.
    fn receive_into(&self, buffers: &mut [ReadBuffer<'_>], at: usize) -> io::Result<usize> {
        let Some(tcp) = self.stream.plain() else {
            return self.stream.try_read_with(|bytes| put_all(buffers, at, bytes));
        };
        let (mut batch, mut room) = (IoVecs::default(), CACHED);
        for (i, part) in buffers.iter_mut().take(MAX_PARTS).enumerate() {
            let (_, part) = part.reborrow().split_at(if i == 0 { at } else { 0 });
            let len = part.len().min(room);
            batch.push_room(part.split_at(len).0);
            room -= len;
            if room == 0 {
                break;
            }
        }
        tcp.try_io(Interest::READABLE, || batch.receive(tcp.as_fd()))
    }

    /// Receives the bytes of one piece into the caller's buffers.
    pub(crate) async fn receive(
        &mut self,
        piece: &mut Piece<ReadBuffer<'_>>,
        sums: Sums,
    ) -> Result<Checksum, Broken> {
        let mut checksum = sums.of_reads();
        // Buffer and offset for the next byte.
        let (mut buffer, mut at) = (0, 0);
        while let Some(left) = piece.buffers.get_mut(buffer..).filter(|left| !left.is_empty()) {
            debug_assert!(at < left[0].len());
            let received = match self.input.take_into(&mut left[0], at) {
                0 => self.receive_into(left, at),
                ahead => Ok(ahead),
            };
            match received {
                Ok(0) => return Err(Broken::Closed),
                Ok(n) => {
                    // Summed before the next await: another operation of the call may fill the same memory.
                    let mut left = n;
                    while left > 0 {
                        let part = &piece.buffers[buffer];
                        let taken = (part.len() - at).min(left);
                        part.add_to(at..at + taken, &mut checksum);
                        left -= taken;
                        at += taken;
                        if at == part.len() {
                            (buffer, at) = (buffer + 1, 0);
                        }
                    }
                    self.moved(n).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.readable().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(checksum.finish())
    }

    pub(crate) async fn reply(&mut self, id: u64) -> Result<Result<(), Refused>, Broken> {
        let mut reply = wire::PROGRESS;
        while reply == wire::PROGRESS {
            self.read_exact(&mut reply).await?;
        }
        wire::check_reply(reply, id)?;
        Ok(self.verdict().await?.map(drop))
    }

    /// Reads a verdict, with the receipt if it is a good one on an operation that has sealed its range.
    pub(crate) async fn verdict(&mut self) -> Result<Result<Option<Receipt>, Refused>, Broken> {
        let mut header = [0; VERDICT_LEN];
        self.read_exact(&mut header).await?;
        self.reason(VerdictHeader::decode(&header)?).await
    }

    /// Reads the rest of a verdict.
    async fn reason(&mut self, header: VerdictHeader) -> Result<Result<Option<Receipt>, Refused>, Broken> {
        let mut reason = SmallVec::<[u8; Receipt::LEN]>::from_elem(0, header.reason_len);
        self.read_exact(&mut reason).await?;
        Ok(if header.good {
            Ok(Receipt::from_bytes(&reason))
        } else {
            let VerdictHeader { busy, device, other_way, .. } = header;
            Err(Refused { busy, device, other_way, reason: String::from_utf8_lossy(&reason).into_owned() })
        })
    }

    pub(crate) async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), Broken> {
        let mut done = 0;
        loop {
            done += self.input.take(&mut into[done..]);
            if done == into.len() {
                return Ok(());
            }
            match self.stream.try_read(&mut self.input.bytes[..]) {
                Ok(0) => return Err(Broken::Closed),
                Ok(n) => {
                    (self.input.start, self.input.end) = (0, n);
                    self.progress.add(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.readable().await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn moved(&mut self, n: usize) {
        self.progress.add(n);
        take_turn(&mut self.since_turn, n).await;
    }
}

/// Copies as many bytes as fit into `buffers`, of which the first is filled up to `at`, and returns their number.
fn put_all(buffers: &mut [ReadBuffer<'_>], mut at: usize, bytes: &[u8]) -> usize {
    let mut done = 0;
    for buffer in buffers {
        let now = (buffer.len() - at).min(bytes.len() - done);
        buffer.put(at, &bytes[done..done + now]);
        done += now;
        at = 0;
    }
    done
}

/// Counts bytes that have moved, and yields after each [`TURN`] of them.
async fn take_turn(since_turn: &mut usize, n: usize) {
    *since_turn += n;
    if *since_turn >= TURN {
        *since_turn = 0;
        tokio::task::yield_now().await;
    }
}

/// Appends a request of `ops` operations, which `put_ops` appends, with a proof if the grant needs one.
pub(crate) fn put_request(
    out: &mut Vec<u8>,
    (id, kind, ops): (u64, RequestKind, u16),
    grant: &SealedGrant,
    nonce: Option<Nonce>,
    put_ops: impl FnOnce(&mut Vec<u8>),
) {
    let proving = grant.proof_key.zip(nonce);
    let (grant_len, has_proof) = (grant.bytes.len() as u32, proving.is_some());
    let header = Request { id, kind, ops, grant_len, has_proof }.encode();
    out.extend_from_slice(&header);
    out.extend_from_slice(&grant.bytes);
    let from = out.len();
    put_ops(out);
    if let Some((key, nonce)) = proving {
        let proof = key.prove(nonce, &header, &out[from..]);
        out.extend_from_slice(&proof.to_bytes());
    }
}

fn too_long(what: &str, timeout: Duration) -> ConnectError {
    ConnectError::TooLong(format!("{what} took longer than {timeout:?}"))
}
