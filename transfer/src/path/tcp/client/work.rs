//! The work of a call on one connection, and how it is asked for.

use std::ops::Range;

use mc_types::{Access, Receipt, SealedGrant};

use super::pool::PooledLink;
use crate::checksum::{Checksum, Sums};
use crate::control::client::pieces::{self, InArea, Piece};
use crate::control::client::{Failure, OutOfBand, Outcome, PipedReply, PipedRequest, is_for_now};
use crate::control::wire::{OP_LEN, Op, RequestKind, TcpRequest};
use crate::path::{Carried, PreparedTurn, TurnBytes};
use crate::transport::{Seal, Written};
use crate::{ReadBuffer, WriteBuffer};

/// Maximum bytes of a call that shares a connection with others. They are copied once more.
const SMALL: u64 = 32 << 10;

/// Pieces that are carried together.
pub(super) type Turn = Range<usize>;

/// The part of a call that one connection carries.
pub(super) enum Work<'a> {
    Read(Vec<Piece<ReadBuffer<'a>>>),
    Write(Vec<Piece<WriteBuffer<'a>>>, Seal),
    /// Its bytes do not go over the connection.
    OutOfBand(OutOfBand),
}

impl<'a> Work<'a> {
    /// Whether every piece has an outcome.
    pub(super) fn is_done(&self, done: &[Outcome]) -> bool {
        self.pieces().len() == done.len()
    }

    /// Returns the pieces of the next turn, after the first `done` ones.
    pub(super) fn next_turn(&self, done: usize) -> Turn {
        let turn = match self {
            // Nothing moves the bytes of pieces without a place, so their number is the only bound.
            Self::OutOfBand(OutOfBand { pieces, .. }) => {
                let moves = |piece: &Piece<InArea>| if piece.buffers.is_empty() { 0 } else { piece.len };
                pieces::turn(pieces.iter().skip(done).map(moves))
            }
            Self::Read(_) | Self::Write(..) => pieces::turn(self.pieces().skip(done).map(|(_, len)| len)),
        };
        done..done + turn
    }

    /// Whether the store may do in a moment, or over TCP, what it has refused, so that this work asks it again.
    pub(super) fn is_for_now(&self, outcome: &Outcome) -> bool {
        match self {
            Self::OutOfBand(_) => outcome.as_ref().is_err_and(|refused| refused.busy),
            Self::Read(_) | Self::Write(..) => is_for_now(outcome),
        }
    }

    /// The first piece, from `first` on, that the store may do later.
    pub(super) fn later(&self, done: &[Outcome], first: usize) -> Option<usize> {
        Some(first + done[first..].iter().position(|outcome| self.is_for_now(outcome))?)
    }

    /// Notes that a turn has ended without its answer.
    pub(super) fn note_doubt(&mut self) {
        if let Self::OutOfBand(request) = self {
            request.in_doubt = true;
        }
    }

    /// The pieces of `turn`, if they have bytes that may go beside the connection.
    pub(super) fn bytes(&mut self, turn: Turn) -> Option<TurnBytes<'_, 'a>> {
        match self {
            Self::Read(pieces) => Some(TurnBytes::Read(&mut pieces[turn])),
            Self::Write(pieces, seal) => Some(TurnBytes::Write(&pieces[turn], *seal)),
            Self::OutOfBand(_) => None,
        }
    }

    /// The granted range of the piece `at`.
    pub(super) fn range(&self, at: usize) -> u32 {
        self.op(at).range
    }

    /// Carries the pieces of `turn`; by the path that it was prepared for, if there is one.
    pub(super) async fn turn(
        &mut self,
        turn: Turn,
        connection: &mut PooledLink,
        grant: &SealedGrant,
        done: &mut Vec<Outcome>,
        prepared: Option<Box<dyn PreparedTurn + '_>>,
    ) -> Result<(), Failure> {
        let PooledLink { link, beside } = connection;
        if let (Some(prepared), Some(bytes)) = (prepared, self.bytes(turn.clone()))
            && prepared.carry(link, beside, grant, bytes, done).await? == Carried::ByPath
        {
            return Ok(());
        }
        match self {
            Self::Read(pieces) => link.read(grant, &mut pieces[turn], done).await?,
            Self::Write(pieces, seal) => link.write(grant, &pieces[turn], *seal, done).await?,
            Self::OutOfBand(request) => request.ask(&request.pieces[turn], link, grant, done).await?,
        }
        Ok(())
    }

    /// Whether the request of `turn` and its answer are small enough to share a connection, and for which kind of calls.
    pub(super) fn small(&self, turn: &Turn, grant: &SealedGrant) -> Option<Access> {
        let lens = || self.pieces().skip(turn.start).take(turn.len()).map(|(_, len)| len);
        let (access, bytes) = match self {
            Self::Read(_) => (Access::Read, lens().sum()),
            Self::Write(..) => (Access::Write, lens().sum()),
            // Operations on a shared connection name no places.
            Self::OutOfBand(request) if request.pieces.iter().all(|piece| piece.buffers.is_empty()) => {
                (request.kind().access(), 0)
            }
            Self::OutOfBand(_) => return None,
        };
        ((grant.bytes.len() + turn.len() * OP_LEN) as u64 + bytes <= SMALL).then_some(access)
    }

    /// The request of `turn`, for a connection that others share; also returns the checksum of each piece of a write.
    pub(super) fn piped_request(
        &self,
        turn: Turn,
        grant: &SealedGrant,
        sums: Sums,
    ) -> (PipedRequest, Vec<Checksum>) {
        let (mut payload, mut checksums) = (Vec::new(), vec![Checksum::default(); turn.len()]);
        if let Self::Write(pieces, _) = self {
            for (piece, checksum) in pieces[turn.clone()].iter().zip(&mut checksums) {
                let mut sum = sums.of_writes();
                for buffer in &piece.buffers {
                    let from = payload.len();
                    buffer.append_to(&mut payload);
                    sum.update(&payload[from..]);
                }
                *checksum = sum.finish();
            }
        }
        let ops = turn.map(|at| self.op(at)).collect();
        (PipedRequest { kind: self.kind(), grant: grant.clone(), ops, payload }, checksums)
    }

    fn kind(&self) -> RequestKind {
        match self {
            Self::Read(_) => RequestKind::Tcp(TcpRequest::Read),
            Self::Write(_, seal) => RequestKind::Tcp(TcpRequest::Write(*seal)),
            Self::OutOfBand(request) => request.kind(),
        }
    }

    /// The piece `at`, as an operation of a request.
    fn op(&self, at: usize) -> Op {
        match self {
            Self::Read(pieces) => pieces[at].wire_op(),
            Self::Write(pieces, _) => pieces[at].wire_op(),
            Self::OutOfBand(request) => request.pieces[at].wire_op(),
        }
    }

    /// Takes the answer to a request of [`Self::piped_request`].
    pub(super) fn take(
        &mut self,
        turn: Turn,
        PipedReply { verdicts, payload }: PipedReply,
        checksums: &[Checksum],
        sums: Sums,
        done: &mut Vec<Outcome>,
    ) {
        let Self::Read(pieces) = self else {
            let written = |(verdict, &checksum): (Result<Option<Receipt>, _>, &Checksum)| {
                verdict.map(|receipt| Written { checksum, receipt })
            };
            done.extend(verdicts.into_iter().zip(checksums).map(written));
            return;
        };
        let mut rest = &payload[..];
        for (piece, verdict) in pieces[turn].iter_mut().zip(verdicts) {
            let mut sum = sums.of_reads();
            // A refusal of the whole request has no bytes.
            if !payload.is_empty() {
                for buffer in &mut piece.buffers {
                    let (now, later) = rest.split_at(buffer.len());
                    buffer.put(0, now);
                    sum.update(now);
                    rest = later;
                }
            }
            done.push(verdict.map(|_| Written { checksum: sum.finish(), receipt: None }));
        }
    }

    /// Iterates over the operation and length of each piece.
    pub(super) fn pieces(&self) -> impl ExactSizeIterator<Item = (usize, u64)> {
        let of = |at: usize| match self {
            Self::Read(pieces) => (pieces[at].op, pieces[at].len),
            Self::Write(pieces, _) => (pieces[at].op, pieces[at].len),
            Self::OutOfBand(request) => (request.pieces[at].op, request.pieces[at].len),
        };
        let count = match self {
            Self::Read(pieces) => pieces.len(),
            Self::Write(pieces, _) => pieces.len(),
            Self::OutOfBand(request) => request.pieces.len(),
        };
        (0..count).map(of)
    }
}
