//! Requests whose bytes go by RDMA, beside the connection. See [`crate::path::rdma`].

use std::time::Duration;

use mc_types::Access;
use smallvec::SmallVec;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::buffers::Buffers;
use super::end::ClientEnd;
use super::process::RdmaClient;
use super::routes::{Routes, devices_of};
use crate::blocking_drop::BlockingDrop;
use crate::checksum::{Checksum, RunningChecksum};
use crate::control::client::pieces::{Buffer, Piece};
use crate::control::client::{Broken, Failure, Link, Outcome, Progress, Refused, is_for_now};
use crate::control::wire::{
    END_LEN, End, MAX_OPS, Op, PROBE_LEN, PROBE_SINCE, RDMA_SINCE, RdmaOp, RdmaRequest, RequestKind,
};
use crate::memory::{Reached, Staging};
use crate::transport::Seal;
use crate::{ReadBuffer, WriteBuffer};

/// Maximum bytes of one request, and so of a piece.
pub(super) const REQUEST: u64 = 4 << 20;
/// Operations that a request may have less than [`MAX_OPS`], because some are cut.
const CUTS: usize = 64;
/// Bytes copied and summed in one step: few enough to stay in the cache.
const CACHED: usize = 128 << 10;
/// A request may take the transport's patience, and the time for its bytes at this rate, in bytes per second.
const SLOWEST: u64 = 100 << 20;

/// A connection, and the queue pair beside it, if it has one.
pub(crate) struct PairedLink<'a> {
    pub(super) link: &'a mut Link,
    pub(super) pair: &'a mut Option<Pair>,
}

/// The end of a pair beside a connection.
pub(crate) struct Pair {
    end: BlockingDrop<ClientEnd>,
    route: usize,
}

impl Pair {
    fn new(end: ClientEnd, route: usize) -> Self {
        Self { end: BlockingDrop::new(end), route }
    }
}

/// Why a connection has no queue pair.
pub(crate) enum NoPair {
    /// No route can be tried now.
    NoRoute(String),
    /// The store refused the grant, or knows no master yet: for any other request as well.
    Refused(Refused),
}

/// Where the bytes of a turn's pieces are, for the device of the store.
pub(crate) struct Places {
    /// Places of the buffers of each piece; `None` for those that have to be copied.
    of_pieces: Vec<OfPiece>,
    pub(super) staged_bytes: u64,
}

type OfPiece = SmallVec<[Option<Reached>; 2]>;

/// Where the bytes of a turn are, and the staging memory of those that have to be copied.
pub(super) struct Prepared {
    pub(super) places: Places,
    pub(super) staging: Staging,
    /// The right to staging memory, which ends after it.
    pub(super) turn: Option<OwnedSemaphorePermit>,
}

impl Places {
    /// Finds the bytes of each buffer.
    pub(crate) fn of<B: Buffer>(pieces: &[Piece<B>], reach: impl Fn(&B) -> Option<Reached>) -> Self {
        let (mut of_pieces, mut staged_bytes) = (Vec::with_capacity(pieces.len()), 0);
        for piece in pieces {
            let find = |buffer: &B| {
                let found = reach(buffer);
                if found.is_none() {
                    staged_bytes += buffer.size() as u64;
                }
                found
            };
            of_pieces.push(piece.buffers.iter().map(find).collect());
        }
        Self { of_pieces, staged_bytes }
    }

    /// Whether some bytes have to be copied.
    pub(crate) fn are_staged(&self) -> bool {
        self.staged_bytes > 0
    }

    fn reached(&self) -> Vec<Reached> {
        self.of_pieces.iter().flatten().flatten().cloned().collect()
    }
}

impl PairedLink<'_> {
    /// Makes the pair beside this connection, if it has none. A route that fails is suspended.
    pub(crate) async fn pair_up(
        &mut self,
        client: &RdmaClient,
        routes: &Routes,
        patience: Duration,
        access: Access,
        grant: &[u8],
    ) -> Result<Result<(), NoPair>, RdmaFailure> {
        match &self.pair {
            Some(pair) if !routes.is_suspended(pair.route) => return Ok(Ok(())),
            _ => *self.pair = None,
        }
        let route = match routes.pick(client.rdma.len()) {
            Ok(route) => route,
            Err(why) => return Ok(Err(NoPair::NoRoute(why))),
        };
        let made = self.make_pair_within(patience, client, routes, route, (access, grant)).await;
        let made = made.inspect_err(|broken| broken.suspend(routes, route))?;
        if let Err(NoPair::NoRoute(why)) = &made {
            routes.suspend(route, why);
        }
        Ok(made)
    }

    async fn make_pair_within(
        &mut self,
        patience: Duration,
        client: &RdmaClient,
        routes: &Routes,
        route: usize,
        (access, grant): (Access, &[u8]),
    ) -> Result<Result<(), NoPair>, RdmaFailure> {
        // A device that can't reach its peer may search for it for seconds, at either end.
        let progress = self.link.progress();
        within(patience, 0, &progress, self.make_pair(client, routes, route, access, grant)).await
    }

    /// Makes a pair over the route, and has the store write to memory of this process by it. A store before [`PROBE_SINCE`] makes the pair
    /// only.
    pub(crate) async fn probe(
        &mut self,
        client: &RdmaClient,
        routes: &Routes,
        route: usize,
        (access, grant): (Access, &[u8]),
        (staging, patience): (Staging, Duration),
    ) -> Result<Result<(), NoPair>, RdmaFailure> {
        if let Err(no_pair) = self.make_pair_within(patience, client, routes, route, (access, grant)).await? {
            return Ok(Err(no_pair));
        }
        let Some(Pair { end, .. }) = self.pair.take().filter(|_| self.link.version() >= PROBE_SINCE) else {
            return Ok(Ok(()));
        };
        let mut buffers = Buffers::new(end.into_inner(), staging, Vec::new());
        let progress = self.link.progress();
        let asked = async {
            buffers.check().map_err(|why| RdmaFailure::Rdma(why.to_string()))?;
            let id = self.link.begin(RequestKind::Rdma(RdmaRequest::Probe(access)), 1, grant);
            for (offset, len, key, address) in buffers.parts(0, PROBE_LEN) {
                RdmaOp { op: Op { range: 0, offset, len }, key, address }.encode(self.link.out());
            }
            self.link.send_out().await?;
            if let Err(refused) = self.link.receiver.reply(id).await? {
                return Ok(Err(NoPair::Refused(refused)));
            }
            if let Err(refused) = self.link.receiver.verdict().await? {
                return Err(RdmaFailure::Rdma(refused.reason));
            }
            buffers.notified(id as u32).await.map_err(|why| RdmaFailure::Rdma(why.to_string()))?;
            Ok(Ok(()))
        };
        match within(patience, PROBE_LEN, &progress, asked).await {
            Ok(answer) => {
                *self.pair = buffers.settled().map(|end| Pair::new(end, route));
                Ok(answer)
            }
            Err(broken) => Err(broken.given_up(buffers).await),
        }
    }

    async fn make_pair(
        &mut self,
        client: &RdmaClient,
        routes: &Routes,
        route: usize,
        access: Access,
        grant: &[u8],
    ) -> Result<Result<(), NoPair>, RdmaFailure> {
        let no_route = |why: String| Ok(Err(NoPair::NoRoute(why)));
        if self.link.version() < RDMA_SINCE {
            let version = self.link.version();
            return no_route(format!(
                "the store speaks version {version} of the transfer protocol, without RDMA"
            ));
        }
        let theirs = routes.theirs();
        let (device, wish) = devices_of(route, client.rdma.len(), theirs);
        // The store counts its devices around, so that before its first answer a device of ours wishes for that of the same number.
        let wish = u16::try_from(if theirs == 0 { device } else { wish }).unwrap_or(0);
        let rdma = client.rdma.clone();
        let made = tokio::task::spawn_blocking(move || ClientEnd::new(&rdma, device, wish)).await;
        let end = match made {
            Ok(Ok(end)) => BlockingDrop::new(end),
            Ok(Err(error)) => return no_route(error.to_string()),
            Err(failed) => return no_route(failed.to_string()),
        };
        let id = self.link.begin(RequestKind::Rdma(RdmaRequest::Pair(access)), 1, grant);
        end.end().encode(self.link.out());
        self.link.send_out().await?;
        match self.link.receiver.reply(id).await? {
            Ok(()) => {}
            Err(Refused { device: true, reason, .. }) => return no_route(reason),
            Err(refused) => return Ok(Err(NoPair::Refused(refused))),
        }
        let mut theirs = [0; END_LEN];
        self.link.receiver.read_exact(&mut theirs).await?;
        let theirs = End::decode(&theirs);
        routes.learn(usize::from(theirs.device).clamp(1, 64));
        // Some drivers look up where the store is, and wait for an answer.
        let connect = move || end.connect(&theirs).map(|()| end);
        match tokio::task::spawn_blocking(connect).await {
            Ok(Ok(end)) => {
                *self.pair = Some(Pair { end, route });
                Ok(Ok(()))
            }
            Ok(Err(error)) => no_route(error.to_string()),
            Err(failed) => no_route(failed.to_string()),
        }
    }

    /// Like [`Link::read`], with the bytes going by RDMA. There must be a pair, and no piece may be longer than [`REQUEST`].
    /// It ends at the first batch with a piece that is refused for now.
    pub(crate) async fn read(
        &mut self,
        client: (&RdmaClient, &Routes, Prepared, Duration),
        grant: &[u8],
        pieces: &mut [Piece<ReadBuffer<'_>>],
        done: &mut Vec<Outcome>,
    ) -> Result<(), RdmaFailure> {
        // The turn ends after the staging memory.
        let (client, routes, Prepared { places, staging, turn: _turn }, patience) = client;
        let Some(Pair { end, route }) = self.pair.take() else {
            return Err(RdmaFailure::Rdma(String::new()));
        };
        let (mut buffers, mut moved) = (Buffers::new(end.into_inner(), staging, places.reached()), 0);
        if let Err(why) = buffers.check() {
            return Err(RdmaFailure::Rdma(why.to_string()).after(buffers, routes, route).await);
        }
        let progress = self.link.progress();
        for batch in batches(pieces, &places) {
            let (places, batch) = (&places.of_pieces[batch.clone()], &mut pieces[batch]);
            let asked = async {
                let request =
                    self.request(RequestKind::Rdma(RdmaRequest::Read), grant, (batch, places), &buffers);
                self.link.send_out().await?;
                let answers = self.answers(&request).await?;
                if answers.notified {
                    // A verdict can overtake the bytes.
                    let notified = buffers.notified(request.id as u32).await;
                    notified.map_err(|error| RdmaFailure::Rdma(error.to_string()))?;
                }
                Ok(answers.of_pieces)
            };
            let answers = match within(patience, bytes_of(batch), &progress, asked).await {
                Ok(answers) => answers,
                Err(broken) => return Err(broken.after(buffers, routes, route).await),
            };
            let (mut at, mut good) = (0, 0);
            for ((piece, places), answer) in batch.iter_mut().zip(places).zip(answers) {
                let staged = staged(piece, places);
                done.push(match answer {
                    Ok(()) => {
                        let mut sum = self.link.sums.of_reads();
                        copy_out(&buffers, at, (piece, places), &mut sum).await;
                        good += piece.len;
                        Ok(sum.finish())
                    }
                    Err(refused) => Err(refused),
                });
                at += staged;
            }
            (client.on_moved)(Access::Read, good);
            moved += good;
            if done[done.len() - batch.len()..].iter().any(is_for_now) {
                break;
            }
        }
        *self.pair = buffers.settled().map(|end| Pair::new(end, route));
        routes.moved(route, moved);
        Ok(())
    }

    /// Like [`Link::write`], with the bytes going by RDMA. There must be a pair, and no piece may be longer than
    /// [`REQUEST`]. It ends at the first batch with a piece that is refused for now.
    pub(crate) async fn write(
        &mut self,
        client: (&RdmaClient, &Routes, Prepared, Duration),
        grant: &[u8],
        pieces: &[Piece<WriteBuffer<'_>>],
        seal: Seal,
        done: &mut Vec<Outcome>,
    ) -> Result<(), RdmaFailure> {
        // The turn ends after the staging memory.
        let (client, routes, Prepared { places, staging, turn: _turn }, patience) = client;
        let Some(Pair { end, route }) = self.pair.take() else {
            return Err(RdmaFailure::Rdma(String::new()));
        };
        let (mut buffers, mut moved) = (Buffers::new(end.into_inner(), staging, places.reached()), 0);
        if let Err(why) = buffers.check() {
            return Err(RdmaFailure::Rdma(why.to_string()).after(buffers, routes, route).await);
        }
        let kind = RequestKind::Rdma(RdmaRequest::Write(seal));
        let of_writes = self.link.sums;
        let progress = self.link.progress();
        for batch in batches(pieces, &places) {
            let (places, batch) = (&places.of_pieces[batch.clone()], &pieces[batch]);
            let (mut at, mut sums) = (0, Vec::with_capacity(batch.len()));
            for (piece, places) in batch.iter().zip(places) {
                let staged = staged(piece, places);
                sums.push(if staged > 0 {
                    Some(copy_in(&mut buffers, at, (piece, places), of_writes.of_writes()).await)
                } else {
                    None
                });
                at += staged;
            }
            let asked = async {
                let request = self.request(kind, grant, (batch, places), &buffers);
                self.link.send_out().await?;
                Ok(self.answers(&request).await?.of_pieces)
            };
            // While the device of the store reads the bytes.
            let sum = async {
                for (piece, sum) in batch.iter().zip(&mut sums) {
                    if sum.is_none() {
                        *sum = Some(sum_of(piece, of_writes.of_writes()).await);
                    }
                }
            };
            let (answers, ()) = tokio::join!(within(patience, bytes_of(batch), &progress, asked), sum);
            let answers = match answers {
                Ok(answers) => answers,
                Err(broken) => return Err(broken.after(buffers, routes, route).await),
            };
            let good = batch.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            let good = good.map(|(piece, _)| piece.len).sum();
            (client.on_moved)(Access::Write, good);
            moved += good;
            let sums = sums.into_iter().map(Option::unwrap_or_default);
            done.extend(sums.zip(answers).map(|(sum, answer)| answer.map(|()| sum)));
            if done[done.len() - batch.len()..].iter().any(is_for_now) {
                break;
            }
        }
        *self.pair = buffers.settled().map(|end| Pair::new(end, route));
        routes.moved(route, moved);
        Ok(())
    }

    /// Encodes the request of a batch.
    fn request<B: Buffer>(
        &mut self,
        kind: RequestKind,
        grant: &[u8],
        (batch, places): (&[Piece<B>], &[OfPiece]),
        buffers: &Buffers,
    ) -> Batch {
        let (mut ops, mut of_pieces) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        let mut at = 0;
        for (piece, places) in batch.iter().zip(places) {
            let (first, mut offset) = (ops.len(), piece.offset);
            for (len, reach) in runs(piece, places) {
                let op = |from: u64, len| Op { range: piece.range, offset: offset.wrapping_add(from), len };
                match reach {
                    Some(reach) => {
                        let (key, address) = reach.place(buffers.device()).unwrap_or((0, 0));
                        ops.push(RdmaOp { op: op(0, len), key, address });
                    }
                    None => {
                        let part = |(from, len, key, address)| RdmaOp { op: op(from, len), key, address };
                        ops.extend(buffers.parts(at, len).map(part));
                        at += len;
                    }
                }
                offset = offset.wrapping_add(len);
            }
            of_pieces.push(ops.len() - first);
        }
        let id = self.link.begin(kind, ops.len() as u16, grant);
        ops.iter().for_each(|op| op.encode(self.link.out()));
        Batch { id, ops: of_pieces }
    }

    /// Receives the verdicts on a batch.
    async fn answers(&mut self, batch: &Batch) -> Result<Answers, RdmaFailure> {
        let whole = self.link.receiver.reply(batch.id).await?;
        let (mut of_pieces, mut notified) = (Vec::with_capacity(batch.ops.len()), whole.is_ok());
        for ops in &batch.ops {
            let mut answer = whole.clone();
            if whole.is_ok() {
                for _ in 0..*ops {
                    answer = answer.and(self.link.receiver.verdict().await?);
                }
            }
            match &answer {
                Err(Refused { device: true, reason, .. }) => return Err(RdmaFailure::Rdma(reason.clone())),
                Err(Refused { other_way: true, .. }) => notified = false,
                _ => {}
            }
            of_pieces.push(answer);
        }
        Ok(Answers { of_pieces, notified })
    }
}

/// A request of several pieces.
struct Batch {
    id: u64,
    /// Number of operations of each piece.
    ops: Vec<usize>,
}

/// Answers to a batch.
struct Answers {
    of_pieces: Vec<Result<(), Refused>>,
    /// Whether the store also sends a message, if it is a read.
    notified: bool,
}

/// Why a request by RDMA failed.
#[derive(Debug)]
pub(crate) enum RdmaFailure {
    /// The connection failed.
    Link(Broken),
    /// The queue pair failed.
    Rdma(String),
    /// It did, and the store may still use the memory.
    Held(String),
}

impl From<Broken> for RdmaFailure {
    fn from(broken: Broken) -> Self {
        Self::Link(broken)
    }
}

impl From<RdmaFailure> for Failure {
    fn from(failure: RdmaFailure) -> Self {
        match failure {
            RdmaFailure::Link(broken) => broken.into(),
            RdmaFailure::Rdma(why) => Self::Path(why),
            RdmaFailure::Held(why) => Self::Held(why),
        }
    }
}

impl RdmaFailure {
    /// Ends the buffers of a request that failed, and returns the resulting error.
    async fn after(self, buffers: Buffers, routes: &Routes, route: usize) -> Self {
        self.suspend(routes, route);
        self.given_up(buffers).await
    }

    async fn given_up(self, buffers: Buffers) -> Self {
        match buffers.abandon().await {
            Ok(()) => self,
            Err(why) => {
                Self::Held(format!("RDMA beside it failed, and the store may still use the memory: {why}"))
            }
        }
    }

    /// Suspends the route, if it is to blame.
    fn suspend(&self, routes: &Routes, route: usize) {
        if let Self::Rdma(why) = self {
            routes.suspend(route, why);
        }
    }
}

/// Parts of the patience in which is looked for progress. Many, so that it ends before the look at the connection takes the whole
/// store for dead.
const LOOKS: u32 = 8;

/// Bounds the wait for the answer to a request of `len` bytes: for as long as nothing comes over the connection. A store whose card
/// is busy reports that it completes requests.
async fn within<T>(
    patience: Duration,
    len: u64,
    progress: &Progress,
    asked: impl Future<Output = Result<T, RdmaFailure>>,
) -> Result<T, RdmaFailure> {
    let most = patience + Duration::from_micros(len * 1_000_000 / SLOWEST);
    let mut asked = std::pin::pin!(asked);
    let mut silent = 0;
    while silent < LOOKS {
        let seen = progress.bytes();
        if let Ok(answer) = timeout(most / LOOKS, asked.as_mut()).await {
            return answer;
        }
        silent = if progress.bytes() == seen { silent + 1 } else { 0 };
    }
    Err(RdmaFailure::Rdma(format!("the store moved nothing by RDMA within {most:?}")))
}

fn bytes_of<B>(pieces: &[Piece<B>]) -> u64 {
    pieces.iter().map(|piece| piece.len).sum()
}

/// Bytes of a piece that have to be copied.
fn staged<B: Buffer>(piece: &Piece<B>, places: &OfPiece) -> u64 {
    let copied = piece.buffers.iter().zip(places).filter(|(_, place)| place.is_none());
    copied.map(|(buffer, _)| buffer.size() as u64).sum()
}

/// Joins the buffers of a piece that are copied one after the other; returns (length, place) of each run. A piece without bytes
/// has one run.
fn runs<'a, B: Buffer>(piece: &Piece<B>, places: &'a OfPiece) -> SmallVec<[(u64, Option<&'a Reached>); 2]> {
    let mut runs: SmallVec<[(u64, Option<&Reached>); 2]> = SmallVec::new();
    for (buffer, place) in piece.buffers.iter().zip(places) {
        match (runs.last_mut(), place) {
            (Some((len, None)), None) => *len += buffer.size() as u64,
            _ => runs.push((buffer.size() as u64, place.as_ref())),
        }
    }
    if runs.is_empty() {
        runs.push((0, None));
    }
    runs
}

/// Cuts pieces into requests: as many as fit, at least one.
fn batches<B: Buffer>(pieces: &[Piece<B>], places: &Places) -> Vec<std::ops::Range<usize>> {
    let (mut batches, mut first, mut len, mut ops) = (Vec::new(), 0, 0, 0);
    for (nth, (piece, places)) in pieces.iter().zip(&places.of_pieces).enumerate() {
        let of_piece = runs(piece, places).len();
        if nth > first && (len + piece.len > REQUEST || ops + of_piece > MAX_OPS - CUTS) {
            batches.push(first..nth);
            (first, len, ops) = (nth, 0, 0);
        }
        len += piece.len;
        ops += of_piece;
    }
    batches.extend((first < pieces.len()).then_some(first..pieces.len()));
    batches
}

/// Copies those bytes of a piece into the buffers that have to be, and returns its checksum, of bytes that are in the cache.
async fn copy_in(
    buffers: &mut Buffers,
    mut at: u64,
    (piece, places): (&Piece<WriteBuffer<'_>>, &OfPiece),
    mut sum: RunningChecksum,
) -> Checksum {
    for (buffer, place) in piece.buffers.iter().zip(places) {
        for part in buffer.chunks(CACHED) {
            if place.is_none() {
                buffers.put(at, part, &mut sum);
                at += part.len() as u64;
            } else {
                part.add_to(&mut sum);
            }
            tokio::task::consume_budget().await;
        }
    }
    sum.finish()
}

async fn sum_of(piece: &Piece<WriteBuffer<'_>>, mut sum: RunningChecksum) -> Checksum {
    for part in piece.buffers.iter().flat_map(|buffer| buffer.chunks(CACHED)) {
        part.add_to(&mut sum);
        tokio::task::consume_budget().await;
    }
    sum.finish()
}

/// Copies those bytes of a piece out of the buffers that have to be, and adds all to its checksum while they are in the cache.
async fn copy_out(
    buffers: &Buffers,
    mut at: u64,
    (piece, places): (&mut Piece<ReadBuffer<'_>>, &OfPiece),
    sum: &mut RunningChecksum,
) {
    for (buffer, place) in piece.buffers.iter_mut().zip(places) {
        for mut part in buffer.chunks_mut(CACHED) {
            if place.is_none() {
                buffers.get(at, &mut part);
                at += part.len() as u64;
            }
            part.add_to(0..part.len(), sum);
            tokio::task::consume_budget().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    fn cut(lens: &[u64]) -> Vec<std::ops::Range<usize>> {
        let pieces: Vec<Piece<WriteBuffer<'_>>> =
            lens.iter().map(|len| Piece { len: *len, ..Piece::empty(0, 0, 0) }).collect();
        let of_pieces = vec![OfPiece::new(); lens.len()];
        batches(&pieces, &Places { of_pieces, staged_bytes: 0 })
    }

    #[test]
    fn a_batch_is_bounded_in_bytes_and_in_operations() {
        assert_eq!(cut(&[]), []);
        assert_eq!(cut(&[5, 0, 7, REQUEST]), [0..3, 3..4]);
        assert_eq!(cut(&[REQUEST, 1, REQUEST, 0]), [0..1, 1..2, 2..4]);
        let many = cut(&vec![1; MAX_OPS]);
        assert_eq!(many, [0..MAX_OPS - CUTS, MAX_OPS - CUTS..MAX_OPS]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_reports_progress_is_waited_for() {
        let (progress, patience) = (Progress::new(Arc::default()), Duration::from_millis(300));
        let busy = async {
            for _ in 0..20 {
                tokio::time::sleep(patience / 2).await;
                progress.add(8);
            }
            Ok(7)
        };
        assert_eq!(within(patience, 0, &progress, busy).await.unwrap(), 7);
        let began = Instant::now();
        let silent = within(patience, 0, &progress, std::future::pending::<Result<(), _>>()).await;
        assert!(matches!(silent, Err(RdmaFailure::Rdma(_))));
        assert!(
            began.elapsed() < patience * 4 / 3,
            "of the paused clock: before the store is taken for dead"
        );
    }
}
