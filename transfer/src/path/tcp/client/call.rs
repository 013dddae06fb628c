//! One call: its lanes, each carried over one connection, a turn at a time.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use mc_types::{SealedGrant, StoreId};
use tokio::time::Instant;

use super::pool::{Pool, Pools, Reuse, Slot, TRANSPORT};
use super::work::{Turn, Work};
use crate::DataEncryption;
use crate::control::client::pieces::{self, Piece};
use crate::control::client::{ConnectError, Failure, Outcome, Refused};
use crate::control::wire::{Hello, MAX_GRANT_LEN, VERSIONS};
use crate::path::{CallContext, PreparedTurn};
use crate::transport::{Peer, PeerEndpoint, Seal, TransferError, Written};

/// Number of failures of a path that the store says can't be taken.
const NEVER_AGAIN: u32 = u32::MAX;
/// First pause before a busy store is asked again. The pause doubles each time, up to [`BUSY_PAUSE_MOST`].
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSE_MOST: Duration = Duration::from_millis(160);

/// One call of the transport.
pub(super) struct TransferCall<'a> {
    peer: &'a Peer,
    grant: &'a SealedGrant,
    deadline: Instant,
    hello: Hello,
    /// Pools, one for each address, in the store's order of preference; never empty.
    pools: Vec<Arc<Pool>>,
}

impl<'a> TransferCall<'a> {
    pub(super) fn new(
        pools: &Pools,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        deadline: Instant,
    ) -> Result<Self, TransferError> {
        let &Peer { cluster, store, epoch, ref endpoints } = peer;
        let ours = endpoints.iter().filter(|endpoint| endpoint.transport == TRANSPORT);
        let encryption = |endpoint: &PeerEndpoint| match grant.proof_key {
            Some(_) => DataEncryption::of(&endpoint.attributes),
            // It would be refused on a plain connection.
            None => DataEncryption::On,
        };
        let pool = |endpoint: &PeerEndpoint| pools.get(store, endpoint, encryption(endpoint));
        let pools: Vec<_> = ours.map(pool).collect();
        if pools.is_empty() {
            let offered = endpoints.iter().map(|e| format!("{}://{}", e.transport, e.address));
            return Err(TransferError::NoEndpoint { store, offered: offered.collect::<Vec<_>>().join(", ") });
        }
        if grant.bytes.len() > MAX_GRANT_LEN {
            let reason = format!("a grant of {} bytes is longer than {MAX_GRANT_LEN}", grant.bytes.len());
            return Err(TransferError::Refused { store, reason });
        }
        let hello = Hello { versions: VERSIONS, cluster, store, epoch };
        Ok(Self { peer, grant, deadline, hello, pools })
    }

    pub(super) fn lanes(&self, ops: usize, total: u64) -> usize {
        self.pools[0].lanes(ops, total)
    }

    /// Maximum bytes of one piece.
    pub(super) fn longest(&self) -> u64 {
        self.pools[0].beside().map_or(pieces::TURN, |path| path.longest_piece())
    }

    pub(super) async fn run<'b>(
        &self,
        mut lanes: impl ExactSizeIterator<Item = Work<'b>>,
        ops: usize,
    ) -> Vec<Result<Written, TransferError>> {
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

    /// Seals ranges whose bytes are written; the answers have their receipts.
    pub(super) async fn seal(&self, ranges: &[u32]) -> Vec<Result<Written, TransferError>> {
        let piece = |(nth, range): (usize, &u32)| Piece::empty(nth, *range, 0);
        let pieces = ranges.iter().enumerate().map(piece).collect();
        self.run(std::iter::once(Work::Write(pieces, Seal::Yes)), ranges.len()).await
    }

    pub(super) async fn lane<'b>(&self, mut work: Work<'b>) -> Lane<'b> {
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
                Err(Failure::RdmaOff) => return Err(TransferError::RdmaOff),
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
pub(super) struct Lane<'a> {
    pub(super) work: Work<'a>,
    pub(super) done: Vec<Outcome>,
    /// Error of the pieces that are not done.
    pub(super) failed: Option<TransferError>,
    store: StoreId,
}

impl Lane<'_> {
    /// Merges the outcomes of the pieces into those of the operations. Lanes come in the order of their bytes.
    pub(super) fn merge(self, answers: &mut [Result<Option<Written>, TransferError>]) {
        let Self { work, done, failed, store } = self;
        let mut done = done.into_iter();
        for (op, len) in work.pieces() {
            let outcome = match (done.next(), &failed) {
                (Some(Ok(written)), _) => Ok(written),
                (Some(Err(Refused { reason, .. })), _) => Err(TransferError::Refused { store, reason }),
                (None, Some(failed)) => Err(failed.clone()),
                (None, None) => continue,
            };
            if let Ok(so_far) = &answers[op] {
                let combine = |written| so_far.map_or(written, |so_far| so_far.followed_by(written, len));
                answers[op] = outcome.map(|written| Some(combine(written)));
            }
        }
    }
}
