//! Requests whose bytes go by RDMA, beside the connection. See [`crate::rdma`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mc_types::Access;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::link::{Broken, Link, Outcome, Refused};
use super::plan::Piece;
use crate::checksum::RunningChecksum;
use crate::rdma::{Buffers, ClientEnd, Rdma, Slots};
use crate::transport::Seal;
use crate::wire::{Ask, END_LEN, End, MAX_OPS, Op, RDMA_SINCE, RdmaOp};

/// Fewest bytes of a turn that go by RDMA. Fewer are there with the answer over TCP, which RDMA needs as well.
const WORTH_IT: u64 = 16 << 10;
/// Maximum bytes of one request.
const REQUEST: u64 = 4 << 20;
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
    /// Whether bytes may go by RDMA alone.
    pub(super) only: bool,
    pub(super) on_moved: OnRdma,
}

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
    next: usize,
}

struct Left {
    until: Instant,
    pause: Duration,
    why: String,
}

/// The end of a pair beside a connection.
pub(super) struct Paired {
    end: ClientEnd,
    way: usize,
}

/// Pieces, or a part of one, that go with one request.
struct Batch {
    pieces: std::ops::Range<usize>,
    /// Bytes of the piece, if it is only one: it may be a part.
    offset: u64,
    len: u64,
    /// Whether no further batch has bytes of these pieces.
    last: bool,
}

impl Ways {
    /// Returns the way to try: the next one of those that did not fail. Devices of the same number go first, because they
    /// are often on the same switch. `Err` says why there is none.
    fn pick(&self, ours: usize) -> Result<usize, String> {
        let mut state = self.0.lock();
        let (now, next) = (Instant::now(), state.next);
        let all = ours * state.theirs.max(1);
        let free = |way: &usize| state.left.get(way).is_none_or(|left| left.until <= now);
        let rails = (0..ours).map(|nth| (next + nth) % ours);
        let found = rails.chain(ours..all).find(free);
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

    /// Leaves a way for a while.
    pub(super) fn leave(&self, way: usize, why: &str) {
        let mut state = self.0.lock();
        let pause = state.left.get(&way).map_or(LEFT, |left| LEFT_MOST.min(left.pause * 2));
        if !state.left.contains_key(&way) {
            tracing::warn!("no RDMA for {pause:?} on one way to a store: {why}");
        }
        state.left.insert(way, Left { until: Instant::now() + pause, pause, why: why.to_owned() });
    }

    fn works(&self, way: usize) {
        self.0.lock().left.remove(&way);
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

    /// Waits for buffers for a turn of so many bytes.
    pub(super) async fn slots(&self, bytes: u64) -> Result<Slots, String> {
        Slots::take(&self.rdma, bytes.min(REQUEST)).await.map_err(|error| error.to_string())
    }
}

impl Link {
    /// Makes the pair beside this connection, if it has none. `Err` says why there is none; a way that failed is left.
    pub(super) async fn pair_up(
        &mut self,
        by: &ByRdma,
        ways: &Ways,
        access: Access,
        grant: &[u8],
    ) -> Result<Result<(), String>, Broken> {
        match &self.paired {
            Some(paired) if !ways.is_left(paired.way) => return Ok(Ok(())),
            _ => self.paired = None,
        }
        let ours = by.rdma.len();
        let way = match ways.pick(ours) {
            Ok(way) => way,
            Err(why) => return Ok(Err(why)),
        };
        let made = self.make_pair(by, ways, way, access, grant).await?;
        Ok(made.inspect_err(|why| ways.leave(way, why)))
    }

    async fn make_pair(
        &mut self,
        by: &ByRdma,
        ways: &Ways,
        way: usize,
        access: Access,
        grant: &[u8],
    ) -> Result<Result<(), String>, Broken> {
        if self.version() < RDMA_SINCE {
            let version = self.version();
            return Ok(Err(format!(
                "the store speaks version {version} of the transfer protocol, without RDMA"
            )));
        }
        let ours = by.rdma.len();
        // The store counts its devices around.
        let wish = u16::try_from(way % ours + way / ours).unwrap_or(0);
        let end = match ClientEnd::new(&by.rdma, way % ours, wish) {
            Ok(end) => end,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let id = self.begin(Ask::Pair(access), 1, grant);
        end.end().encode(self.out());
        self.send_out().await?;
        if let Err(refused) = self.reply(id).await? {
            return Ok(Err(refused.reason));
        }
        let mut theirs = [0; END_LEN];
        self.read_exact(&mut theirs).await?;
        let theirs = End::decode(&theirs);
        ways.0.lock().theirs = usize::from(theirs.way).clamp(1, 64);
        if let Err(error) = end.connect(&theirs) {
            return Ok(Err(error.to_string()));
        }
        self.paired = Some(Paired { end, way });
        Ok(Ok(()))
    }

    /// Like [`Link::read`], with the bytes going by RDMA. There must be a pair.
    pub(super) async fn rdma_read(
        &mut self,
        by: (&ByRdma, &Ways, Slots, Duration),
        grant: &[u8],
        pieces: &mut [Piece<&mut [u8]>],
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        let (by, ways, slots, patience) = by;
        let Some(Paired { end, way }) = self.paired.take() else { return Err(Broken::Rdma(String::new())) };
        let mut buffers = Buffers::new(end, slots);
        let mut sum = self.sums.of_reads();
        let mut refused: Option<Refused> = None;
        for batch in batches(pieces) {
            let mut answers = Vec::new();
            let asked = async {
                let id = self.rdma_request(Ask::RdmaRead, grant, pieces, &batch, &buffers);
                self.send_out().await?;
                answers = self.rdma_answers(id, pieces, &batch, &buffers).await?;
                // A verdict can overtake the bytes.
                buffers.told(id as u32).await.map_err(|error| Broken::Rdma(error.to_string()))
            };
            within(patience, batch.len, asked).await.inspect_err(|broken| broken.leave(ways, way))?;
            let (mut at, mut good) = (0, 0);
            for (nth, answer) in batch.pieces.clone().zip(answers) {
                let is_good = answer.is_ok();
                refused = refused.or(answer.err());
                let piece = &mut pieces[nth];
                let (offset, len) = batch.part_of(piece.len);
                copy_out(&buffers, at, piece, offset, len, &mut sum).await;
                at += len;
                good += if is_good { len } else { 0 };
                if batch.last {
                    let sum = std::mem::replace(&mut sum, self.sums.of_reads());
                    done.push(refused.take().map_or_else(|| Ok(sum.finish()), Err));
                }
            }
            (by.on_moved)(Access::Read, good);
        }
        self.paired = buffers.settled().map(|end| Paired { end, way });
        ways.works(way);
        Ok(())
    }

    /// Like [`Link::write`], with the bytes going by RDMA. There must be a pair.
    pub(super) async fn rdma_write(
        &mut self,
        by: (&ByRdma, &Ways, Slots, Duration),
        grant: &[u8],
        pieces: &[Piece<&[u8]>],
        seal: Seal,
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        let (by, ways, slots, patience) = by;
        let Some(Paired { end, way }) = self.paired.take() else { return Err(Broken::Rdma(String::new())) };
        let mut buffers = Buffers::new(end, slots);
        let mut sums: Vec<RunningChecksum> = Vec::new();
        let mut refused: Option<Refused> = None;
        for batch in batches(pieces) {
            let (mut at, mut good) = (0, 0);
            for nth in batch.pieces.clone() {
                let (offset, len) = batch.part_of(pieces[nth].len);
                if offset == 0 {
                    sums.push(self.sums.of_writes());
                }
                if let Some(sum) = sums.last_mut() {
                    copy_in(&mut buffers, at, &pieces[nth], offset, len, sum).await;
                }
                at += len;
            }
            let seals = seal == Seal::Yes && batch.last;
            let ask = if seals { Ask::RdmaWriteAndSeal } else { Ask::RdmaWrite };
            let asked = async {
                let id = self.rdma_request(ask, grant, pieces, &batch, &buffers);
                self.send_out().await?;
                self.rdma_answers(id, pieces, &batch, &buffers).await
            };
            let answers = within(patience, batch.len, asked).await;
            let answers = answers.inspect_err(|broken| broken.leave(ways, way))?;
            let mut sums_done = if batch.last { std::mem::take(&mut sums) } else { Vec::new() }.into_iter();
            for (nth, answer) in batch.pieces.clone().zip(answers) {
                if answer.is_ok() {
                    good += batch.part_of(pieces[nth].len).1;
                }
                refused = refused.or(answer.err());
                if let Some(sum) = sums_done.next() {
                    done.push(refused.take().map_or_else(|| Ok(sum.finish()), Err));
                }
            }
            (by.on_moved)(Access::Write, good);
        }
        self.paired = buffers.settled().map(|end| Paired { end, way });
        ways.works(way);
        Ok(())
    }

    /// Encodes the request of a batch, and returns its id.
    fn rdma_request<B>(
        &mut self,
        ask: Ask,
        grant: &[u8],
        pieces: &[Piece<B>],
        batch: &Batch,
        buffers: &Buffers,
    ) -> u64 {
        let id = self.begin(ask, batch.ops(pieces, buffers), grant);
        let mut at = 0;
        for piece in &pieces[batch.pieces.clone()] {
            let (offset, len) = batch.part_of(piece.len);
            for (from, len, key, address) in buffers.parts(at, len) {
                let op = Op { range: piece.range, offset: piece.offset.wrapping_add(offset + from), len };
                RdmaOp { op, key, address }.encode(self.out());
            }
            at += len;
        }
        id
    }

    /// Receives the verdicts on a batch, and returns one for each of its pieces.
    async fn rdma_answers<B>(
        &mut self,
        id: u64,
        pieces: &[Piece<B>],
        batch: &Batch,
        buffers: &Buffers,
    ) -> Result<Vec<Result<(), Refused>>, Broken> {
        let whole = self.reply(id).await?;
        let (mut answers, mut at) = (Vec::with_capacity(batch.pieces.len()), 0);
        for piece in &pieces[batch.pieces.clone()] {
            let (_, len) = batch.part_of(piece.len);
            let mut answer = whole.clone();
            if whole.is_ok() {
                for _ in buffers.parts(at, len) {
                    let verdict = self.verdict().await?;
                    answer = answer.and(verdict);
                }
            }
            at += len;
            if let Err(Refused { device: true, reason, .. }) = answer {
                return Err(Broken::Rdma(reason));
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

impl Broken {
    /// Leaves the way, if it is to blame.
    fn leave(&self, ways: &Ways, way: usize) {
        if let Self::Rdma(why) = self {
            ways.leave(way, why);
        }
    }
}

/// Bounds the wait for the answer to a request of `len` bytes.
async fn within<T>(
    patience: Duration,
    len: u64,
    asked: impl Future<Output = Result<T, Broken>>,
) -> Result<T, Broken> {
    let most = patience + Duration::from_micros(len * 1_000_000 / SLOWEST);
    match timeout(most, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(Broken::Rdma(format!("the store moved nothing by RDMA within {most:?}"))),
    }
}

impl Batch {
    /// Offset and length of the bytes of a piece of this batch that has `len` of them.
    fn part_of(&self, len: u64) -> (u64, u64) {
        if self.pieces.len() == 1 { (self.offset, self.len) } else { (0, len) }
    }

    /// Number of its operations.
    fn ops<B>(&self, pieces: &[Piece<B>], buffers: &Buffers) -> u16 {
        let mut at = 0;
        let ops = pieces[self.pieces.clone()].iter().map(|piece| {
            let (_, len) = self.part_of(piece.len);
            at += len;
            buffers.parts(at - len, len).count()
        });
        u16::try_from(ops.sum::<usize>()).unwrap_or(u16::MAX)
    }
}

/// Cuts pieces into requests: as many whole ones as fit, or a part of one that does not.
fn batches<B>(pieces: &[Piece<B>]) -> Vec<Batch> {
    let (mut batches, mut first, mut len) = (Vec::new(), 0, 0);
    let mut push = |pieces: std::ops::Range<usize>, offset, len, last| {
        if !pieces.is_empty() {
            batches.push(Batch { pieces, offset, len, last });
        }
    };
    for (nth, piece) in pieces.iter().enumerate() {
        if len + piece.len > REQUEST || nth - first >= MAX_OPS - CUTS {
            push(first..nth, 0, len, true);
            (first, len) = (nth, 0);
        }
        if piece.len > REQUEST {
            let mut offset = 0;
            while offset < piece.len {
                let part = REQUEST.min(piece.len - offset);
                push(nth..nth + 1, offset, part, offset + part == piece.len);
                offset += part;
            }
            (first, len) = (nth + 1, 0);
        } else {
            len += piece.len;
        }
    }
    push(first..pieces.len(), 0, len, true);
    batches
}

/// Copies a part of a piece into the buffers, and adds it to its checksum while it is in the cache.
async fn copy_in(
    buffers: &mut Buffers,
    at: u64,
    piece: &Piece<&[u8]>,
    offset: u64,
    len: u64,
    sum: &mut RunningChecksum,
) {
    let (mut skip, mut done) = (offset, 0);
    for buffer in &piece.buffers {
        let from = skip.min(buffer.len() as u64) as usize;
        skip -= from as u64;
        let take = (len - done).min((buffer.len() - from) as u64) as usize;
        for part in buffer[from..from + take].chunks(CACHED) {
            sum.update(part);
            buffers.put(at + done, part);
            done += part.len() as u64;
        }
        tokio::task::consume_budget().await;
    }
}

/// Copies a part of a piece out of the buffers, and adds it to its checksum while it is in the cache.
async fn copy_out(
    buffers: &Buffers,
    at: u64,
    piece: &mut Piece<&mut [u8]>,
    offset: u64,
    len: u64,
    sum: &mut RunningChecksum,
) {
    let (mut skip, mut done) = (offset, 0);
    for buffer in &mut piece.buffers {
        let from = skip.min(buffer.len() as u64) as usize;
        skip -= from as u64;
        let take = (len - done).min((buffer.len() - from) as u64) as usize;
        for part in buffer[from..from + take].chunks_mut(CACHED) {
            buffers.get(at + done, part);
            sum.update(part);
            done += part.len() as u64;
        }
        tokio::task::consume_budget().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(len: u64) -> Piece<&'static [u8]> {
        Piece { len, ..Piece::empty(0, 0, 0) }
    }

    #[test]
    fn a_batch_has_whole_pieces_or_a_part_of_one() {
        let cut = |lens: &[u64]| {
            let pieces: Vec<_> = lens.iter().map(|len| piece(*len)).collect();
            batches(&pieces).into_iter().map(|b| (b.pieces, b.offset, b.len, b.last)).collect::<Vec<_>>()
        };
        assert_eq!(cut(&[]), []);
        assert_eq!(cut(&[5, 0, 7]), [(0..3, 0, 12, true)]);
        assert_eq!(cut(&[REQUEST, 1]), [(0..1, 0, REQUEST, true), (1..2, 0, 1, true)]);
        assert_eq!(
            cut(&[1, REQUEST + 2, 3]),
            [(0..1, 0, 1, true), (1..2, 0, REQUEST, false), (1..2, REQUEST, 2, true), (2..3, 0, 3, true)]
        );
        let many = cut(&vec![1; MAX_OPS]);
        assert_eq!(many.iter().map(|(pieces, ..)| pieces.len()).sum::<usize>(), MAX_OPS);
        assert!(many.iter().all(|(pieces, ..)| pieces.len() <= MAX_OPS - CUTS));
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
        ways.works(3);
        assert!(!ways.is_left(3));
    }
}
