//! Writes that a store copies out of memory of this process. The module above says why they can do no harm.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use mc_types::{Access, SealedGrant};
use tokio::time::Instant;

use super::{CACHED, MIN_SHARED, ShmTransport, TURN};
use crate::WriteBuffer;
use crate::checksum::{Checksum, RunningChecksum, Sums};
use crate::control::client::pieces::{InArea, Piece};
use crate::control::wire::MAX_OPS;
use crate::memory::Area;
use crate::path::shm::client::bounce::{BOUNCE, BounceBuffer};
use crate::path::shm::client::requests::area_writes;
use crate::path::shm::client::session::Session;
use crate::path::tcp::client::Answered;
use crate::transport::{Peer, Seal, TransferError, Transport as _, WriteOp, Written, sealed_after};

/// Longest wait of a call for the numbers of its areas. Bytes of those that have none are copied through a bounce buffer.
const PATIENCE: Duration = Duration::from_millis(300);

/// Bytes of an operation that are in one place.
struct Part<'a> {
    op: usize,
    range: u32,
    offset: u64,
    bytes: WriteBuffer<'a>,
    /// Their place, and the area, which is kept until the answer; `None` if they are in no area of the store's.
    place: Option<(InArea, Arc<Area>)>,
}

/// Whether a batch should go through shared memory.
pub(super) fn is_worth_it(ops: &[WriteOp<'_>]) -> bool {
    // One of no bytes only seals, and has no place.
    ops.iter().all(|op| op.len() > 0) && ops.iter().map(WriteOp::len).sum::<u64>() >= MIN_SHARED
}

/// How the rounds of a batch have ended.
enum End {
    /// Every round was answered.
    Answered,
    /// The store answers no request any more.
    Failed(TransferError),
    /// The remaining operations have to go over TCP.
    OtherWay,
}

impl ShmTransport {
    /// Writes, and seals with [`Seal::Yes`].
    pub(super) async fn write_shared(
        &self,
        session: &Session,
        peer: &Peer,
        grant: &SealedGrant,
        (ops, seal): (&[WriteOp<'_>], Seal),
        deadline: Instant,
    ) -> Vec<Result<Written, TransferError>> {
        let until = deadline.min(Instant::now() + PATIENCE);
        let all_parts = self.parts(session, ops, until).await;
        let mut answers: Vec<Result<Option<Written>, TransferError>> = vec![Ok(None); ops.len()];
        let (mut done, mut end) = (vec![false; ops.len()], End::Answered);
        for round in rounds(&all_parts) {
            let with = if seal == Seal::Yes { seal_of(&all_parts, &round) } else { Seal::No };
            // Operations before it have no parts in later rounds.
            let next_op = all_parts.get(round.end).map_or(ops.len(), |part| part.op);
            let is_open = |part: &&Part<'_>| answers[part.op].is_ok();
            let parts: Vec<&Part<'_>> = all_parts[round].iter().filter(is_open).collect();
            if parts.is_empty() {
                continue;
            }
            let Some(bounce) = self.bounce_buffer(session, &parts, until).await else {
                end = End::OtherWay;
                break;
            };
            let (of_round, sums) =
                self.write_round(peer, grant, (&parts, ops.len()), bounce, with, deadline).await;
            let mut receipts = vec![None; ops.len()];
            for ((answer, of_round_one), receipt) in
                answers.iter_mut().zip(of_round.answers).zip(&mut receipts)
            {
                match of_round_one {
                    Ok(sealed) => *receipt = sealed,
                    // A store that can't reach an area has written nothing, and is asked over TCP.
                    Err(error) if answer.is_ok() && !of_round.other_way => *answer = Err(error),
                    Err(_) => {}
                }
            }
            // See the module: nothing bars a late copy when this call has ended.
            if seal == Seal::No && !of_round.is_settled {
                for part in parts.iter().filter(|part| part.place.is_some()) {
                    if answers[part.op].is_ok() {
                        answers[part.op] = Err(TransferError::InDoubt { store: peer.store });
                    }
                }
            }
            if of_round.other_way {
                end = End::OtherWay;
                break;
            }
            for (part, checksum) in parts.iter().zip(sums) {
                if let Ok(so_far) = &mut answers[part.op] {
                    let len = part.bytes.len() as u64;
                    let written = Written { checksum, receipt: receipts[part.op] };
                    *so_far = Some(so_far.map_or(written, |so_far| so_far.followed_by(written, len)));
                }
            }
            if with == seal {
                let last = parts.iter().filter(|part| part.op < next_op);
                last.for_each(|part| done[part.op] = answers[part.op].is_ok());
            }
            // Later rounds would wait just as long for the same store.
            if let Some(failed) = of_round.failed {
                end = End::Failed(failed);
                break;
            }
        }
        let mut answers: Vec<_> =
            answers.into_iter().map(|answer| answer.map(Option::unwrap_or_default)).collect();
        let open: Vec<usize> = (0..ops.len()).filter(|op| !done[*op] && answers[*op].is_ok()).collect();
        let is_left = matches!(end, End::OtherWay);
        match end {
            // Without a seal every operation is done with its last round.
            End::Answered if open.is_empty() => {}
            End::Answered => {
                let ranges: Vec<u32> = open.iter().map(|op| ops[*op].range).collect();
                let of_seal = self.tcp.calls().seal(peer, grant, &ranges, deadline).await;
                for (op, sealed) in open.iter().zip(of_seal) {
                    answers[*op] = sealed_after(answers[*op].clone(), sealed);
                }
            }
            End::Failed(failed) => open.iter().for_each(|op| answers[*op] = Err(failed.clone())),
            End::OtherWay => {
                let left = |op: &usize| WriteOp { from: ops[*op].from.clone(), ..ops[*op] };
                let left: Vec<WriteOp<'_>> = open.iter().map(left).collect();
                let over_tcp = self.tcp.write(peer, grant, &left, seal, deadline).await;
                open.iter().zip(over_tcp).for_each(|(op, answer)| answers[*op] = answer);
            }
        }
        let went_over_tcp = |op: usize| is_left && open.binary_search(&op).is_ok();
        let is_shared = |part: &&Part<'_>| answers[part.op].is_ok() && !went_over_tcp(part.op);
        let shared = all_parts.iter().filter(is_shared).map(|part| part.bytes.len() as u64).sum();
        session.note_moved(shared);
        (self.on_moved)(Access::Write, shared);
        answers
    }

    /// Takes a bounce buffer if some parts need one, with its number at the store; `None` if there is none.
    async fn bounce_buffer(
        &self,
        session: &Session,
        parts: &[&Part<'_>],
        until: Instant,
    ) -> Option<Option<(BounceBuffer<'_>, u64)>> {
        if parts.iter().all(|part| part.place.is_some()) {
            return Some(None);
        }
        let bounce = self.bounce_buffers.take(&self.areas)?;
        match session.number_of(bounce.area(), until).await {
            Some(number) => Some(Some((bounce, number))),
            None => {
                bounce.give_back();
                None
            }
        }
    }

    /// Lets the store copy the parts of one round; returns its answer, and the checksum of each part.
    async fn write_round(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        (parts, ops): (&[&Part<'_>], usize),
        mut bounce: Option<(BounceBuffer<'_>, u64)>,
        seal: Seal,
        deadline: Instant,
    ) -> (Answered, Vec<Checksum>) {
        let (mut sums, mut pieces, mut at) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            let (place, sum) = match (&part.place, &mut bounce) {
                (None, Some((bounce, area))) => {
                    let place = InArea { area: *area, at };
                    let copy = |piece: WriteBuffer<'_>, sum: &mut RunningChecksum| {
                        bounce.write(at, piece, sum);
                        at += piece.len() as u64;
                    };
                    (place, Some(pass(part.bytes, self.tcp.calls().sums(), copy).await))
                }
                (Some((place, _)), _) => (*place, None),
                // There is a buffer if one is needed; the store has no area of this number.
                (None, None) => (InArea { area: 0, at: 0 }, None),
            };
            sums.push(sum);
            pieces.push(Piece::at(place, part.op, (part.range, part.offset, part.bytes.len() as u64)));
        }
        let ask = self.tcp.calls().ask(peer, grant, (area_writes(pieces, seal), ops), deadline);
        // While the store copies.
        let sum = async {
            let mut all = Vec::with_capacity(sums.len());
            for (sum, part) in sums.into_iter().zip(parts) {
                all.push(match sum {
                    Some(sum) => sum,
                    None => pass(part.bytes, self.tcp.calls().sums(), |piece, sum| piece.add_to(sum)).await,
                });
            }
            all
        };
        let (answer, sums) = tokio::join!(ask, sum);
        if answer.is_settled
            && let Some((bounce, _)) = bounce
        {
            bounce.give_back();
        }
        (answer, sums)
    }

    /// Cuts operations into parts, and finds the place of each.
    async fn parts<'a>(&self, session: &Session, ops: &'a [WriteOp<'_>], until: Instant) -> Vec<Part<'a>> {
        let mut parts = Vec::with_capacity(ops.len());
        for (nth, op) in ops.iter().enumerate() {
            let mut offset = op.offset;
            for buffer in op.from.iter().filter(|buffer| !buffer.is_empty()) {
                let area = match self.areas.find_shared(*buffer) {
                    Some((area, at)) => {
                        session.number_of(&area, until).await.map(|number| (number, at, area))
                    }
                    None => None,
                };
                for (bytes, from) in buffer.chunks(BOUNCE).zip((0..).step_by(BOUNCE)) {
                    let place = area
                        .as_ref()
                        .map(|(number, at, area)| (InArea { area: *number, at: at + from }, area.clone()));
                    parts.push(Part { op: nth, range: op.range, offset, bytes, place });
                    offset = offset.wrapping_add(bytes.len() as u64);
                }
            }
        }
        parts
    }
}

/// Cuts parts into rounds of one request each: between operations where that is possible, so that a request has all of its
/// operations and can seal them.
fn rounds(parts: &[Part<'_>]) -> Vec<Range<usize>> {
    let len = |parts: &[Part<'_>]| parts.iter().map(|part| part.bytes.len()).sum::<usize>();
    let (mut rounds, mut first, mut total, mut op_from) = (Vec::new(), 0, 0, 0);
    for (nth, part) in parts.iter().enumerate() {
        if nth > 0 && parts[nth - 1].op != part.op {
            op_from = nth;
        }
        while nth > first && (total + part.bytes.len() > BOUNCE || nth - first >= MAX_OPS) {
            let end = if op_from > first { op_from } else { nth };
            rounds.push(first..end);
            first = end;
            total = len(&parts[first..nth]);
        }
        total += part.bytes.len();
    }
    rounds.push(first..parts.len());
    rounds
}

/// Whether a round can seal: no operation of it has parts in others.
fn seal_of(parts: &[Part<'_>], round: &Range<usize>) -> Seal {
    let is_cut = |at: usize| at > 0 && at < parts.len() && parts[at - 1].op == parts[at].op;
    if is_cut(round.start) || is_cut(round.end) { Seal::No } else { Seal::Yes }
}

/// Passes over bytes once: `each` adds each piece to the checksum, while it is in the cache.
async fn pass(
    bytes: WriteBuffer<'_>,
    sums: Sums,
    mut each: impl FnMut(WriteBuffer<'_>, &mut RunningChecksum),
) -> Checksum {
    let (mut checksum, mut since_turn) = (sums.of_writes(), 0);
    for piece in bytes.chunks(CACHED) {
        each(piece, &mut checksum);
        since_turn += piece.len();
        if since_turn >= TURN {
            since_turn = 0;
            tokio::task::yield_now().await;
        }
    }
    checksum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(lens: &[usize]) -> Vec<(Range<usize>, Seal)> {
        let bytes = vec![0; BOUNCE];
        let bytes = WriteBuffer::from(&bytes);
        let part = |(op, len): (usize, usize)| {
            let part = move |bytes| Part { op, range: 0, offset: 0, bytes, place: None };
            vec![0; len]
                .chunks(BOUNCE)
                .map(<[u8]>::len)
                .map(|len| part(bytes.split_at(len).0))
                .collect::<Vec<_>>()
        };
        let parts: Vec<_> = lens.iter().copied().enumerate().flat_map(part).collect();
        rounds(&parts).into_iter().map(|round| (round.clone(), seal_of(&parts, &round))).collect()
    }

    #[test]
    fn a_request_has_whole_operations_and_seals_them_where_they_fit() {
        let (yes, no) = (Seal::Yes, Seal::No);
        assert_eq!(cut(&[1]), [(0..1, yes)]);
        assert_eq!(cut(&[BOUNCE / 2, BOUNCE / 2, 1]), [(0..2, yes), (2..3, yes)]);
        assert_eq!(cut(&[BOUNCE - 1, BOUNCE, 1]), [(0..1, yes), (1..2, yes), (2..3, yes)]);
        assert_eq!(cut(&[5, 2 * BOUNCE + 1, 5]), [(0..1, yes), (1..2, no), (2..3, no), (3..5, no)]);
        assert_eq!(cut(&vec![1; MAX_OPS + 1]), [(0..MAX_OPS, yes), (MAX_OPS..MAX_OPS + 1, yes)]);
    }
}
