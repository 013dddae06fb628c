use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::connection::Connection;
use crate::limits::Limits;
use crate::pool::{Link, Pool};
use crate::raw_parts::RawParts;
use crate::regions::Use;
use crate::serve::{Served, accept};
use crate::wire::{self, Answer, HEAD, HELLO, Kind, MAX_RANGES, MAX_TEXT, RANGE, Request};
use crate::{Direction, Notice, Peer, Piece, Range, RegisterError, Submitted, TransferError};

/// Most submitted transfers that are under way.
const MAX_SUBMITTED: usize = 1_024;
/// Bytes of the stack of such a transfer's thread.
const STACK: usize = 256 << 10;
/// One end of transfers. Dropping it calls [`Engine::close`].
pub struct Engine {
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    address: SocketAddr,
}

struct Shared {
    served: Arc<Served>,
    pool: Pool,
    submitted: AtomicUsize,
}

/// Why a request failed on one connection.
enum Failure {
    Refused(String),
    Lost(io::Error),
    Stranger([u8; 8]),
    Ended,
}

impl From<io::Error> for Failure {
    fn from(why: io::Error) -> Self {
        Self::Lost(why)
    }
}

impl Engine {
    /// Listens on a free port: of the host's address, or of all addresses if it has several or none of this machine's.
    ///
    /// # Errors
    /// The system's error if there is no port or no thread.
    pub fn listen(host: &str, limits: Limits) -> io::Result<Self> {
        let found: BTreeSet<_> = (host, 0).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        // Peers reach it at each of the addresses of its name, but none from elsewhere at one of the loopback interface.
        let is_one = found.len() == 1 || found.iter().all(|address| address.ip().is_loopback());
        let bound = match found.first() {
            Some(address) if is_one => TcpListener::bind(address),
            _ => Err(io::Error::other(format!("it has {} addresses", found.len()))),
        };
        let listener = bound.or_else(|why| {
            tracing::info!("the transfer engine of {host} listens on all addresses: {why}");
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind("0.0.0.0:0"))
        })?;
        let address = listener.local_addr()?;
        let served = Arc::new(Served {
            limits,
            regions: Arc::default(),
            sockets: Arc::default(),
            notices: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        let listener = Arc::new(listener);
        let (accepting, serving) = (listener.clone(), served.clone());
        thread::Builder::new().name("mc-engine".into()).spawn(move || accept(&accepting, &serving))?;
        let shared = Shared { served, pool: Pool::default(), submitted: AtomicUsize::new(0) };
        Ok(Self { shared: Arc::new(shared), listener, address })
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Registers memory; peers may read and write it if it is shared.
    ///
    /// # Errors
    /// [`RegisterError`]
    ///
    /// # Safety
    /// The memory must stay valid until it is unregistered or the engine is dropped. Until then peers may write to it
    /// at any time.
    #[allow(unsafe_code)]
    pub unsafe fn register(&self, address: usize, len: usize, is_shared: bool) -> Result<(), RegisterError> {
        self.shared.served.regions.add(address, len, is_shared)
    }

    /// Unregisters the memory that begins there. Transfers that began when it was registered get a second to end, and fail then; when
    /// this returns, none of them reaches it.
    ///
    /// # Errors
    /// [`RegisterError::Unknown`]
    pub fn unregister(&self, address: usize) -> Result<(), RegisterError> {
        self.shared.served.regions.remove(address)
    }

    /// Whether a range lies in one piece of registered memory.
    #[must_use]
    pub fn holds(&self, range: Range) -> bool {
        self.shared.served.regions.hold(range)
    }

    /// Asks a peer for the memory that it registered first, of that which it shares.
    ///
    /// # Errors
    /// [`TransferError`]
    pub fn first_of(&self, peer: &Peer) -> Result<Option<Range>, TransferError> {
        let answered = self.shared.ask(peer, Kind::First, &[], RANGE)?;
        Ok(wire::decode_ranges(&answered).pop())
    }

    /// Finds out whether a peer answers.
    ///
    /// # Errors
    /// [`TransferError`]
    pub fn probe(&self, peer: &Peer) -> Result<(), TransferError> {
        self.shared.ask(peer, Kind::Probe, &[], 0).map(drop)
    }

    /// Sends a notice to a peer.
    ///
    /// # Errors
    /// [`TransferError`]
    pub fn notify(&self, peer: &Peer, notice: &Notice) -> Result<(), TransferError> {
        let too_long = (notice.name.len() + notice.message.len()) as u128;
        let encoded = notice.encode().ok_or(TransferError::TooLong(too_long))?;
        self.shared.ask(peer, Kind::Notice, &encoded, 0).map(drop)
    }

    /// Removes and returns the notices that peers have sent.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.served.notices.lock().drain(..).collect()
    }

    /// Ends all connections and transfers. When this returns, no transfer reaches memory.
    pub fn close(&self) {
        self.shared.served.sockets.close();
        // Wakes the thread that accepts; it fails the second time.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        self.shared.served.regions.close();
    }

    /// Copies bytes between this process and a peer. After a failed transfer each piece holds an arbitrary mixture of
    /// old and new bytes.
    ///
    /// # Errors
    /// [`TransferError`]
    ///
    /// # Safety
    /// Local memory of the pieces that is valid must stay valid until this returns. Until then a read may write to it
    /// at any time.
    #[allow(unsafe_code)]
    pub unsafe fn transfer(
        &self,
        peer: &Peer,
        direction: Direction,
        pieces: &[Piece],
    ) -> Result<(), TransferError> {
        self.shared.transfer(peer, direction, pieces, &self.shared.begin(pieces)?)
    }

    /// Starts a transfer on a thread of its own, once there is a connection to the peer.
    ///
    /// # Errors
    /// [`TransferError`]: the transfer has not begun.
    ///
    /// # Safety
    /// As for [`Self::transfer`], until [`Submitted::is_finished`], or the engine is dropped.
    #[allow(unsafe_code)]
    pub unsafe fn submit(
        &self,
        peer: Peer,
        direction: Direction,
        pieces: Vec<Piece>,
    ) -> Result<Submitted, TransferError> {
        let slot = Slot::take(&self.shared)?;
        self.shared.reach(&peer)?;
        // Begun before the thread runs, so that unregistering memory finds this use.
        let using = self.shared.begin(&pieces)?;
        let run = move || slot.0.transfer(&peer, direction, &pieces, &using);
        let thread = thread::Builder::new().name("mc-engine-transfer".into()).stack_size(STACK).spawn(run);
        thread.map(Submitted).map_err(TransferError::NoThread)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

/// A place among the submitted transfers.
struct Slot(Arc<Shared>);

impl Slot {
    fn take(shared: &Arc<Shared>) -> Result<Self, TransferError> {
        let slot = Self(shared.clone());
        match shared.submitted.fetch_add(1, Ordering::Relaxed) {
            ..MAX_SUBMITTED => Ok(slot),
            _ => Err(TransferError::TooMany(MAX_SUBMITTED)),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.submitted.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Begins the use of the local memory of a transfer.
    fn begin(&self, pieces: &[Piece]) -> Result<Use, TransferError> {
        let here = pieces.iter().map(|piece| Range { address: piece.local as u64, len: piece.len as u64 });
        self.served.regions.use_here(here).map_err(|_| TransferError::Ended)
    }

    fn transfer(
        &self,
        peer: &Peer,
        direction: Direction,
        pieces: &[Piece],
        using: &Use,
    ) -> Result<(), TransferError> {
        let total = pieces.iter().map(|piece| piece.len as u128).sum::<u128>();
        if total > isize::MAX as u128 {
            return Err(TransferError::TooLong(total));
        }
        let deadline = Instant::now() + self.served.limits.within(total);
        let pieces: Vec<_> = pieces.iter().copied().filter(|piece| piece.len > 0).collect();
        let mut requests = pieces.chunks(MAX_RANGES);
        requests.try_for_each(|pieces| {
            self.on_link(peer, deadline, |link| self.copy(link, direction, pieces, using, deadline))
        })
    }

    /// Moves the bytes of one request.
    #[allow(unsafe_code)]
    fn copy(
        &self,
        connection: &Connection,
        direction: Direction,
        pieces: &[Piece],
        using: &Use,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let _active = using.on(&connection.0).map_err(|_| Failure::Ended)?;
        let bytes = pieces.iter().map(|piece| piece.len as u64).sum::<u64>();
        let (kind, expected) = match direction {
            Direction::Read => (Kind::Read, bytes),
            Direction::Write => (Kind::Write, 0),
        };
        let there = pieces.iter().map(|piece| Range { address: piece.remote, len: piece.len as u64 });
        let request = Request { kind, ranges: pieces.len(), bytes }.encode(there);
        let head = [(request.as_ptr() as usize, request.len())];
        let locals = pieces.iter().map(|piece| (piece.local, piece.len));
        match direction {
            Direction::Write => {
                // SAFETY: the request is ours, and the caller vouches for the rest.
                connection
                    .send(&mut unsafe { RawParts::new(head.into_iter().chain(locals)) }, deadline.into())?;
                answered(connection, expected, deadline)?;
            }
            Direction::Read => {
                connection.write_all(&request, deadline)?;
                answered(connection, expected, deadline)?;
                // SAFETY: the caller vouches for it.
                connection.receive(&mut unsafe { RawParts::new(locals) }, deadline.into())?;
            }
        }
        Ok(())
    }

    /// Sends a request that has no ranges, and returns the data of its answer.
    fn ask(&self, peer: &Peer, kind: Kind, data: &[u8], longest: usize) -> Result<Vec<u8>, TransferError> {
        let deadline = Instant::now() + self.served.limits.connect;
        self.on_link(peer, deadline, |connection| {
            let mut request =
                Request { kind, ranges: 0, bytes: data.len() as u64 }.encode(std::iter::empty());
            request.extend(data);
            connection.write_all(&request, deadline)?;
            let len = usize::try_from(answer(connection, deadline)?).unwrap_or(usize::MAX);
            if len > longest {
                return Err(wire::invalid(format!("an answer of {len} bytes, of at most {longest}")).into());
            }
            let mut answered = vec![0; len];
            connection.read_exact(&mut answered, deadline)?;
            Ok(answered)
        })
    }

    /// Sends a request on an idle connection to the peer, or on a new one. The request is sent only once: a repetition
    /// could undo what the peer has done since.
    fn on_link<T>(
        &self,
        peer: &Peer,
        deadline: Instant,
        request: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, TransferError> {
        let link = self.link(peer, deadline)?;
        let outcome = request(&link.connection);
        self.end(peer, link, outcome)
    }

    fn link(&self, peer: &Peer, deadline: Instant) -> Result<Link, TransferError> {
        self.pool.take(peer).map_or_else(|| self.connect(peer, deadline), Ok)
    }

    fn end<T>(&self, peer: &Peer, link: Link, outcome: Result<T, Failure>) -> Result<T, TransferError> {
        // After any other failure the position in the stream is unknown.
        if matches!(outcome, Ok(_) | Err(Failure::Refused(_))) {
            self.pool.put(peer, link);
        }
        if matches!(&outcome, Err(Failure::Lost(why)) if !is_address(why)) {
            self.pool.forget(peer);
        }
        let peer = || peer.clone();
        outcome.map_err(|failure| match failure {
            Failure::Refused(reason) => TransferError::Refused { peer: peer(), reason },
            Failure::Lost(why) if is_address(&why) => TransferError::NotOfTheHost(why),
            Failure::Lost(_) if self.served.sockets.is_closed() => TransferError::Ended,
            Failure::Lost(why) => TransferError::Lost { peer: peer(), why },
            Failure::Stranger(said) => TransferError::Stranger { peer: peer(), said },
            Failure::Ended => TransferError::Ended,
        })
    }

    /// Connects to the peer unless there is an idle connection.
    fn reach(&self, peer: &Peer) -> Result<(), TransferError> {
        let link = self.link(peer, Instant::now() + self.served.limits.connect)?;
        self.pool.put(peer, link);
        Ok(())
    }

    fn connect(&self, peer: &Peer, deadline: Instant) -> Result<Link, TransferError> {
        let name = (&*peer.host, peer.port);
        let addresses =
            name.to_socket_addrs().map_err(|why| TransferError::NoAddress { peer: peer.clone(), why })?;
        let mut error = TransferError::NoAddress { peer: peer.clone(), why: io::ErrorKind::NotFound.into() };
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now()).min(self.served.limits.connect);
            // A timeout of zero would mean none.
            match Connection::to(address, left.max(Duration::from_millis(1))) {
                Ok(connection) => return self.greeted(peer, connection, Instant::now() + left),
                Err(why) => error = TransferError::NoConnection { peer: peer.clone(), address, why },
            }
        }
        Err(error)
    }

    fn greeted(&self, peer: &Peer, connection: Connection, deadline: Instant) -> Result<Link, TransferError> {
        let place = self.served.sockets.add(connection.0.clone()).ok_or(TransferError::Ended)?;
        let mut said = [0; HELLO.len()];
        let heard = connection.read_exact(&mut said, deadline).map_err(Failure::Lost);
        let link = Link::new(connection, place);
        match heard {
            Ok(()) if said == HELLO => Ok(link),
            Ok(()) => self.end(peer, link, Err(Failure::Stranger(said))),
            Err(why) => self.end(peer, link, Err(why)),
        }
    }
}

/// Waits for an answer with that much data, which is still to be read.
fn answered(connection: &Connection, expected: u64, deadline: Instant) -> Result<(), Failure> {
    let bytes = answer(connection, deadline)?;
    if bytes == expected {
        return Ok(());
    }
    Err(wire::invalid(format!("an answer of {bytes} bytes for {expected}")).into())
}

/// Waits for an answer, and returns the number of its bytes.
fn answer(connection: &Connection, deadline: Instant) -> Result<u64, Failure> {
    let mut head = [0; HEAD];
    connection.read_exact(&mut head, deadline)?;
    let answer = Answer::decode(&head)?;
    if answer.is_done {
        return Ok(answer.bytes);
    }
    let len = usize::try_from(answer.bytes).unwrap_or(usize::MAX);
    if len > MAX_TEXT {
        return Err(wire::invalid(format!("a reason of {len} bytes, of at most {MAX_TEXT}")).into());
    }
    let mut reason = vec![0; len];
    connection.read_exact(&mut reason, deadline)?;
    Err(Failure::Refused(String::from_utf8_lossy(&reason).into_owned()))
}

fn is_address(why: &io::Error) -> bool {
    why.raw_os_error() == Some(libc::EFAULT)
}
