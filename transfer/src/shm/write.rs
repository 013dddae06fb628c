//! Writes that a store copies out of memory of this process. See the module above for what makes that right.

use std::sync::Arc;

use mc_types::{Access, SealedGrant};
use tokio::time::Instant;

use super::areas::{Area, SLOT};
use super::session::Session;
use super::{CACHED, ShmTransport, TURN};
use crate::checksum::{Checksum, Sums};
use crate::tcp::{FromAreas, Piece, Place};
use crate::transport::{Peer, Seal, TransferError, WriteOp};
use crate::wire::{MAX_FETCHED_BYTES, MAX_OPS};

/// Fewest bytes of a batch that a store copies by itself. Fewer come with the request over TCP, which is needed as well.
const WORTH_IT: u64 = 16 << 10;

/// Bytes of an operation that are in one place.
struct Part<'a> {
    op: usize,
    range: u32,
    offset: u64,
    bytes: &'a [u8],
    /// Their place, and the area, which is kept until the answer; `None` if they are in no area of the store's.
    place: Option<(Place, Arc<Area>)>,
}

/// Whether a batch should go through shared memory.
pub(super) fn is_worth_it(ops: &[WriteOp<'_>]) -> bool {
    let len = |op: &WriteOp<'_>| op.from.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
    // One of no bytes only seals, and has no place.
    ops.iter().all(|op| len(op) > 0) && ops.iter().map(len).sum::<u64>() >= WORTH_IT
}

impl ShmTransport {
    /// Writes and seals. `None` if the bytes have to go over TCP.
    pub(super) async fn write_shared(
        &self,
        session: &Session,
        peer: &Peer,
        grant: &SealedGrant,
        ops: &[WriteOp<'_>],
        deadline: Instant,
    ) -> Option<Vec<Result<Checksum, TransferError>>> {
        let parts = self.parts(session, ops, deadline).await;
        let rounds = rounds(&parts);
        let seal = if rounds.len() == 1 { Seal::Yes } else { Seal::No };
        let mut answers: Vec<Result<Option<Checksum>, TransferError>> = vec![Ok(None); ops.len()];
        for round in rounds {
            let parts = &parts[round];
            let mut slot = match parts.iter().any(|part| part.place.is_none()) {
                true => Some(self.slots.take(&self.areas)?),
                false => None,
            };
            let slot_number = match &slot {
                Some(slot) => session.number_of(slot.area(), deadline).await,
                None => None,
            };
            let (mut sums, mut pieces, mut at) = (Vec::new(), Vec::new(), 0);
            for part in parts {
                let len = part.bytes.len() as u64;
                let place = match (&part.place, &mut slot, slot_number) {
                    (Some((place, _)), ..) => {
                        sums.push(None);
                        *place
                    }
                    (None, Some(slot), Some(area)) => {
                        let place = Place { area, at };
                        let sum = pass(part.bytes, self.tcp.sums(), |piece| {
                            slot.write(at, piece);
                            at += piece.len() as u64;
                        });
                        sums.push(Some(sum.await));
                        place
                    }
                    (None, slot, _) => {
                        slot.take().into_iter().for_each(super::areas::Slot::give_back);
                        return None;
                    }
                };
                pieces.push(Piece::at(place, part.op, (part.range, part.offset, len)));
            }
            let ask = self.tcp.write_from_areas(peer, grant, (pieces, ops.len()), seal, deadline);
            // While the store copies.
            let sum = async {
                for (sum, part) in sums.iter_mut().zip(parts) {
                    if sum.is_none() {
                        *sum = Some(pass(part.bytes, self.tcp.sums(), |_| {}).await);
                    }
                }
            };
            let (FromAreas { answers: round_answers, other_way, is_settled }, ()) = tokio::join!(ask, sum);
            if is_settled && let Some(slot) = slot {
                slot.give_back();
            }
            if other_way && is_settled {
                return None;
            }
            for (part, sum) in parts.iter().zip(sums) {
                if let (Ok(so_far), Some(sum)) = (&mut answers[part.op], sum) {
                    let len = part.bytes.len() as u64;
                    *so_far = Some(so_far.map_or(sum, |so_far| so_far.followed_by(sum, len)));
                }
            }
            for (answer, of_round) in answers.iter_mut().zip(round_answers) {
                if let (Ok(_), Err(error)) = (&answer, of_round) {
                    *answer = Err(error);
                }
            }
        }
        let mut answers: Vec<_> =
            answers.into_iter().map(|answer| answer.map(Option::unwrap_or_default)).collect();
        if seal == Seal::No {
            self.tcp.seal(peer, grant, ops, &mut answers, deadline).await;
        }
        let good = parts.iter().filter(|part| answers[part.op].is_ok());
        (self.on_moved)(Access::Write, good.map(|part| part.bytes.len() as u64).sum());
        Some(answers)
    }

    /// Cuts operations into parts, and finds the place of each.
    async fn parts<'a>(&self, session: &Session, ops: &'a [WriteOp<'_>], deadline: Instant) -> Vec<Part<'a>> {
        let mut parts = Vec::with_capacity(ops.len());
        for (nth, op) in ops.iter().enumerate() {
            let mut offset = op.offset;
            for buffer in op.from.iter().filter(|buffer| !buffer.is_empty()) {
                let area = match self.areas.find(buffer) {
                    Some((area, at)) => {
                        session.number_of(&area, deadline).await.map(|number| (number, at, area))
                    }
                    None => None,
                };
                for (bytes, from) in buffer.chunks(SLOT).zip((0..).step_by(SLOT)) {
                    let place = area
                        .as_ref()
                        .map(|(number, at, area)| (Place { area: *number, at: at + from }, area.clone()));
                    parts.push(Part { op: nth, range: op.range, offset, bytes, place });
                    offset = offset.wrapping_add(bytes.len() as u64);
                }
            }
        }
        parts
    }
}

/// Cuts parts into rounds: each is one request, and its bytes that are in no area fit into a slot.
fn rounds(parts: &[Part<'_>]) -> Vec<std::ops::Range<usize>> {
    let (mut rounds, mut first, mut total, mut in_slot) = (Vec::new(), 0, 0, 0);
    for (nth, part) in parts.iter().enumerate() {
        let len = part.bytes.len() as u64;
        let copied = if part.place.is_none() { len } else { 0 };
        let full =
            total + len > MAX_FETCHED_BYTES || in_slot + copied > SLOT as u64 || nth - first >= MAX_OPS;
        if full {
            rounds.push(first..nth);
            (first, total, in_slot) = (nth, 0, 0);
        }
        total += len;
        in_slot += copied;
    }
    rounds.push(first..parts.len());
    rounds
}

/// Passes over bytes once: gives each piece to `each` and adds it to the checksum while it is in the cache.
async fn pass(bytes: &[u8], sums: Sums, mut each: impl FnMut(&[u8])) -> Checksum {
    let (mut checksum, mut since_turn) = (sums.of_writes(), 0);
    for piece in bytes.chunks(CACHED) {
        each(piece);
        checksum.update(piece);
        since_turn += piece.len();
        if since_turn >= TURN {
            since_turn = 0;
            tokio::task::yield_now().await;
        }
    }
    checksum.finish()
}
