//! Calls of a client: each is cut into turns, and each turn goes over one connection, with its bytes by one of the paths.
//!
//! [`TcpTransport`] has the connections; [`ShmTransport`] reads past them where it can.

mod pool;
mod shm;
mod work;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use mc_types::SealedGrant;
use tokio::time::Instant;

use self::pool::{Pool, Pools, Reuse, Slot, TRANSPORT};
pub use self::shm::{OnShared, ShmTransport};
use self::work::{Turn, Work};
use crate::checksum::{Checksum, Sums};
use crate::control::client::pieces::{self, InArea, Piece};
use crate::control::client::{ConnectError, Failure, Outcome, Refused, TcpOptions};
use crate::control::wire::{Hello, MAX_GRANT_LEN, VERSIONS};
use crate::memory::{Areas, Rdma};
use crate::path::rdma::client::{OnRdma, RDMA, RdmaClient};
use crate::path::{CallContext, ClientPath, PreparedTurn};
use crate::report::{PeerReport, PeerTransport};
use crate::transport::{self, Peer, ReadOp, Seal, TransferError, Transport, WriteOp};
use crate::{HostMemory, ReadBuffer, RegisterError, RegisteredMemory, WriteBuffer};

/// Number of failures of a path that the store says can't be taken.
const NEVER_AGAIN: u32 = u32::MAX;
/// First pause before a busy store is asked again. The pause doubles each time, up to [`BUSY_PAUSE_MOST`].
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSE_MOST: Duration = Duration::from_millis(160);

/// Transfers over TCP: pooled connections per store, large batches striped over them.
///
/// Each call does its own I/O in the caller's future, on connections that no other call uses meanwhile. A call that
/// fails, reaches its deadline or is dropped closes the connections that it had not finished with. Large calls queue for
/// connections, first come, first served, and again after each turn of some megabytes, so they can't hold each other up for longer
/// than that. Small calls do not queue: when all connections are taken, they share one more for reads and one for writes, with
/// many requests under route. The task of such a connection runs on the runtime of the call that needed it first.
pub struct TcpTransport {
    pools: Pools,
    areas: Arc<Areas>,
}

impl TcpTransport {
    /// Creates a transport without connections; they are made when they are needed.
    #[must_use]
    pub fn new(options: TcpOptions) -> Self {
        Self::without_rdma(options, &HostMemory::new(), "this transport was made without it".to_owned())
    }

    /// Creates a transport without RDMA, which reports `why`.
    #[must_use]
    pub fn without_rdma(options: TcpOptions, memory: &HostMemory, why: String) -> Self {
        Self::with(options, memory, Err(PeerTransport::unusable(RDMA, why)))
    }

    /// Creates a transport whose payload goes by RDMA where the store offers it too, and otherwise over the connections. With
    /// `only` nothing but small requests goes over those, and a store that can't be reached by RDMA is an error.
    #[must_use]
    pub fn with_rdma(
        options: TcpOptions,
        memory: &HostMemory,
        rdma: Arc<Rdma>,
        only: bool,
        on_moved: OnRdma,
    ) -> Self {
        let areas = memory.areas().clone();
        let exposures = areas.exposures(&rdma);
        Self::with(options, memory, Ok(Arc::new(RdmaClient { rdma, areas, exposures, only, on_moved })))
    }

    /// Memory of the caller that stores reach.
    pub(crate) fn areas(&self) -> &Arc<Areas> {
        &self.areas
    }

    /// Whether answers have checksums.
    pub(crate) fn sums(&self) -> Sums {
        self.pools.sums()
    }

    fn with(
        options: TcpOptions,
        memory: &HostMemory,
        beside: Result<Arc<dyn ClientPath>, PeerTransport>,
    ) -> Self {
        let areas = memory.areas().clone();
        let stripe_bytes = options.stripe_bytes.max(1 << 20);
        Self { pools: Pools::new(TcpOptions { stripe_bytes, ..options }, beside), areas }
    }
}

impl Default for TcpTransport {
    fn default() -> Self {
        Self::new(TcpOptions::default())
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTransport").finish_non_exhaustive()
    }
}

impl TcpTransport {
    /// Lets the store copy writes out of areas. `ops` is the number of operations that the pieces are parts of.
    pub(crate) async fn write_from_areas(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        (pieces, ops): (Vec<Piece<InArea>>, usize),
        seal: Seal,
        deadline: Instant,
    ) -> FromAreas {
        let call = match TransferCall::new(self, peer, grant, deadline) {
            Ok(call) => call,
            Err(error) => {
                let answers = vec![Err(error.clone()); ops];
                return FromAreas { answers, failed: Some(error), other_way: false, is_settled: true };
            }
        };
        let lane = call.lane(Work::Areas { pieces, seal, in_doubt: false }).await;
        let other_way =
            lane.done.iter().any(|outcome| outcome.as_ref().is_err_and(|refused| refused.other_way));
        let is_settled = !matches!(lane.work, Work::Areas { in_doubt: true, .. });
        let (failed, mut answers) = (lane.failed.clone(), vec![Ok(None); ops]);
        lane.merge(&mut answers);
        FromAreas {
            answers: answers.into_iter().map(|answer| answer.map(drop)).collect(),
            failed,
            other_way,
            is_settled,
        }
    }

    /// Seals ranges whose bytes are written.
    pub(crate) async fn seal(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        ranges: &[u32],
        deadline: Instant,
    ) -> Vec<Result<(), TransferError>> {
        match TransferCall::new(self, peer, grant, deadline) {
            Ok(call) => call.seal(ranges).await,
            Err(error) => vec![Err(error); ranges.len()],
        }
    }

    /// Returns the transports to a store that this process has not called yet.
    pub(crate) fn untried(&self) -> Vec<PeerTransport> {
        self.pools.transports(None)
    }

    /// Asks the store whether bytes that were read from shared memory before this call are those of the grant: (range,
    /// offset, length) of each operation. Returns one answer for each, in order.
    pub(crate) async fn check(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        ops: &[(u32, u64, u64)],
        deadline: Instant,
    ) -> Vec<Result<(), TransferError>> {
        let call = match TransferCall::new(self, peer, grant, deadline) {
            Ok(call) => call,
            Err(error) => return vec![Err(error); ops.len()],
        };
        let piece = |(op, (range, offset, len)): (usize, &(u32, u64, u64))| Piece {
            len: *len,
            ..Piece::empty(op, *range, *offset)
        };
        let work = Work::Check(ops.iter().enumerate().map(piece).collect());
        let answers = call.run(std::iter::once(work), ops.len()).await;
        answers.into_iter().map(|answer| answer.map(drop)).collect()
    }
}

impl Transport for TcpTransport {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        Box::pin(async move {
            if let Some(lost) = transport::lost(peer, ops) {
                return lost;
            }
            let count = ops.len();
            let total = ops.iter().map(ReadOp::len).sum();
            let call = match TransferCall::new(self, peer, grant, deadline) {
                Ok(call) => call,
                Err(error) => return vec![Err(error); count],
            };
            let ops =
                ops.iter_mut().map(|op| (op.range, op.offset, op.into.iter_mut().map(ReadBuffer::reborrow)));
            let lanes = pieces::cut(ops, total, call.lanes(count, total), call.longest());
            let lanes = lanes.into_iter().map(Work::Read);
            call.run(lanes, count).await
        })
    }

    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        Box::pin(async move {
            let count = ops.len();
            let total = ops.iter().map(WriteOp::len).sum();
            let call = match TransferCall::new(self, peer, grant, deadline) {
                Ok(call) => call,
                Err(error) => return vec![Err(error); count],
            };
            let cut = ops.iter().map(|op| (op.range, op.offset, op.from.iter().copied()));
            let lanes = pieces::cut(cut, total, call.lanes(count, total), call.longest());
            // The bytes of an operation that was cut may come over several connections, so none of them is the last.
            let whole = lanes.iter().map(Vec::len).sum::<usize>() == count;
            let with = if whole { seal } else { Seal::No };
            let lanes = lanes.into_iter().map(|pieces| Work::Write(pieces, with));
            let mut answers = call.run(lanes, count).await;
            if with != seal {
                let good: Vec<usize> = (0..count).filter(|op| answers[*op].is_ok()).collect();
                let ranges: Vec<u32> = good.iter().map(|op| ops[*op].range).collect();
                for (op, sealed) in good.into_iter().zip(call.seal(&ranges).await) {
                    if let Err(error) = sealed {
                        answers[op] = Err(error);
                    }
                }
            }
            answers
        })
    }

    fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        if self.pools.has_path_beside() {
            RegisteredMemory::in_area(&self.areas, len)
        } else {
            RegisteredMemory::allocate(len)
        }
    }

    fn copies_late(&self, bytes: WriteBuffer<'_>) -> bool {
        self.areas.find_shared(bytes).is_some()
    }

    fn peers(&self) -> Vec<PeerReport> {
        self.pools.report()
    }
}

/// Answer to writes out of areas.
pub(crate) struct FromAreas {
    /// Answers to the operations.
    pub(crate) answers: Vec<Result<(), TransferError>>,
    /// Reason why some pieces have no answer from the store.
    pub(crate) failed: Option<TransferError>,
    /// Whether the store can't reach an area. Then it has written nothing of its request.
    pub(crate) other_way: bool,
    /// Whether every request was answered, so that the store does not touch the areas any more.
    pub(crate) is_settled: bool,
}

/// One call of the transport.
struct TransferCall<'a> {
    peer: &'a Peer,
    grant: &'a SealedGrant,
    deadline: Instant,
    hello: Hello,
    /// Pools, one for each address, in the store's order of preference; never empty.
    pools: Vec<std::sync::Arc<Pool>>,
}

impl<'a> TransferCall<'a> {
    fn new(
        transport: &TcpTransport,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        deadline: Instant,
    ) -> Result<Self, TransferError> {
        let &Peer { cluster, store, epoch, ref endpoints } = peer;
        let ours = endpoints.iter().filter(|endpoint| endpoint.transport == TRANSPORT);
        let pools: Vec<_> = ours.map(|endpoint| transport.pools.get(store, &endpoint.address)).collect();
        if pools.is_empty() {
            let offered = endpoints.iter().map(|e| format!("{}://{}", e.transport, e.address));
            return Err(TransferError::NoEndpoint { store, offered: offered.collect::<Vec<_>>().join(", ") });
        }
        if grant.len() > MAX_GRANT_LEN {
            let reason = format!("a grant of {} bytes is longer than {MAX_GRANT_LEN}", grant.len());
            return Err(TransferError::Refused { store, reason });
        }
        let hello = Hello { versions: VERSIONS, cluster, store, epoch };
        Ok(Self { peer, grant, deadline, hello, pools })
    }

    fn lanes(&self, ops: usize, total: u64) -> usize {
        self.pools[0].lanes(ops, total)
    }

    /// Maximum bytes of one piece.
    fn longest(&self) -> u64 {
        self.pools[0].beside().map_or(pieces::TURN, |path| path.longest_piece())
    }

    async fn run<'b>(
        &self,
        mut lanes: impl ExactSizeIterator<Item = Work<'b>>,
        ops: usize,
    ) -> Vec<Result<Checksum, TransferError>> {
        if ops == 0 {
            return Vec::new();
        }
        let mut answers = vec![Ok(None); ops];
        if lanes.len() == 1
            && let Some(work) = lanes.next()
        {
            self.lane(work).await.merge(&mut answers);
        }
        for lane in join_all(lanes.map(|work| self.lane(work))).await {
            lane.merge(&mut answers);
        }
        // Every operation has a piece, even one of no bytes.
        answers.into_iter().map(|answer| answer.map(Option::unwrap_or_default)).collect()
    }

    /// Seals ranges whose bytes are written.
    async fn seal(&self, ranges: &[u32]) -> Vec<Result<(), TransferError>> {
        let piece = |(nth, range): (usize, &u32)| Piece::empty(nth, *range, 0);
        let pieces = ranges.iter().enumerate().map(piece).collect();
        let sealed = self.run(std::iter::once(Work::Write(pieces, Seal::Yes)), ranges.len()).await;
        sealed.into_iter().map(|sealed| sealed.map(drop)).collect()
    }

    async fn lane<'b>(&self, mut work: Work<'b>) -> Lane<'b> {
        let mut done = Vec::new();
        let failed = self.carry(&mut work, &mut done).await.err();
        Lane { work, done, failed, store: self.peer.store }
    }

    /// Carries the work over the first endpoint that can be connected to and does not stall.
    async fn carry(&self, work: &mut Work<'_>, done: &mut Vec<Outcome>) -> Result<(), TransferError> {
        let store = self.peer.store;
        let mut last = TransferError::NoEndpoint { store, offered: String::new() };
        for pool in &self.pools {
            let address = pool.address().to_owned();
            last = match self.carry_through(pool, work, done).await {
                Ok(()) => return Ok(()),
                Err(Failure::Queued) => return Err(TransferError::Queued { store, address }),
                Err(Failure::Deadline) => return Err(TransferError::Deadline { store, address }),
                Err(Failure::Broken(reason) | Failure::Held(reason)) => {
                    return Err(TransferError::Broken { store, address, reason });
                }
                Err(Failure::Path(reason)) => return Err(TransferError::NoRdma { store, reason }),
                Err(Failure::Connect(ConnectError::Refused(Refused { reason, .. }))) => {
                    return Err(TransferError::Refused { store, reason });
                }
                Err(Failure::Connect(ConnectError::Failed(reason) | ConnectError::TooLong(reason))) => {
                    TransferError::Connect { store, address, reason }
                }
                Err(Failure::Stalled(reason)) => TransferError::Stalled { store, address, reason },
            };
        }
        Err(last)
    }

    /// Carries the work over connections of one pool, a turn at a time.
    ///
    /// A reused connection may turn out to be dead, because the store closed it while it was idle or was restarted.
    /// That turn is then repeated over a new one: reads and writes of the same bytes can be repeated. So are pieces
    /// that the store was too busy for, until the deadline. A turn that a path beside the connection has failed is repeated by that path,
    /// and then over the connection itself.
    async fn carry_through(
        &self,
        pool: &Arc<Pool>,
        work: &mut Work<'_>,
        done: &mut Vec<Outcome>,
    ) -> Result<(), Failure> {
        let (mut reuse, mut pause, mut failures) = (Reuse::Allowed, BUSY_PAUSE, 0);
        while !work.is_done(done) {
            // Taken before the connection, so that no other call waits for a connection that is not used yet.
            let turn = work.next_turn(done.len());
            let prepared = self.prepare(pool, work, turn.clone(), failures).await?;
            let first = done.len();
            let slot = match (pool.free_slot(), prepared.is_some()) {
                (Some(slot), _) => slot,
                (None, true) => pool.slot(self.deadline).await?,
                (None, false) => match self.share(pool, work, turn.clone(), done).await? {
                    Some(slot) => slot,
                    None => {
                        self.after(pool, work, (done, first), &mut pause, &mut failures).await?;
                        continue;
                    }
                },
            };
            let mut checkout = match pool.connection(slot, self.hello, reuse, self.deadline).await {
                Err(Failure::Connect(ConnectError::Refused(Refused { busy: true, .. })))
                    if self.pause(&mut pause).await =>
                {
                    continue;
                }
                made => made?,
            };
            let watch = checkout.connection.link.watch();
            let turn = work.turn(turn, &mut checkout.connection, self.grant, done, prepared);
            let carried = pool.watched(watch, self.deadline, turn).await.flatten();
            if let Some(path) = pool.beside() {
                path.after_turn(self.context());
            }
            match carried {
                Ok(()) => {
                    checkout.put_back();
                    reuse = Reuse::Allowed;
                    self.after(pool, work, (done, first), &mut pause, &mut failures).await?;
                    continue;
                }
                Err(failure) => {
                    work.note_doubt();
                    match failure {
                        Failure::Broken(_) if checkout.reused => reuse = Reuse::Never,
                        Failure::Path(_) => failures = failures.saturating_add(1),
                        failure => return Err(failure),
                    }
                }
            }
            // The turn is repeated from the first piece that it left for later.
            done.truncate(work.later(done, first).unwrap_or(done.len()));
        }
        Ok(())
    }

    /// Leaves what the store may do later, or another way, for the next turn; `first` is the first piece of this one.
    async fn after(
        &self,
        pool: &Pool,
        work: &Work<'_>,
        (done, first): (&mut Vec<Outcome>, usize),
        pause: &mut Duration,
        failures: &mut u32,
    ) -> Result<(), Failure> {
        let Some(at) = work.later(done, first) else {
            *pause = BUSY_PAUSE;
            return Ok(());
        };
        match &done[at] {
            Err(refused) if refused.other_way => {
                let why = refused.reason.clone();
                done.truncate(at);
                if let Some(path) = pool.beside() {
                    path.unreached(self.grant, work.range(at), &why)?;
                }
                *failures = NEVER_AGAIN;
            }
            _ if self.pause(pause).await => done.truncate(at),
            _ => {}
        }
        Ok(())
    }

    /// Carries a small turn over the connection that such turns share, when no other is free. Returns a connection of the call's own
    /// where that can't be done, or one is free first.
    async fn share(
        &self,
        pool: &Arc<Pool>,
        work: &mut Work<'_>,
        turn: Turn,
        done: &mut Vec<Outcome>,
    ) -> Result<Option<Slot>, Failure> {
        let Some(access) = work.small(&turn, self.grant) else {
            return pool.slot(self.deadline).await.map(Some);
        };
        let place = tokio::select! {
            biased;
            place = pool.place(self.hello, access) => place,
            slot = pool.slot(self.deadline) => return slot.map(Some),
        };
        if let Some(place) = place
            && let Some(watch) = place.watch()
        {
            let sums = pool.sums();
            let (asked, checksums) = work.piped_request(turn.clone(), self.grant, sums);
            match pool.watched(watch, self.deadline, place.ask(asked)).await {
                Ok(Some(answer)) => {
                    work.take(turn, answer, &checksums, sums, done);
                    return Ok(None);
                }
                Ok(None) => {}
                // This connection is silent, while other connections to the store are not.
                Err(Failure::Broken(_)) => pool.end_pipe(access),
                Err(failure) => return Err(failure),
            }
        }
        pool.slot(self.deadline).await.map(Some)
    }

    /// Prepares a turn, if it goes by a path beside the connection.
    async fn prepare<'p>(
        &'p self,
        pool: &'p Pool,
        work: &mut Work<'_>,
        turn: Turn,
        failures: u32,
    ) -> Result<Option<Box<dyn PreparedTurn + 'p>>, Failure> {
        let (Some(path), Some(bytes)) = (pool.beside(), work.bytes(turn)) else { return Ok(None) };
        match path.prepare(self.context(), &bytes, failures) {
            Some(prepared) => prepared.await,
            None => Ok(None),
        }
    }

    fn context(&self) -> CallContext<'_> {
        CallContext { hello: self.hello, grant: self.grant, deadline: self.deadline }
    }

    /// Waits before a busy store is asked again, longer each time; returns false at once if that would be too late.
    async fn pause(&self, pause: &mut Duration) -> bool {
        let again = Instant::now() + *pause;
        *pause = BUSY_PAUSE_MOST.min(*pause * 2);
        if again >= self.deadline {
            return false;
        }
        tokio::time::sleep_until(again).await;
        true
    }
}

/// Result of the part of a call that one connection carried.
struct Lane<'a> {
    work: Work<'a>,
    done: Vec<Outcome>,
    /// Error of the pieces that are not done.
    failed: Option<TransferError>,
    store: mc_types::StoreId,
}

impl Lane<'_> {
    /// Merges the outcomes of the pieces into those of the operations. Lanes come in the order of their bytes.
    fn merge(self, answers: &mut [Result<Option<Checksum>, TransferError>]) {
        let Self { work, done, failed, store } = self;
        let mut done = done.into_iter();
        for (op, len) in work.pieces() {
            let outcome = match (done.next(), &failed) {
                (Some(Ok(checksum)), _) => Ok(checksum),
                (Some(Err(Refused { reason, .. })), _) => Err(TransferError::Refused { store, reason }),
                (None, Some(failed)) => Err(failed.clone()),
                (None, None) => continue,
            };
            if let Ok(so_far) = &answers[op] {
                let combine = |checksum| so_far.map_or(checksum, |so_far| so_far.followed_by(checksum, len));
                answers[op] = outcome.map(|checksum| Some(combine(checksum)));
            }
        }
    }
}
