//! Transfers that go through shared memory where a store of this host shares its own: see [`crate::path::shm`].

mod own;
mod write;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use mc_types::{Access, SealedGrant, SegmentEpoch, StoreId};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::own::OwnStore;
use super::bounce::BounceBuffers;
use super::connect::connect;
use super::requests::checks;
use super::session::{LocatedRead, Session};
use crate::checksum::{Checksum, Sums};
use crate::control::server::Memory;
use crate::memory::{Areas, newest};
use crate::path::shm::{ShmAccess, socket_name};
use crate::path::tcp::client::TcpTransport;
use crate::report::{PeerReport, PeerTransport, UNTRIED};
use crate::transport::{self, Peer, ReadOp, Seal, TransferError, Transport, WriteOp, Written};
use crate::{RegisterError, RegisteredMemory, WriteBuffer};

/// The name of this transport.
const SHM: &str = "shm";
/// Fewest bytes of a batch for which the store is asked over TCP: for a write, and for a read if it shares no stamps.
/// Fewer bytes travel in the request or the answer itself.
const MIN_SHARED: u64 = 16 << 10;
/// Bytes that are read and summed in one step: few enough to stay in the cache.
const CACHED: usize = 128 << 10;
/// Bytes after which a read yields to other tasks.
const TURN: usize = 1 << 20;
/// Time after which a store that could not be reached through shared memory is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Time after [`AGAIN`] for which reports still give the reason why a store shares nothing.
const TOLD_FOR: Duration = Duration::from_secs(600);

/// Moves bytes through shared memory where a store of this host shares its own, and everything else over TCP.
pub struct ShmTransport {
    tcp: TcpTransport,
    access: ShmAccess,
    own_store: Option<OwnStore>,
    stores: Arc<Stores>,
    areas: Arc<Areas>,
    bounce_buffers: BounceBuffers,
    on_moved: OnShared,
    closed: CancellationToken,
    _life: DropGuard,
}

/// Callback with the number of bytes of each call that went through shared memory and were found good.
pub type OnShared = Box<dyn Fn(Access, u64) + Send + Sync>;

/// Stores that were tried, by store and epoch.
#[derive(Default)]
struct Stores(Mutex<HashMap<(StoreId, SegmentEpoch), SharingState>>);

enum SharingState {
    /// A call is connecting.
    Connecting,
    Shared(Arc<Session>),
    /// The store shares nothing, for this reason. Try again at this time.
    Not(Instant, String),
}

impl SharingState {
    fn report(&self) -> PeerTransport {
        match self {
            Self::Connecting => PeerTransport::unusable(SHM, "being connected"),
            Self::Shared(session) => {
                let how = match session.takes_areas() {
                    true => "reads and writes",
                    false => "reads only: the store is of an earlier version",
                };
                PeerTransport::usable(SHM, how).moved(session.moved())
            }
            Self::Not(_, why) => PeerTransport::unusable(SHM, why.as_str()),
        }
    }
}

/// A call that connects. Its drop records the result; a call that was cancelled leaves no entry.
struct Connecting<'a> {
    stores: &'a Stores,
    memory: (StoreId, SegmentEpoch),
    state: Option<SharingState>,
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        let (mut stores, now) = (self.stores.0.lock(), Instant::now());
        stores.remove(&self.memory);
        // Otherwise the entries of stores that went away would stay here forever.
        stores.retain(|_, state| !matches!(state, SharingState::Not(until, _) if *until + TOLD_FOR <= now));
        stores.extend(self.state.take().map(|state| (self.memory, state)));
    }
}

impl ShmTransport {
    /// Creates a transport over `tcp`. It shares memory with the stores that `access` admits.
    #[must_use]
    pub fn new(tcp: TcpTransport, access: ShmAccess, on_moved: OnShared) -> Self {
        let closed = CancellationToken::new();
        let life = closed.clone().drop_guard();
        let (stores, areas, bounce_buffers) = (Arc::default(), tcp.areas().clone(), BounceBuffers::default());
        Self { tcp, access, own_store: None, stores, areas, bounce_buffers, on_moved, closed, _life: life }
    }

    /// Lets it copy to and from the memory of a store in this process by itself. It does not keep that memory alive. With
    /// [`ShmAccess::Off`] it has no effect.
    #[must_use]
    pub fn with_own_store(self, store: StoreId, memory: Weak<Memory>) -> Self {
        Self { own_store: (self.access != ShmAccess::Off).then(|| OwnStore::new(store, memory)), ..self }
    }

    /// Returns what the store shares; `None` while there is no connection for that. The first call connects; until it has, the
    /// others use TCP.
    async fn session(
        &self,
        peer: &Peer,
        grant: (&SealedGrant, Access),
        deadline: Instant,
    ) -> Option<Arc<Session>> {
        let memory = (peer.store, peer.epoch);
        match self.stores.0.lock().entry(memory) {
            Entry::Occupied(mut tried) => match tried.get() {
                SharingState::Shared(session) => return Some(session.clone()),
                SharingState::Connecting => return None,
                SharingState::Not(until, _) if Instant::now() < *until => return None,
                SharingState::Not(..) => drop(tried.insert(SharingState::Connecting)),
            },
            Entry::Vacant(untried) => drop(untried.insert(SharingState::Connecting)),
        }
        let mut connecting = Connecting { stores: &self.stores, memory, state: None };
        match connect(peer, self.access, grant, deadline).await {
            Ok((stream, segments, sharing)) => {
                let through = if sharing { "transfers with" } else { "reads from" };
                let address = peer.address();
                tracing::info!(store = %peer.store, "{through} this store go through shared memory");
                let (session, offers) = Session::new(address, segments, sharing, self.areas.gone());
                let session = Arc::new(session);
                connecting.state = Some(SharingState::Shared(session.clone()));
                // Dropped, which records the session, before the watch can notice that it has ended.
                drop(connecting);
                let (stores, mine) = (self.stores.clone(), session.clone());
                let watch = async move {
                    mine.serve(stream, offers).await;
                    stores.forget(memory, &mine);
                };
                tokio::spawn(self.closed.clone().run_until_cancelled_owned(watch));
                Some(session)
            }
            Err(why) => {
                tracing::debug!(store = %peer.store, "no shared memory: {why}");
                // A call without time says nothing about the store.
                if Instant::now() < deadline {
                    connecting.state = Some(SharingState::Not(Instant::now() + AGAIN, why));
                }
                None
            }
        }
    }

    /// Copies the bytes of each read, and returns its checksum and whether its bytes are known to be good.
    /// The copies are bounded, so only the deadline and other tasks get between them.
    async fn copy(found: Vec<LocatedRead<'_, '_>>, sums: Sums) -> Vec<(Checksum, bool)> {
        let (mut copied, mut since_turn) = (Vec::with_capacity(found.len()), 0);
        for LocatedRead { segment, bytes, index, op } in found {
            let (mut checksum, mut from) = (sums.of_reads(), bytes.start);
            for mut part in op.into.iter_mut().flat_map(|buffer| buffer.chunks_mut(CACHED)) {
                part.fill_from(&segment.bytes, from);
                // Before anything else fills the same memory.
                part.add_to(0..part.len(), &mut checksum);
                from += part.len() as u64;
                since_turn += part.len();
                if since_turn >= TURN {
                    since_turn = 0;
                    tokio::task::yield_now().await;
                }
            }
            // After the last byte: see the module.
            let good = segment.stamps.as_ref().is_some_and(|stamps| newest(stamps, &bytes) <= index);
            copied.push((checksum.finish(), good));
        }
        copied
    }
}

impl Stores {
    /// Forgets a session whose connection has ended.
    fn forget(&self, memory: (StoreId, SegmentEpoch), session: &Arc<Session>) {
        let mut stores = self.0.lock();
        if matches!(stores.get(&memory), Some(SharingState::Shared(now)) if Arc::ptr_eq(now, session)) {
            stores.remove(&memory);
        }
    }
}

impl ShmTransport {
    /// Reads with a connection to the store.
    fn read_over<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        if self.access == ShmAccess::Off {
            return self.tcp.read(peer, grant, ops, deadline);
        }
        Box::pin(async move {
            if let Some(lost) = transport::lost(peer, ops) {
                return lost;
            }
            let total: u64 = ops.iter().map(ReadOp::len).sum();
            let usable = |session: &Arc<Session>| total >= MIN_SHARED || session.is_stamped();
            let session = self.session(peer, (grant, Access::Read), deadline).await;
            let Some(session) = session.filter(usable) else {
                return self.tcp.read(peer, grant, ops, deadline).await;
            };
            let Some(found) = session.find(grant, ops) else {
                return self.tcp.read(peer, grant, ops, deadline).await;
            };
            let Ok(copied) = timeout_at(deadline, Self::copy(found, self.tcp.calls().sums())).await else {
                let (store, address) = (peer.store, socket_name(peer.store, peer.epoch));
                return vec![Err(TransferError::Deadline { store, address }); ops.len()];
            };
            let unsure = || ops.iter().zip(&copied).filter(|(_, (_, good))| !good);
            let asked: Vec<_> = unsure().map(|(op, _)| (op.range, op.offset, op.len())).collect();
            let verdicts = match asked.as_slice() {
                [] => Vec::new(),
                asked => {
                    let request = (checks(asked), asked.len());
                    self.tcp.calls().ask(peer, grant, request, deadline).await.answers
                }
            };
            let mut verdicts = verdicts.into_iter();
            let unanswered = || {
                let reason = "it left a question open".to_owned();
                Err(TransferError::Refused { store: peer.store, reason })
            };
            let mut answers = Vec::with_capacity(ops.len());
            let (mut read, mut unasked) = (0, (0, 0));
            for (op, (checksum, good)) in ops.iter().zip(copied) {
                let verdict = if good { Ok(None) } else { verdicts.next().unwrap_or_else(unanswered) };
                if good {
                    unasked = (unasked.0 + 1, unasked.1 + op.len());
                }
                if verdict.is_ok() {
                    read += op.len();
                }
                answers.push(verdict.map(|_| checksum));
            }
            session.note_reads(unasked.0, unasked.1);
            session.note_moved(read);
            (self.on_moved)(Access::Read, read);
            answers
        })
    }

    /// Writes with a connection to the store.
    fn write_over<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Written, TransferError>>> {
        if self.access == ShmAccess::Off || !write::is_worth_it(ops) {
            return self.tcp.write(peer, grant, ops, seal, deadline);
        }
        Box::pin(async move {
            let session = self.session(peer, (grant, Access::Write), deadline).await;
            match session.filter(|session| session.takes_areas()) {
                Some(session) => self.write_shared(&session, peer, grant, (ops, seal), deadline).await,
                None => self.tcp.write(peer, grant, ops, seal, deadline).await,
            }
        })
    }
}

impl Transport for ShmTransport {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        match self.own(peer) {
            Some(own) => Box::pin(self.read_own(own, peer, grant, ops, deadline)),
            None => self.read_over(peer, grant, ops, deadline),
        }
    }

    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Written, TransferError>>> {
        match self.own(peer) {
            Some(own) => Box::pin(self.write_own(own, peer, grant, (ops, seal), deadline)),
            None => self.write_over(peer, grant, ops, seal, deadline),
        }
    }

    fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        if self.access == ShmAccess::Off {
            return self.tcp.allocate(len);
        }
        RegisteredMemory::in_area(&self.areas, len)
    }

    fn copies_late(&self, bytes: WriteBuffer<'_>) -> bool {
        self.tcp.copies_late(bytes)
    }

    fn peers(&self) -> Vec<PeerReport> {
        let mut peers = self.tcp.peers();
        if self.access == ShmAccess::Off {
            let off = PeerTransport::unusable(SHM, "switched off in this process");
            peers.iter_mut().for_each(|peer| peer.transports.insert(0, off.clone()));
            return peers;
        }
        let stores = self.stores.0.lock();
        for ((store, _), state) in stores.iter() {
            // All reads may have gone past the store.
            if let SharingState::Shared(session) = state
                && !peers.iter().any(|peer| peer.store == *store)
            {
                let (address, transports) = (session.address.clone(), self.tcp.calls().untried());
                peers.push(PeerReport { store: *store, address, transports });
            }
        }
        let own = self.own_store.as_ref().filter(|own| own.address.get().is_some());
        if let Some(own) = own
            && !peers.iter().any(|peer| peer.store == own.store)
        {
            let address = own.address.get().cloned().unwrap_or_default();
            peers.push(PeerReport { store: own.store, address, transports: self.tcp.calls().untried() });
        }
        for peer in &mut peers {
            if let Some(own) = own.filter(|own| own.store == peer.store) {
                peer.transports.insert(0, own.report());
                continue;
            }
            // Among several epochs of a store's memory, the one that is shared is the present one.
            let reports =
                stores.iter().filter(|((store, _), _)| *store == peer.store).map(|(_, state)| state.report());
            let report = reports.max_by_key(|report| report.usable);
            peer.transports.insert(0, report.unwrap_or_else(|| PeerTransport::unusable(SHM, UNTRIED)));
        }
        peers
    }
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmTransport").field("access", &self.access).finish_non_exhaustive()
    }
}
