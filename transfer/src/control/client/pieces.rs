//! Cutting a batch for the connections that carry it. No I/O.

use smallvec::SmallVec;

use crate::control::wire::{MAX_OPS, Op};
use crate::{ReadBuffer, WriteBuffer};

/// Alignment of the cuts of a striped batch in bytes, which keeps the stripes' checksums in whole cache-sized pieces.
const CUT_ALIGN: u64 = 64 << 10;

/// Bytes that a call carries before it lets waiting calls use the connection. At some GB/s that takes some ms. A turn
/// costs one round trip.
pub(crate) const TURN: u64 = 16 << 20;

/// A local buffer that can be cut in two.
pub(crate) trait Buffer: Sized {
    fn size(&self) -> usize;
    fn cut(self, at: usize) -> (Self, Self);
}

impl Buffer for WriteBuffer<'_> {
    fn size(&self) -> usize {
        self.len()
    }
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Buffer for ReadBuffer<'_> {
    fn size(&self) -> usize {
        self.len()
    }
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

/// Place of bytes in an area of the client, by the number that the store gave it (see [`crate::path::shm`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InArea {
    pub(crate) area: u64,
    pub(crate) at: u64,
}

/// An operation of the caller or a part of it, carried by one connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece<B> {
    /// Index of the operation in the caller's batch.
    pub(crate) op: usize,
    pub(crate) range: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) buffers: SmallVec<[B; 2]>,
}

impl<B> Piece<B> {
    /// A piece without bytes.
    pub(crate) fn empty(op: usize, range: u32, offset: u64) -> Self {
        Self { op, range, offset, len: 0, buffers: SmallVec::new() }
    }

    /// It as an operation of a request.
    pub(crate) fn wire_op(&self) -> Op {
        Op { range: self.range, offset: self.offset, len: self.len }
    }
}

/// Returns how many connections to use for `total` bytes: one for each stripe, at most `free`, at least one.
pub(crate) fn lanes(total: u64, stripe: u64, free: usize) -> usize {
    let worth = usize::try_from(total / stripe.max(1)).unwrap_or(usize::MAX);
    worth.min(free).max(1)
}

/// Returns how many pieces of these lengths, from the first on, make one turn: at least one.
pub(crate) fn turn(lens: impl Iterator<Item = u64>) -> usize {
    let mut bytes = 0_u64;
    let fits = lens.take(MAX_OPS).take_while(|len| {
        bytes = bytes.saturating_add(*len);
        bytes <= TURN
    });
    fits.count().max(1)
}

/// Cuts operations (range, offset, buffers) of `total` bytes into at most `lanes` lists of nearly the same size.
/// The pieces of an operation are in order, from list to list and within each, and none is longer than `longest`.
pub(crate) fn cut<B: Buffer>(
    ops: impl ExactSizeIterator<Item = (u32, u64, impl Iterator<Item = B>)>,
    total: u64,
    lanes: usize,
    longest: u64,
) -> Vec<Vec<Piece<B>>> {
    let target = match lanes {
        0 | 1 => u64::MAX,
        lanes => total.div_ceil(lanes as u64).next_multiple_of(CUT_ALIGN),
    };
    let mut lists = Vec::with_capacity(lanes);
    let mut list = Vec::with_capacity(ops.len().div_ceil(lanes.max(1)));
    let mut room = target;
    for (op, (range, offset, buffers)) in ops.enumerate() {
        let mut piece = Piece::empty(op, range, offset);
        for mut buffer in buffers {
            while buffer.size() as u64 > room.min(longest - piece.len) {
                let fits = room.min(longest - piece.len);
                let (head, tail) = buffer.cut(fits as usize);
                piece.push(head);
                let next = Piece::empty(op, range, piece.offset.wrapping_add(piece.len));
                list.push(std::mem::replace(&mut piece, next));
                room -= fits;
                if room == 0 {
                    lists.push(std::mem::take(&mut list));
                    room = target;
                }
                buffer = tail;
            }
            room -= buffer.size() as u64;
            piece.push(buffer);
        }
        list.push(piece);
    }
    lists.push(list);
    lists
}

impl Piece<InArea> {
    /// A piece whose bytes are at one place.
    pub(crate) fn at(place: InArea, op: usize, (range, offset, len): (u32, u64, u64)) -> Self {
        Self { op, range, offset, len, buffers: SmallVec::from_iter([place]) }
    }
}

impl<B: Buffer> Piece<B> {
    fn push(&mut self, buffer: B) {
        if buffer.size() > 0 {
            self.len += buffer.size() as u64;
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut_lens(ops: &[Vec<Vec<u8>>], lanes: usize) -> Vec<Vec<Piece<WriteBuffer<'_>>>> {
        let total = ops.iter().flatten().map(|buffer| buffer.len() as u64).sum();
        let ops = ops.iter().enumerate().map(|(i, op)| (i as u32, 1_000, op.iter().map(WriteBuffer::from)));
        cut(ops, total, lanes, TURN)
    }

    #[test]
    fn small_batches_stay_on_one_connection_and_large_ones_use_what_is_free() {
        assert_eq!(lanes(0, 1 << 20, 4), 1);
        assert_eq!(lanes((2 << 20) - 1, 1 << 20, 4), 1);
        assert_eq!(lanes(3 << 20, 1 << 20, 4), 3);
        assert_eq!(lanes(1 << 40, 1 << 20, 4), 4);
        assert_eq!(lanes(1 << 40, 1 << 20, 0), 1, "none is free: wait for one");
    }

    #[test]
    fn a_turn_is_bounded_in_bytes_and_in_operations_and_never_empty() {
        assert_eq!(turn([TURN + 1, 1].into_iter()), 1);
        assert_eq!(turn([TURN / 2, TURN / 2, 1].into_iter()), 2);
        assert_eq!(turn(std::iter::repeat_n(0, MAX_OPS + 1)), MAX_OPS);
    }

    #[test]
    fn a_large_operation_on_one_connection_is_several_turns() {
        let ops = [vec![vec![0; 2 * TURN as usize + 1]]];
        let lists = cut_lens(&ops, 1);
        let lens: Vec<Vec<u64>> = lists.iter().map(|list| list.iter().map(|p| p.len).collect()).collect();
        assert_eq!(lens, [[TURN, TURN, 1]]);
    }

    #[test]
    fn an_operation_without_bytes_is_still_asked_for() {
        let ops = [vec![], vec![vec![]]];
        let pieces: usize = cut_lens(&ops, 4).iter().map(Vec::len).sum();
        assert_eq!(pieces, 2);
    }

    proptest! {
        #[test]
        fn every_byte_is_carried_once_and_in_order(
            sizes in proptest::collection::vec(proptest::collection::vec(0usize..200_000, 0..4), 1..6),
            lanes in 1usize..5,
        ) {
            let ops: Vec<Vec<Vec<u8>>> = sizes
                .iter()
                .map(|op| op.iter().map(|len| (0..*len).map(|i| (i * 7 + len) as u8).collect()).collect())
                .collect();
            let lists = cut_lens(&ops, lanes);
            prop_assert!(lists.len() <= lanes);
            let total: usize = sizes.iter().flatten().sum();
            for list in &lists {
                let carried: u64 = list.iter().map(|piece| piece.len).sum();
                prop_assert!(carried <= (total as u64).div_ceil(lanes as u64) + CUT_ALIGN);
            }
            let mut carried = vec![Vec::new(); ops.len()];
            for piece in lists.iter().flatten() {
                let so_far: &mut Vec<u8> = &mut carried[piece.op];
                prop_assert_eq!(piece.range as usize, piece.op);
                prop_assert_eq!(piece.offset, 1_000 + so_far.len() as u64);
                prop_assert_eq!(piece.len as usize, piece.buffers.iter().map(|b| b.len()).sum::<usize>());
                piece.buffers.iter().for_each(|buffer| buffer.append_to(so_far));
            }
            prop_assert_eq!(carried, ops.iter().map(|op| op.concat()).collect::<Vec<_>>());
        }
    }
}
