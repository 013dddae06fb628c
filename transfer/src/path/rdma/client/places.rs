//! Where the bytes of a turn are, the requests that it is cut into, and the copies of those bytes that no device reaches.

use smallvec::SmallVec;

use super::buffers::Buffers;
use crate::checksum::{Checksum, RunningChecksum};
use crate::control::client::pieces::{Buffer, Piece};
use crate::control::wire::MAX_OPS;
use crate::memory::Reached;
use crate::{ReadBuffer, WriteBuffer};

/// Maximum bytes of one request, and so of a piece.
pub(super) const REQUEST: u64 = 4 << 20;
/// Operations that a request may have less than [`MAX_OPS`], because some are cut.
const CUTS: usize = 64;
/// Bytes copied and summed in one step: few enough to stay in the cache.
const CACHED: usize = 128 << 10;
/// Where the bytes of a turn's pieces are, for the device of the store.
pub(super) struct Places {
    /// Places of the buffers of each piece; `None` for those that have to be copied.
    pub(super) of_pieces: Vec<OfPiece>,
    pub(super) staged_bytes: u64,
}

pub(super) type OfPiece = SmallVec<[Option<Reached>; 2]>;

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

    pub(super) fn reached(&self) -> Vec<Reached> {
        self.of_pieces.iter().flatten().flatten().cloned().collect()
    }
}

pub(super) fn bytes_of<B>(pieces: &[Piece<B>]) -> u64 {
    pieces.iter().map(|piece| piece.len).sum()
}

/// Bytes of a piece that have to be copied.
pub(super) fn staged<B: Buffer>(piece: &Piece<B>, places: &OfPiece) -> u64 {
    let copied = piece.buffers.iter().zip(places).filter(|(_, place)| place.is_none());
    copied.map(|(buffer, _)| buffer.size() as u64).sum()
}

/// Joins the buffers of a piece that are copied one after the other; returns (length, place) of each run. A piece without bytes
/// has one run.
pub(super) fn runs<'a, B: Buffer>(
    piece: &Piece<B>,
    places: &'a OfPiece,
) -> SmallVec<[(u64, Option<&'a Reached>); 2]> {
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
pub(super) fn batches<B: Buffer>(pieces: &[Piece<B>], places: &Places) -> Vec<std::ops::Range<usize>> {
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
pub(super) async fn copy_in(
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

pub(super) async fn sum_of(piece: &Piece<WriteBuffer<'_>>, mut sum: RunningChecksum) -> Checksum {
    for part in piece.buffers.iter().flat_map(|buffer| buffer.chunks(CACHED)) {
        part.add_to(&mut sum);
        tokio::task::consume_budget().await;
    }
    sum.finish()
}

/// Copies those bytes of a piece out of the buffers that have to be, and adds all to its checksum while they are in the cache.
pub(super) async fn copy_out(
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
}
