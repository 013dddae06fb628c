//! Requests whose bytes go by RDMA, beside the connection. See [`crate::rdma`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mc_types::{Access, SegmentNumber};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};

use super::link::{Broken, Link, Outcome, Refused};
use super::plan::{Buffer, Piece};
use super::progress::Progress;
use super::work::is_for_now;
use crate::ReadBuffer;
use crate::areas::{Areas, Reached};
use crate::checksum::{Checksum, RunningChecksum};
use crate::elsewhere::Elsewhere;
use crate::rdma::{Buffers, ClientEnd, Rdma, Staging};
use crate::report::{PeerTransport, UNTRIED};
use crate::transport::Seal;
use crate::wire::{Ask, END_LEN, End, MAX_OPS, Op, RDMA_SINCE, RdmaOp};

/// Fewest bytes of a turn that go by RDMA. Fewer are there with the answer over TCP, which RDMA needs as well.
const WORTH_IT: u64 = 16 << 10;
/// Maximum bytes of one request, and so of a piece.
pub(super) const REQUEST: u64 = 4 << 20;
/// Operations that a request may have less than [`MAX_OPS`], because some are cut.
const CUTS: usize = 64;
/// Bytes copied and summed in one step: few enough to stay in the cache.
const CACHED: usize = 128 << 10;
/// A request may take the transport's patience, and the time for its bytes at this rate, in bytes per second.
const SLOWEST: u64 = 100 << 20;
/// Time for which a way that failed is left. It doubles each time, up to [`LEFT_MOST`].
const LEFT: Duration = Duration::from_secs(5);
const LEFT_MOST: Duration = Duration::from_secs(60);

/// RDMA, as the calls of a transport may use it.
pub(super) struct ByRdma {
    pub(super) rdma: Arc<Rdma>,
    /// Memory that the devices of stores reach.
    pub(super) areas: Arc<Areas>,
    /// Whether bytes may go by RDMA alone.
    pub(super) only: bool,
    pub(super) on_moved: OnRdma,
}

/// The name of this transport.
pub(super) const RDMA: &str = "rdma";

/// Callback with the number of bytes of each part of a transfer that went by RDMA and was found good.
pub type OnRdma = Box<dyn Fn(Access, u64) + Send + Sync>;

/// The ways to one store: each is a device of this process together with one of the store's.
#[derive(Default)]
pub(super) struct Ways(Mutex<State>);

#[derive(Default)]
struct State {
    /// Number of the store's devices; 0 before the first answer.
    theirs: usize,
    /// Ways that failed.
    left: HashMap<usize, Left>,
    /// Segments that no device of the store reaches: when to try again, and why.
    unreached: HashMap<SegmentNumber, (Instant, String)>,
    next: usize,
    /// Bytes that went by RDMA and were found good.
    moved: u64,
}

struct Left {
    until: Instant,
    pause: Duration,
    why: String,
}

/// Devices of a way: one of `ours`, and one of `theirs`. The first ways use each device of both ends, the others combine them in
/// another order.
fn devices_of(way: usize, ours: usize, theirs: usize) -> (usize, usize) {
    let (ours, theirs) = (ours.max(1), theirs.max(1));
    let (nth, round) = (way % ours.max(theirs), way / ours.max(theirs));
    if ours >= theirs { (nth, (nth + round) % theirs) } else { ((nth + round) % ours, nth) }
}

/// The end of a pair beside a connection.
pub(super) struct Paired {
    end: Elsewhere<ClientEnd>,
    way: usize,
}

impl Paired {
    fn new(end: ClientEnd, way: usize) -> Self {
        Self { end: Elsewhere::new(end), way }
    }
}

/// Why a connection has no queue pair.
pub(super) enum NoPair {
    /// No way can be tried now.
    NoWay(String),
    /// The store refused the grant, or knows no master yet: for any other request as well.
    Refused(Refused),
}

impl Ways {
    /// Returns the way to try: the next one of those that did not fail. Devices of the same number go first, because they
    /// are often on the same switch, and each of both ends is in one of these (see [`devices_of`]). `Err` says why there is none.
    fn pick(&self, ours: usize) -> Result<usize, String> {
        let mut state = self.0.lock();
        let (now, next) = (Instant::now(), state.next);
        let all = ours * state.theirs.max(1);
        let free = |way: &usize| state.left.get(way).is_none_or(|left| left.until <= now);
        let first = ours.max(state.theirs);
        let rails = (0..first).map(|nth| (next + nth) % first);
        let found = rails.chain(first..all).find(free);
        state.next = next.wrapping_add(1);
        found.ok_or_else(|| state.why())
    }

    /// Whether a way can be tried now; `Err` says why not.
    pub(super) fn any(&self, ours: usize) -> Result<(), String> {
        let state = self.0.lock();
        let now = Instant::now();
        let free = |way| state.left.get(&way).is_none_or(|left| left.until <= now);
        if (0..ours * state.theirs.max(1)).any(free) { Ok(()) } else { Err(state.why()) }
    }

    /// Says whether bytes go by RDMA, and how, or why not. A way that failed counts as such until bytes have gone by it again.
    pub(super) fn report(&self, rdma: &Rdma) -> PeerTransport {
        let state = self.0.lock();
        let all = rdma.len() * state.theirs;
        let failed = state.left.keys().filter(|way| **way < all).count();
        let names = || rdma.names().collect::<Vec<_>>().join(", ");
        let now = Instant::now();
        let unreached: Vec<&str> =
            state.unreached.values().filter(|(until, _)| *until > now).map(|(_, why)| why.as_str()).collect();
        if let Some(why) = rdma.why_not() {
            return PeerTransport::unusable(RDMA, why.to_string()).moved(state.moved);
        }
        let report = match failed {
            _ if state.theirs == 0 && state.left.is_empty() => PeerTransport::unusable(RDMA, UNTRIED),
            failed if failed >= all => PeerTransport::unusable(RDMA, state.why()),
            _ if state.moved == 0 && !unreached.is_empty() => {
                PeerTransport::unusable(RDMA, unreached.join("; "))
            }
            _ => {
                let mut how = vec![format!("over {}", names())];
                if failed > 0 {
                    how.push(format!("{failed} of {all} ways failed: {}", state.why()));
                }
                how.extend(unreached.into_iter().map(str::to_owned));
                PeerTransport::usable(RDMA, how.join("; "))
            }
        };
        report.moved(state.moved)
    }

    /// Notes that no device of the store reaches a segment, which is left for a while.
    pub(super) fn leave_segment(&self, segment: SegmentNumber, why: &str) {
        let until = Instant::now() + LEFT;
        if self.0.lock().unreached.insert(segment, (until, why.to_owned())).is_none() {
            tracing::warn!("no RDMA for bytes of segment {segment} of a store: {why}");
        }
    }

    /// Returns why one of the segments is left; `None` if none is.
    pub(super) fn lacks(&self, segments: impl Iterator<Item = SegmentNumber>) -> Option<String> {
        let (state, now) = (self.0.lock(), Instant::now());
        let mut found = segments.filter_map(|segment| state.unreached.get(&segment));
        found.find(|(until, _)| *until > now).map(|(_, why)| why.clone())
    }

    /// Whether every segment is reached, as far as is known.
    pub(super) fn reaches_all(&self) -> bool {
        self.0.lock().unreached.is_empty()
    }

    /// Counts bytes that went over a way, which works.
    fn moved(&self, way: usize, bytes: u64) {
        let mut state = self.0.lock();
        state.left.remove(&way);
        state.moved += bytes;
    }

    /// Leaves a way for a while.
    pub(super) fn leave(&self, way: usize, why: &str) {
        let mut state = self.0.lock();
        let pause = state.left.get(&way).map_or(LEFT, |left| LEFT_MOST.min(left.pause * 2));
        if !state.left.contains_key(&way) {
            tracing::warn!("no RDMA for {pause:?} on one way to a store: {why}");
        }
        state.left.insert(way, Left { until: Instant::now() + pause, pause, why: why.to_owned() });
    }

    fn is_left(&self, way: usize) -> bool {
        self.0.lock().left.get(&way).is_some_and(|left| Instant::now() < left.until)
    }
}

impl State {
    fn why(&self) -> String {
        let mut reasons: Vec<&str> = self.left.values().map(|left| left.why.as_str()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons.join("; ")
    }
}

impl ByRdma {
    /// Number of this process's devices.
    pub(super) fn ways(&self) -> usize {
        self.rdma.len()
    }

    /// Whether a turn of so many bytes should go by RDMA.
    pub(super) fn wants(&self, bytes: u64) -> bool {
        bytes >= if self.only { 1 } else { WORTH_IT }
    }

    /// Finds the bytes of a turn's pieces, and waits for staging memory for those that have to be copied.
    /// `turn` is the right to it.
    pub(super) async fn prepare(
        &self,
        places: Places,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Prepared, String> {
        let staging = Staging::take(&self.rdma, places.staged_bytes.min(REQUEST)).await;
        Ok(Prepared { places, staging: staging.map_err(|error| error.to_string())?, turn })
    }
}

/// Where the bytes of a turn's pieces are, for the device of the store.
pub(super) struct Places {
    /// Of each piece's buffers; `None` for those that have to be copied.
    of_pieces: Vec<OfPiece>,
    staged_bytes: u64,
}

type OfPiece = SmallVec<[Option<Reached>; 2]>;

/// Placement and staging memory of a turn that goes by RDMA.
pub(super) struct Prepared {
    places: Places,
    staging: Staging,
    turn: Option<OwnedSemaphorePermit>,
}

impl Places {
    /// Finds the bytes of each buffer.
    pub(super) fn of<B: Buffer>(pieces: &[Piece<B>], reach: impl Fn(&B) -> Option<Reached>) -> Self {
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
    pub(super) fn are_staged(&self) -> bool {
        self.staged_bytes > 0
    }

    fn reached(&self) -> Vec<Reached> {
        self.of_pieces.iter().flatten().flatten().cloned().collect()
    }
}

impl Link {
    /// Makes the pair beside this connection, if it has none. A way that fails is left.
    pub(super) async fn pair_up(
        &mut self,
        by: &ByRdma,
        ways: &Ways,
        patience: Duration,
        access: Access,
        grant: &[u8],
    ) -> Result<Result<(), NoPair>, Broken> {
        match &self.paired {
            Some(paired) if !ways.is_left(paired.way) => return Ok(Ok(())),
            _ => self.paired = None,
        }
        let way = match ways.pick(by.rdma.len()) {
            Ok(way) => way,
            Err(why) => return Ok(Err(NoPair::NoWay(why))),
        };
        // A device that reaches nobody any more may look for its peer for seconds, at either end.
        let progress = self.progress();
        let made = within(patience, 0, &progress, self.make_pair(by, ways, way, access, grant)).await;
        let made = made.inspect_err(|broken| broken.leave(ways, way))?;
        if let Err(NoPair::NoWay(why)) = &made {
            ways.leave(way, why);
        }
        Ok(made)
    }

    async fn make_pair(
        &mut self,
        by: &ByRdma,
        ways: &Ways,
        way: usize,
        access: Access,
        grant: &[u8],
    ) -> Result<Result<(), NoPair>, Broken> {
        let no_way = |why: String| Ok(Err(NoPair::NoWay(why)));
        if self.version() < RDMA_SINCE {
            let version = self.version();
            return no_way(format!(
                "the store speaks version {version} of the transfer protocol, without RDMA"
            ));
        }
        let theirs = ways.0.lock().theirs;
        let (device, wish) = devices_of(way, by.rdma.len(), theirs);
        // The store counts its devices around, so that before its first answer a device of ours wishes for that of the same number.
        let wish = u16::try_from(if theirs == 0 { device } else { wish }).unwrap_or(0);
        let rdma = by.rdma.clone();
        let made = tokio::task::spawn_blocking(move || ClientEnd::new(&rdma, device, wish)).await;
        let end = match made {
            Ok(Ok(end)) => Elsewhere::new(end),
            Ok(Err(error)) => return no_way(error.to_string()),
            Err(failed) => return no_way(failed.to_string()),
        };
        let id = self.begin(Ask::Pair(access), 1, grant);
        end.end().encode(self.out());
        self.send_out().await?;
        match self.receiver.reply(id).await? {
            Ok(()) => {}
            Err(Refused { device: true, reason, .. }) => return no_way(reason),
            Err(refused) => return Ok(Err(NoPair::Refused(refused))),
        }
        let mut theirs = [0; END_LEN];
        self.receiver.read_exact(&mut theirs).await?;
        let theirs = End::decode(&theirs);
        ways.0.lock().theirs = usize::from(theirs.way).clamp(1, 64);
        // Some drivers look up where the store is, and wait for an answer.
        let connect = move || end.connect(&theirs).map(|()| end);
        match tokio::task::spawn_blocking(connect).await {
            Ok(Ok(end)) => {
                self.paired = Some(Paired { end, way });
                Ok(Ok(()))
            }
            Ok(Err(error)) => no_way(error.to_string()),
            Err(failed) => no_way(failed.to_string()),
        }
    }

    /// Like [`Link::read`], with the bytes going by RDMA. There must be a pair, and no piece may be longer than [`REQUEST`].
    /// It ends at the first batch with a piece that is refused for now.
    pub(super) async fn rdma_read(
        &mut self,
        by: (&ByRdma, &Ways, Prepared, Duration),
        grant: &[u8],
        pieces: &mut [Piece<ReadBuffer<'_>>],
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        // The turn ends after the staging memory.
        let (by, ways, Prepared { places, staging, turn: _turn }, patience) = by;
        let Some(Paired { end, way }) = self.paired.take() else { return Err(Broken::Rdma(String::new())) };
        let (mut buffers, mut moved) = (Buffers::new(end.into_inner(), staging, places.reached()), 0);
        if let Err(why) = buffers.check() {
            return Err(Broken::Rdma(why.to_string()).after(buffers, ways, way).await);
        }
        let progress = self.progress();
        for batch in batches(pieces, &places) {
            let (places, batch) = (&places.of_pieces[batch.clone()], &mut pieces[batch]);
            let asked = async {
                let request = self.rdma_request(Ask::RdmaRead, grant, (batch, places), &buffers);
                self.send_out().await?;
                let answers = self.rdma_answers(&request).await?;
                if answers.told {
                    // A verdict can overtake the bytes.
                    let told = buffers.told(request.id as u32).await;
                    told.map_err(|error| Broken::Rdma(error.to_string()))?;
                }
                Ok(answers.of_pieces)
            };
            let answers = match within(patience, bytes_of(batch), &progress, asked).await {
                Ok(answers) => answers,
                Err(broken) => return Err(broken.after(buffers, ways, way).await),
            };
            let (mut at, mut good) = (0, 0);
            for ((piece, places), answer) in batch.iter_mut().zip(places).zip(answers) {
                let staged = staged(piece, places);
                done.push(match answer {
                    Ok(()) => {
                        let mut sum = self.sums.of_reads();
                        copy_out(&buffers, at, (piece, places), &mut sum).await;
                        good += piece.len;
                        Ok(sum.finish())
                    }
                    Err(refused) => Err(refused),
                });
                at += staged;
            }
            (by.on_moved)(Access::Read, good);
            moved += good;
            if done[done.len() - batch.len()..].iter().any(is_for_now) {
                break;
            }
        }
        self.paired = buffers.settled().map(|end| Paired::new(end, way));
        ways.moved(way, moved);
        Ok(())
    }

    /// Like [`Link::write`], with the bytes going by RDMA. There must be a pair, and no piece may be longer than
    /// [`REQUEST`]. It ends at the first batch with a piece that is refused for now.
    pub(super) async fn rdma_write(
        &mut self,
        by: (&ByRdma, &Ways, Prepared, Duration),
        grant: &[u8],
        pieces: &[Piece<&[u8]>],
        seal: Seal,
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        // The turn ends after the staging memory.
        let (by, ways, Prepared { places, staging, turn: _turn }, patience) = by;
        let Some(Paired { end, way }) = self.paired.take() else { return Err(Broken::Rdma(String::new())) };
        let (mut buffers, mut moved) = (Buffers::new(end.into_inner(), staging, places.reached()), 0);
        if let Err(why) = buffers.check() {
            return Err(Broken::Rdma(why.to_string()).after(buffers, ways, way).await);
        }
        let ask = if seal == Seal::Yes { Ask::RdmaWriteAndSeal } else { Ask::RdmaWrite };
        let of_writes = self.sums;
        let progress = self.progress();
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
                let request = self.rdma_request(ask, grant, (batch, places), &buffers);
                self.send_out().await?;
                Ok(self.rdma_answers(&request).await?.of_pieces)
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
                Err(broken) => return Err(broken.after(buffers, ways, way).await),
            };
            let good = batch.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            let good = good.map(|(piece, _)| piece.len).sum();
            (by.on_moved)(Access::Write, good);
            moved += good;
            let sums = sums.into_iter().map(Option::unwrap_or_default);
            done.extend(sums.zip(answers).map(|(sum, answer)| answer.map(|()| sum)));
            if done[done.len() - batch.len()..].iter().any(is_for_now) {
                break;
            }
        }
        self.paired = buffers.settled().map(|end| Paired::new(end, way));
        ways.moved(way, moved);
        Ok(())
    }

    /// Encodes the request of a batch.
    fn rdma_request<B: Buffer>(
        &mut self,
        ask: Ask,
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
                        let (key, address) = reach.place(buffers.way()).unwrap_or((0, 0));
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
        let id = self.begin(ask, ops.len() as u16, grant);
        ops.iter().for_each(|op| op.encode(self.out()));
        Batch { id, ops: of_pieces }
    }

    /// Receives the verdicts on a batch.
    async fn rdma_answers(&mut self, batch: &Batch) -> Result<Answers, Broken> {
        let whole = self.receiver.reply(batch.id).await?;
        let (mut of_pieces, mut told) = (Vec::with_capacity(batch.ops.len()), whole.is_ok());
        for ops in &batch.ops {
            let mut answer = whole.clone();
            if whole.is_ok() {
                for _ in 0..*ops {
                    answer = answer.and(self.receiver.verdict().await?);
                }
            }
            match &answer {
                Err(Refused { device: true, reason, .. }) => return Err(Broken::Rdma(reason.clone())),
                Err(Refused { other_way: true, .. }) => told = false,
                _ => {}
            }
            of_pieces.push(answer);
        }
        Ok(Answers { of_pieces, told })
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
    told: bool,
}

impl Broken {
    /// The error of a request in `buffers`.
    async fn after(self, buffers: Buffers, ways: &Ways, way: usize) -> Self {
        self.leave(ways, way);
        match buffers.abandon().await {
            Ok(()) => self,
            Err(why) => Self::Held(why.to_string()),
        }
    }

    /// Leaves the way, if it is to blame.
    fn leave(&self, ways: &Ways, way: usize) {
        if let Self::Rdma(why) = self {
            ways.leave(way, why);
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
    asked: impl Future<Output = Result<T, Broken>>,
) -> Result<T, Broken> {
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
    Err(Broken::Rdma(format!("the store moved nothing by RDMA within {most:?}")))
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
    (piece, places): (&Piece<&[u8]>, &OfPiece),
    mut sum: RunningChecksum,
) -> Checksum {
    for (buffer, place) in piece.buffers.iter().zip(places) {
        for part in buffer.chunks(CACHED) {
            sum.update(part);
            if place.is_none() {
                buffers.put(at, part);
                at += part.len() as u64;
            }
            tokio::task::consume_budget().await;
        }
    }
    sum.finish()
}

async fn sum_of(piece: &Piece<&[u8]>, mut sum: RunningChecksum) -> Checksum {
    for part in piece.buffers.iter().flat_map(|buffer| buffer.chunks(CACHED)) {
        sum.update(part);
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
        for part in buffer.slice_mut().chunks_mut(CACHED) {
            if place.is_none() {
                buffers.get(at, part);
                at += part.len() as u64;
            }
            sum.update(part);
            tokio::task::consume_budget().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(lens: &[u64]) -> Vec<std::ops::Range<usize>> {
        let pieces: Vec<Piece<&[u8]>> =
            lens.iter().map(|len| Piece { len: *len, ..Piece::empty(0, 0, 0) }).collect();
        let of_pieces = vec![OfPiece::new(); lens.len()];
        batches(&pieces, &Places { of_pieces, staged_bytes: 0 })
    }

    #[test]
    fn every_device_of_both_ends_is_used_before_any_pair_of_them_comes_again() {
        for (ours, theirs) in [(1, 1), (2, 4), (4, 2), (4, 8), (8, 4), (3, 3), (2, 3)] {
            let pairs: Vec<_> = (0..ours * theirs).map(|way| devices_of(way, ours, theirs)).collect();
            let first = &pairs[..ours.max(theirs)];
            let used = |which: fn(&(usize, usize)) -> usize| {
                first.iter().map(which).collect::<std::collections::BTreeSet<_>>().len()
            };
            assert_eq!((used(|pair| pair.0), used(|pair| pair.1)), (ours, theirs));
            let distinct: std::collections::BTreeSet<_> = pairs.iter().collect();
            assert_eq!(distinct.len(), ours * theirs, "each pair once: {pairs:?}");
        }
        assert_eq!(devices_of(3, 2, 4), (1, 3));
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
        assert!(matches!(silent, Err(Broken::Rdma(_))));
        assert!(
            began.elapsed() < patience * 4 / 3,
            "of the paused clock: before the store is taken for dead"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_segment_that_no_device_reaches_is_not_asked_for_again_at_once() {
        let ways = Ways::default();
        assert!(ways.reaches_all());
        ways.leave_segment(3, "memlock");
        assert!(!ways.reaches_all());
        assert_eq!(ways.lacks([1, 3].into_iter()), Some("memlock".to_owned()));
        assert_eq!(ways.lacks([1, 2].into_iter()), None);
        tokio::time::advance(LEFT).await;
        assert_eq!(ways.lacks([3].into_iter()), None, "the store may have registered it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_way_that_failed_is_left_for_a_while_and_others_are_tried() {
        let ways = Ways::default();
        assert_eq!((ways.pick(2), ways.pick(2)), (Ok(0), Ok(1)));
        ways.0.lock().theirs = 2;
        ways.leave(0, "cable");
        assert_eq!((ways.pick(2), ways.pick(2)), (Ok(1), Ok(1)));
        ways.leave(1, "switch");
        assert_eq!(ways.pick(2), Ok(2), "the other device of the store");
        ways.leave(2, "switch");
        ways.leave(3, "switch");
        assert_eq!(ways.pick(2), Err("cable; switch".to_owned()));
        assert!(ways.any(2).is_err());
        tokio::time::advance(LEFT).await;
        assert!(ways.any(2).is_ok() && !ways.is_left(3));
        ways.leave(3, "switch");
        tokio::time::advance(LEFT).await;
        assert!(ways.is_left(3), "longer the second time");
        ways.moved(3, 0);
        assert!(!ways.is_left(3));
    }
}
