//! The work of a call on one connection, and how it is asked for.

use std::ops::Range;

use mc_types::{Access, SealedGrant};

use super::pool::PooledLink;
use crate::checksum::{Checksum, Sums};
use crate::control::client::pieces::{self, InArea, Piece};
use crate::control::client::{Failure, Outcome, PipedReply, PipedRequest, is_for_now};
use crate::control::wire::{OP_LEN, Op, RequestKind, ShmRequest, TcpRequest};
use crate::path::{Carried, PreparedTurn, TurnBytes};
use crate::transport::Seal;
use crate::{ReadBuffer, WriteBuffer};

/// Maximum bytes of a call that shares a connection with others. They are copied once more.
const SMALL: u64 = 32 << 10;

/// Pieces that are carried together.
pub(super) type Turn = Range<usize>;

/// The part of a call that one connection carries.
pub(super) enum Work<'a> {
    Read(Vec<Piece<ReadBuffer<'a>>>),
    Write(Vec<Piece<WriteBuffer<'a>>>, Seal),
    /// Pieces without buffers.
    Check(Vec<Piece<WriteBuffer<'a>>>),
    /// Writes that the store copies by itself.
    Areas {
        pieces: Vec<Piece<InArea>>,
        seal: Seal,
        /// Whether a turn has ended without its answer, whatever came after. The store may still be at it.
        in_doubt: bool,
    },
}

impl<'a> Work<'a> {
    /// Whether every piece has an outcome.
    pub(super) fn is_done(&self, done: &[Outcome]) -> bool {
        self.pieces().len() == done.len()
    }

    /// Returns the pieces of the next turn, after the first `done` ones.
    pub(super) fn next_turn(&self, done: usize) -> Turn {
        // A check moves no bytes, so it is only bounded by the number of its pieces.
        let cost = |(_, len)| if matches!(self, Self::Check(_)) { 0 } else { len };
        done..done + pieces::turn(self.pieces().skip(done).map(cost))
    }

    /// Whether the store may do in a moment, or over TCP, what it has refused, so that this work asks it again.
    pub(super) fn is_for_now(&self, outcome: &Outcome) -> bool {
        match self {
            Self::Areas { .. } => outcome.as_ref().is_err_and(|refused| refused.busy),
            _ => is_for_now(outcome),
        }
    }

    /// The first piece, from `first` on, that the store may do later.
    pub(super) fn later(&self, done: &[Outcome], first: usize) -> Option<usize> {
        Some(first + done[first..].iter().position(|outcome| self.is_for_now(outcome))?)
    }

    /// Notes that a turn has ended without its answer.
    pub(super) fn note_doubt(&mut self) {
        if let Self::Areas { in_doubt, .. } = self {
            *in_doubt = true;
        }
    }

    /// The pieces of `turn`, if they have bytes that may go beside the connection.
    pub(super) fn bytes(&mut self, turn: Turn) -> Option<TurnBytes<'_, 'a>> {
        match self {
            Self::Read(pieces) => Some(TurnBytes::Read(&mut pieces[turn])),
            Self::Write(pieces, seal) => Some(TurnBytes::Write(&pieces[turn], *seal)),
            Self::Check(_) | Self::Areas { .. } => None,
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
        grant: &[u8],
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
            Self::Check(pieces) => link.check(grant, &pieces[turn], done).await?,
            Self::Areas { pieces, seal, .. } => {
                link.write_from_areas(grant, &pieces[turn], *seal, done).await?;
            }
        }
        Ok(())
    }

    /// Whether the request of `turn` and its answer are small enough to share a connection, and for which kind of calls.
    pub(super) fn small(&self, turn: &Turn, grant: &[u8]) -> Option<Access> {
        let lens = || self.pieces().skip(turn.start).take(turn.len()).map(|(_, len)| len);
        let (access, bytes) = match self {
            Self::Read(_) => (Access::Read, lens().sum()),
            Self::Check(_) => (Access::Read, 0),
            Self::Write(..) => (Access::Write, lens().sum()),
            Self::Areas { .. } => return None,
        };
        ((grant.len() + turn.len() * OP_LEN) as u64 + bytes <= SMALL).then_some(access)
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
            Self::Check(_) => RequestKind::Shm(ShmRequest::Check),
            Self::Write(_, seal) => RequestKind::Tcp(TcpRequest::Write(*seal)),
            Self::Areas { seal, .. } => RequestKind::Shm(ShmRequest::Write(*seal)),
        }
    }

    /// The piece `at`, as an operation of a request.
    fn op(&self, at: usize) -> Op {
        match self {
            Self::Read(pieces) => pieces[at].wire_op(),
            Self::Write(pieces, _) | Self::Check(pieces) => pieces[at].wire_op(),
            Self::Areas { pieces, .. } => pieces[at].wire_op(),
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
            done.extend(verdicts.into_iter().zip(checksums).map(|(verdict, sum)| verdict.map(|()| *sum)));
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
            done.push(verdict.map(|()| sum.finish()));
        }
    }

    /// Iterates over the operation and length of each piece.
    pub(super) fn pieces(&self) -> impl ExactSizeIterator<Item = (usize, u64)> {
        let of = |at: usize| match self {
            Self::Read(pieces) => (pieces[at].op, pieces[at].len),
            Self::Write(pieces, _) | Self::Check(pieces) => (pieces[at].op, pieces[at].len),
            Self::Areas { pieces, .. } => (pieces[at].op, pieces[at].len),
        };
        let count = match self {
            Self::Read(pieces) => pieces.len(),
            Self::Write(pieces, _) | Self::Check(pieces) => pieces.len(),
            Self::Areas { pieces, .. } => pieces.len(),
        };
        (0..count).map(of)
    }
}
