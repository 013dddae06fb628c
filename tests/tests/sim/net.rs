//! The simulated network: connections between hosts whose bytes take time, and arrive late or never.
//!
//! It behaves as TCP does over links that fail: a cut link loses nothing, it holds what was sent until it is whole again
//! (retransmission), and a connection over it stays half-open until somebody's keep-alive gives it up. Of a link that
//! loses segments a connection sees that it stalls: what is lost is sent again after 200 ms, then 400, and so on, and what
//! was sent after it waits. The death of a process closes its connections; the loss of a machine's power does not, its
//! peers hear nothing until it is back and answers their next segment with a reset.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use mc_net::{ChannelOptions, Connection, Listener, Network, endpoint};
use mc_tests::Seeded;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Uri};

use crate::trace::Trace;

/// A machine on the network.
pub(crate) type Host = usize;

/// Which end of a connection: the one that dialled, or the one that accepted.
type End = usize;
const DIALER: End = 0;
const ACCEPTOR: End = 1;

/// A lost segment is sent again after so many ms, and twice as many each time.
const RETRANSMISSION: u64 = 200;
/// Nothing is lost again that has waited for so long.
const LONGEST_STALL: u64 = 3_000;

/// All links and connections.
#[derive(Clone)]
pub(crate) struct Net(Arc<Mutex<State>>);

struct State {
    now: u64,
    rng: Seeded,
    trace: Trace,
    sequence: u64,
    /// On their way, by arrival time and order of sending.
    due: BTreeMap<(u64, u64), Segment>,
    links: BTreeMap<(Host, Host), Link>,
    powered: Vec<bool>,
    listeners: BTreeMap<SocketAddr, (Host, mpsc::UnboundedSender<io::Result<Connection>>)>,
    connections: BTreeMap<u64, Ends>,
    delivered: u64,
}

#[derive(Default)]
struct Link {
    cut: bool,
    /// Segments that could not get through, in the order in which they were sent.
    held: BTreeMap<u64, Segment>,
    /// The number of the last segment that was sent before it was cut.
    sent_before: u64,
    /// Added to every latency, in ms.
    slow: u64,
    /// Of 100 segments.
    loss: u64,
}

struct Segment {
    from: Host,
    to: Host,
    connection: u64,
    /// Whose end it arrives at.
    end: End,
    what: What,
}

enum What {
    Open(SocketAddr),
    Accepted,
    Refused,
    Bytes(Vec<u8>),
    Finish,
    Reset,
}

struct Ends {
    ends: [EndState; 2],
    dialing: Option<oneshot::Sender<io::Result<Stream>>>,
}

struct EndState {
    host: Host,
    /// Whether a process still holds it.
    open: bool,
    received: VecDeque<u8>,
    finished: bool,
    reset: bool,
    reader: Option<Waker>,
    /// Nothing arrives here before what was sent earlier.
    last_arrival: u64,
}

impl EndState {
    fn new(host: Host) -> Self {
        Self {
            host,
            open: true,
            received: VecDeque::new(),
            finished: false,
            reset: false,
            reader: None,
            last_arrival: 0,
        }
    }
}

impl Net {
    pub(crate) fn new(hosts: usize, rng: Seeded, trace: Trace) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: 0,
            rng,
            trace,
            sequence: 0,
            due: BTreeMap::new(),
            links: BTreeMap::new(),
            powered: vec![true; hosts],
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            delivered: 0,
        })))
    }

    /// The network as `host` sees it.
    pub(crate) fn of(&self, host: Host) -> Arc<dyn Network> {
        Arc::new(HostNetwork { net: self.clone(), host })
    }

    /// Delivers what arrives up to `now`.
    pub(crate) fn advance(&self, now: u64) {
        let mut awake = Vec::new();
        let mut finished = Vec::new();
        {
            let mut state = self.0.lock();
            state.now = now;
            while let Some(next) = state.due.first_entry().filter(|next| next.key().0 <= now) {
                let segment = next.remove();
                state.deliver(self, segment, &mut awake, &mut finished);
            }
        }
        // Without the lock: a dial that was given up drops its stream here.
        drop(finished);
        awake.into_iter().for_each(Waker::wake);
    }

    /// Cuts or heals one direction of a link. What is under way when it is cut is held with what is sent later: were only
    /// that held which arrives at a cut link, a link healed in between would let what came last overtake the rest.
    pub(crate) fn set_cut(&self, from: Host, to: Host, cut: bool) {
        let mut state = self.0.lock();
        let State { links, due, sequence, .. } = &mut *state;
        let link = links.entry((from, to)).or_default();
        if cut {
            if !link.cut {
                link.sent_before = *sequence;
            }
            link.cut = true;
            for ((at, sequence), segment) in std::mem::take(due) {
                if (segment.from, segment.to) == (from, to) {
                    link.held.insert(sequence, segment);
                } else {
                    due.insert((at, sequence), segment);
                }
            }
        } else {
            link.cut = false;
            for (_, segment) in std::mem::take(&mut link.held) {
                state.send(segment);
            }
        }
    }

    /// Lets some of what was on its way when a link was cut arrive after all: of 100 segments so many, the first ones. The
    /// link stays cut for what was sent later.
    pub(crate) fn let_through(&self, from: Host, to: Host, percent: u64) {
        let mut state = self.0.lock();
        let link = state.links.entry((from, to)).or_default();
        if !link.cut {
            return;
        }
        let mut old = std::mem::take(&mut link.held);
        let mut still_held = old.split_off(&(link.sent_before + 1));
        let count = (old.len() as u64 * percent).div_ceil(100) as usize;
        link.cut = false;
        let mut old = old.into_iter();
        for (_, segment) in old.by_ref().take(count) {
            state.send(segment);
        }
        still_held.extend(old);
        let link = state.links.entry((from, to)).or_default();
        link.cut = true;
        link.held = still_held;
    }

    pub(crate) fn is_cut(&self, from: Host, to: Host) -> bool {
        self.0.lock().links.get(&(from, to)).is_some_and(|link| link.cut)
    }

    /// Whether one direction of a link is cut and has held something back.
    pub(crate) fn holds(&self, from: Host, to: Host) -> bool {
        self.0.lock().links.get(&(from, to)).is_some_and(|link| !link.held.is_empty())
    }

    /// Adds to the latency of one direction of a link, in ms.
    pub(crate) fn set_slow(&self, from: Host, to: Host, slow: u64) {
        self.0.lock().links.entry((from, to)).or_default().slow = slow;
    }

    /// Loses so many of 100 segments in one direction of a link.
    pub(crate) fn set_loss(&self, from: Host, to: Host, loss: u64) {
        self.0.lock().links.entry((from, to)).or_default().loss = loss;
    }

    /// A machine without power neither sends nor answers, and its connections die without a word.
    pub(crate) fn set_power(&self, host: Host, on: bool) {
        self.0.lock().powered[host] = on;
    }

    /// Nobody listens there any more.
    pub(crate) fn close_listeners(&self, host: Host) {
        self.0.lock().listeners.retain(|_, (owner, _)| *owner != host);
    }

    /// Segments delivered so far.
    pub(crate) fn delivered(&self) -> u64 {
        self.0.lock().delivered
    }

    pub(crate) async fn dial(&self, host: Host, to: SocketAddr) -> io::Result<Stream> {
        let (dialing, done) = oneshot::channel();
        {
            let mut state = self.0.lock();
            let Some(target) = host_of(to) else { return Err(io::ErrorKind::AddrNotAvailable.into()) };
            state.sequence += 1;
            let connection = state.sequence;
            let ends = [EndState::new(host), EndState { open: false, ..EndState::new(target) }];
            state.connections.insert(connection, Ends { ends, dialing: Some(dialing) });
            state.send(Segment { from: host, to: target, connection, end: ACCEPTOR, what: What::Open(to) });
        }
        done.await.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionReset.into()))
    }
}

/// Hosts have the addresses 10.0.0.1 and on.
pub(crate) fn address_of(host: Host, port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, u8::try_from(host + 1).expect("few hosts")].into(), port)
}

fn host_of(address: SocketAddr) -> Option<Host> {
    match address.ip() {
        std::net::IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(1),
        std::net::IpAddr::V6(_) => None,
    }
}

/// How long a segment waits to be sent again, until it is not lost.
fn stall(rng: &mut Seeded, loss: u64) -> u64 {
    let (mut stall, mut next) = (0, RETRANSMISSION);
    while loss > 0 && stall < LONGEST_STALL && rng.below(100) < loss {
        stall += next;
        next *= 2;
    }
    stall
}

impl State {
    /// Puts a segment on its way.
    fn send(&mut self, segment: Segment) {
        if !self.powered[segment.from] {
            return;
        }
        self.sequence += 1;
        let link = self.links.entry((segment.from, segment.to)).or_default();
        if link.cut {
            link.held.insert(self.sequence, segment);
            return;
        }
        // Mostly a round trip of a few milliseconds, now and then a straggler.
        let jitter = if self.rng.below(200) == 0 { self.rng.within(5..60) } else { self.rng.below(3) };
        let way = 1 + jitter + link.slow + stall(&mut self.rng, link.loss);
        let latency = if segment.from == segment.to { 1 } else { way };
        let Some(connection) = self.connections.get_mut(&segment.connection) else { return };
        let end = &mut connection.ends[segment.end];
        end.last_arrival = end.last_arrival.max(self.now + latency);
        let at = end.last_arrival;
        self.due.insert((at, self.sequence), segment);
    }

    fn answer(&mut self, to: &Segment, what: What) {
        let (from, to, connection, end) = (to.to, to.from, to.connection, 1 - to.end);
        self.send(Segment { from, to, connection, end, what });
    }

    fn deliver(
        &mut self,
        net: &Net,
        segment: Segment,
        awake: &mut Vec<Waker>,
        finished: &mut Vec<Result<(), io::Result<Stream>>>,
    ) {
        if !self.powered[segment.to] {
            return;
        }
        self.delivered += 1;
        self.trace.note(&[
            self.now,
            segment.from as u64,
            segment.to as u64,
            segment.what.kind(),
            segment.connection,
        ]);
        let Some(connection) = self.connections.get_mut(&segment.connection) else { return };
        match &segment.what {
            What::Open(address) => {
                let listener = self.listeners.get(address).map(|(_, listener)| listener.clone());
                match listener.filter(|listener| !listener.is_closed()) {
                    Some(listener) => {
                        connection.ends[ACCEPTOR].open = true;
                        let stream =
                            Stream { net: net.clone(), connection: segment.connection, end: ACCEPTOR };
                        // It is open, so this takes the stream, whose drop would want the lock.
                        let _ = listener.send(Ok(Connection::new(stream)));
                        self.answer(&segment, What::Accepted);
                    }
                    None => self.answer(&segment, What::Refused),
                }
            }
            What::Accepted | What::Refused => {
                let Some(dialing) = connection.dialing.take() else { return };
                let answer = if matches!(segment.what, What::Accepted) {
                    Ok(Stream { net: net.clone(), connection: segment.connection, end: DIALER })
                } else {
                    self.connections.remove(&segment.connection);
                    Err(io::ErrorKind::ConnectionRefused.into())
                };
                finished.push(dialing.send(answer));
            }
            What::Bytes(bytes) if connection.ends[segment.end].open => {
                let end = &mut connection.ends[segment.end];
                end.received.extend(bytes);
                awake.extend(end.reader.take());
            }
            What::Bytes(_) => self.answer(&segment, What::Reset),
            What::Finish => {
                let end = &mut connection.ends[segment.end];
                end.finished = true;
                awake.extend(end.reader.take());
                self.forget_if_over(segment.connection);
            }
            What::Reset => {
                let end = &mut connection.ends[segment.end];
                end.reset = true;
                awake.extend(end.reader.take());
                self.forget_if_over(segment.connection);
            }
        }
    }

    fn forget_if_over(&mut self, connection: u64) {
        let over = self.connections.get(&connection).is_some_and(|it| it.ends.iter().all(|end| !end.open));
        if over {
            self.connections.remove(&connection);
        }
    }
}

impl What {
    fn kind(&self) -> u64 {
        match self {
            Self::Open(_) => 0,
            Self::Accepted => 1,
            Self::Refused => 2,
            Self::Bytes(_) => 3,
            Self::Finish => 4,
            Self::Reset => 5,
        }
    }
}

/// One end of a connection.
pub(crate) struct Stream {
    net: Net,
    connection: u64,
    end: End,
}

impl Stream {
    fn send(&self, state: &mut State, what: What) {
        let Some(connection) = state.connections.get(&self.connection) else { return };
        let (from, to) = (connection.ends[self.end].host, connection.ends[1 - self.end].host);
        state.send(Segment { from, to, connection: self.connection, end: 1 - self.end, what });
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.net.0.lock();
        let Some(connection) = state.connections.get_mut(&self.connection) else {
            return Poll::Ready(Ok(()));
        };
        let end = &mut connection.ends[self.end];
        if !end.received.is_empty() {
            let count = end.received.len().min(buf.remaining());
            let (first, second) = end.received.as_slices();
            let first = &first[..count.min(first.len())];
            buf.put_slice(first);
            buf.put_slice(&second[..count - first.len()]);
            end.received.drain(..count);
            return Poll::Ready(Ok(()));
        }
        if end.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if end.finished {
            return Poll::Ready(Ok(()));
        }
        end.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.net.0.lock();
        match state.connections.get(&self.connection) {
            Some(connection) if !connection.ends[self.end].reset => {}
            _ => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
        self.send(&mut state, What::Bytes(bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.net.0.lock();
        self.send(&mut state, What::Finish);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.net.0.lock();
        self.send(&mut state, What::Finish);
        if let Some(connection) = state.connections.get_mut(&self.connection) {
            let end = &mut connection.ends[self.end];
            end.open = false;
            end.reader = None;
        }
        state.forget_if_over(self.connection);
    }
}

struct HostNetwork {
    net: Net,
    host: Host,
}

impl fmt::Debug for HostNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}", self.host)
    }
}

impl Network for HostNetwork {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Listener>> {
        Box::pin(async move {
            let address: SocketAddr = address.parse().map_err(io::Error::other)?;
            let (accept, accepted) = mpsc::unbounded_channel();
            self.net.0.lock().listeners.insert(address, (self.host, accept));
            Ok(Listener { address, incoming: Box::pin(UnboundedReceiverStream::new(accepted)) })
        })
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
        Box::pin(async move {
            let address: SocketAddr = address.parse().map_err(io::Error::other)?;
            Ok(Connection::new(self.net.dial(self.host, address).await?))
        })
    }

    fn channel(&self, address: &str, options: ChannelOptions) -> Result<Channel, tonic::transport::Error> {
        let (net, host) = (self.net.clone(), self.host);
        let connector = tower::service_fn(move |uri: Uri| {
            let net = net.clone();
            async move {
                let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
                let address: SocketAddr = authority.parse().map_err(io::Error::other)?;
                io::Result::Ok(TokioIo::new(net.dial(host, address).await?))
            }
        });
        Ok(endpoint(address, options)?.connect_with_connector_lazy(connector))
    }
}
