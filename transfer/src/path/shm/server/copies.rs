//! Copies of the bytes of writes, on several threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Notify, Semaphore};

use crate::control::server::{FetchedWrite, Refusal};
use crate::control::wire::AreaOp;
use crate::fence::WritePass;
use crate::memory::{Mapping, Segment};

/// Bytes that are copied at once, while a newer write has to wait.
const PIECE: u64 = 128 << 10;
/// Bytes after which a request that is copied yields to other connections.
const TURN: u64 = 1 << 20;
/// Fewest bytes of a request that are worth another thread: it takes as long to wake up as a few hundred KiB take to copy.
const WORTH_HELP: u64 = 2 << 20;

/// The writes of one request.
pub(crate) struct Copies {
    pub(crate) writes: Vec<Copied>,
    bytes: u64,
    pieces: u64,
    /// Number of the first piece that no thread has taken.
    next: AtomicU64,
    /// Number of pieces that are not done.
    left: AtomicU64,
    /// Notified when no piece is left.
    done: Notify,
}

/// A write out of an area.
pub(crate) struct Copied {
    segment: Arc<Segment>,
    offset: u64,
    len: u64,
    /// Number of the write's first piece.
    first: u64,
    pass: WritePass,
    area: Arc<Mapping>,
    at: u64,
    /// Whether it has lost its pass, so that not all of its bytes have come.
    pub(crate) lost: AtomicBool,
}

impl Copies {
    pub(crate) fn of<'a>(
        admitted: impl Iterator<Item = ((&'a Result<FetchedWrite, Refusal>, AreaOp), Arc<Mapping>)>,
    ) -> Arc<Self> {
        let write = |((admitted, op), area): ((&Result<FetchedWrite, Refusal>, AreaOp), Arc<Mapping>)| {
            let write = &admitted.as_ref().ok()?.write;
            Some(Copied {
                segment: write.lent.segment.clone(),
                offset: write.offset,
                len: write.len,
                first: 0,
                pass: write.pass.clone(),
                area,
                at: op.at,
                lost: AtomicBool::new(false),
            })
        };
        Arc::new(Self::new(admitted.filter_map(write).collect()))
    }

    fn new(mut writes: Vec<Copied>) -> Self {
        let (mut bytes, mut pieces) = (0, 0);
        for write in &mut writes {
            write.first = pieces;
            bytes += write.len;
            pieces += write.len.div_ceil(PIECE);
        }
        let (next, left) = (AtomicU64::new(0), AtomicU64::new(pieces));
        Self { writes, bytes, pieces, next, left, done: Notify::new() }
    }

    /// Takes the next piece; `None` if all are taken.
    fn take(&self) -> Option<u64> {
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        (piece < self.pieces).then_some(piece)
    }

    /// Copies a piece under the pass of its write, and returns its length.
    fn copy(&self, piece: u64) -> u64 {
        // One of no bytes has the same first piece as the next one, which is found.
        let write = &self.writes[self.writes.partition_point(|write| write.first <= piece) - 1];
        let from = (piece - write.first) * PIECE;
        let len = PIECE.min(write.len - from);
        match write.pass.hold() {
            Some(_held) => write.segment.copy_in(write.offset + from, &write.area, write.at + from, len),
            None => write.lost.store(true, Ordering::Relaxed),
        }
        // Released here and acquired in `run`: a caller that finds nothing left also sees these bytes.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
        len
    }
}

/// Threads that help connections to copy.
pub(crate) struct Copiers {
    free: Arc<Semaphore>,
    all: u32,
}

impl Copiers {
    /// Creates one helper for each processor, less one for the connection itself.
    pub(crate) fn new() -> Self {
        let others = std::thread::available_parallelism().map_or(0, |all| all.get() - 1);
        let all = u32::try_from(others).unwrap_or(1);
        Self { free: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// Returns when no helper copies any more. Without requests, none begins.
    pub(crate) async fn ended(&self) {
        // A helper keeps its permit past its last byte.
        drop(self.free.acquire_many(self.all).await);
    }

    /// Copies all pieces. A helper takes some of them, if one is free. A helper that has not begun a piece is not
    /// waited for.
    pub(crate) async fn run(&self, copies: &Arc<Copies>) {
        if copies.bytes >= WORTH_HELP
            && let Ok(permit) = self.free.clone().try_acquire_owned()
        {
            // A helper that begins late, or whose request has ended, finds nothing, and keeps no pass in use.
            let copies = Arc::downgrade(copies);
            drop(tokio::task::spawn_blocking(move || {
                while let Some(copies) = copies.upgrade()
                    && let Some(piece) = copies.take()
                {
                    copies.copy(piece);
                }
                drop(permit);
            }));
        }
        let mut since_turn = 0;
        while let Some(piece) = copies.take() {
            since_turn += copies.copy(piece);
            if since_turn >= TURN {
                since_turn = 0;
                tokio::task::yield_now().await;
            }
        }
        while copies.left.load(Ordering::Acquire) > 0 {
            copies.done.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::memory::{Protection, memory_file};

    const LEN: u64 = 3 * PIECE + 5;

    /// Two writes of the same bytes, one behind the other.
    fn two_writes(segment: &Arc<Segment>, area: &Arc<Mapping>) -> Arc<Copies> {
        let write = |at| Copied {
            segment: segment.clone(),
            offset: at,
            len: LEN,
            first: 0,
            pass: WritePass::default(),
            area: area.clone(),
            at: 0,
            lost: AtomicBool::new(false),
        };
        Arc::new(Copies::new(vec![write(0), write(LEN)]))
    }

    /// An area full of one byte, and a segment of zeros.
    fn memory() -> (Arc<Segment>, Arc<Mapping>) {
        let area = Mapping::new(memory_file("test", LEN).unwrap(), LEN, Protection::Write).unwrap();
        area.write(0, (&vec![7; LEN as usize]).into());
        (Segment::allocate(1, 2 * LEN, &mut |_| {}).unwrap(), Arc::new(area))
    }

    fn is_full(segment: &Segment, from: u64) -> bool {
        let mut bytes = vec![0; LEN as usize];
        segment.copy_out(from, &mut bytes).unwrap();
        bytes.iter().all(|one| *one == 7)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_waits_for_the_pieces_of_a_helper() {
        let (segment, area) = memory();
        let copies = two_writes(&segment, &area);
        let helpers = copies.take().unwrap();
        let copiers = Copiers::new();
        let mut run = std::pin::pin!(copiers.run(&copies));
        // Too few bytes for a helper to join.
        assert!(run.as_mut().now_or_never().is_none());
        assert_eq!((copies.take(), copies.left.load(Ordering::Relaxed)), (None, 1));
        copies.copy(helpers);
        run.await;
        assert!(is_full(&segment, 0) && is_full(&segment, LEN));
    }

    #[tokio::test]
    async fn it_ends_with_its_helpers() {
        let copiers = Copiers { free: Arc::new(Semaphore::new(2)), all: 2 };
        let helper = copiers.free.clone().try_acquire_owned().unwrap();
        assert!(copiers.ended().now_or_never().is_none());
        drop(helper);
        copiers.ended().await;
    }
}
