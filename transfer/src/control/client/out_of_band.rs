//! Requests whose bytes do not go over the connection, because another path moves or has moved them: each piece is answered with a
//! verdict.

use mc_types::SealedGrant;

use super::link::{Broken, Link, Outcome, Refused};
use super::pieces::{InArea, Piece};
use crate::control::wire::{AreaOp, RequestKind};
use crate::transport::Written;

/// Pieces that requests of one kind are about.
pub(crate) struct OutOfBand {
    kind: RequestKind,
    /// First protocol version with that kind, and the refusal in the name of a store of an earlier one.
    since: u16,
    refused_before: fn(u16) -> Refused,
    /// Each with the place of its bytes, if the request names it.
    pub(crate) pieces: Vec<Piece<InArea>>,
    /// Whether a request has ended without its answer, whatever came after. The store may still be at it.
    pub(crate) in_doubt: bool,
}

impl OutOfBand {
    /// Creates it for requests of a kind, which stores know since a protocol version. A store of an earlier version is not asked, and
    /// `refused_before` is its answer.
    pub(crate) fn new(
        kind: RequestKind,
        (since, refused_before): (u16, fn(u16) -> Refused),
        pieces: Vec<Piece<InArea>>,
    ) -> Self {
        Self { kind, since, refused_before, pieces, in_doubt: false }
    }

    pub(crate) fn kind(&self) -> RequestKind {
        self.kind
    }

    /// Asks about some pieces, at most [`crate::control::wire::MAX_OPS`] and, if they have places,
    /// [`crate::control::wire::MAX_FETCHED_BYTES`], and appends the answers to `done`.
    pub(crate) async fn ask(
        &self,
        pieces: &[Piece<InArea>],
        link: &mut Link,
        grant: &SealedGrant,
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        if link.version() < self.since {
            let refused = (self.refused_before)(link.version());
            done.extend(pieces.iter().map(|_| Err(refused.clone())));
            return Ok(());
        }
        let id = link.request_of(self.kind, pieces.len() as u16, grant, |out| {
            for piece in pieces {
                let op = piece.wire_op();
                match piece.buffers.first() {
                    Some(&InArea { area, at }) => AreaOp { op, area, at }.encode(out),
                    None => op.encode(out),
                }
            }
        });
        link.send_out().await?;
        if let Err(refused) = link.receiver.reply(id).await? {
            done.extend(pieces.iter().map(|_| Err(refused.clone())));
            return Ok(());
        }
        for _ in pieces {
            let verdict = link.receiver.verdict().await?;
            done.push(verdict.map(|receipt| Written { receipt, ..Written::default() }));
        }
        Ok(())
    }
}
