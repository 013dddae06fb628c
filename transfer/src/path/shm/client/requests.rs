//! Requests about bytes that clients of the store's host share with it: they have no bytes.

use crate::WriteBuffer;
use crate::checksum::Checksum;
use crate::control::client::pieces::{InArea, Piece};
use crate::control::client::{Broken, Link, Outcome, Refused};
use crate::control::wire::{AreaOp, KINDS_SINCE, RequestKind, SHARING_SINCE, ShmRequest};
use crate::transport::Seal;

impl Link {
    /// Asks whether the bytes of `pieces`, at most [`crate::control::wire::MAX_OPS`], which were read past the store before, are good, and
    /// appends the answers to `done` as they come.
    pub(crate) async fn check(
        &mut self,
        grant: &[u8],
        pieces: &[Piece<WriteBuffer<'_>>],
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        if self.version() < KINDS_SINCE {
            let reason = "it speaks version 1 of the transfer protocol, which has no checks".to_owned();
            done.extend(pieces.iter().map(|_| Err(Refused::for_good(reason.clone()))));
            return Ok(());
        }
        if let Err(refused) = self.ask(RequestKind::Shm(ShmRequest::Check), grant, pieces).await? {
            done.extend(pieces.iter().map(|_| Err(refused.clone())));
            return Ok(());
        }
        for _ in pieces {
            done.push(self.receiver.verdict().await?.map(|()| Checksum::default()));
        }
        Ok(())
    }

    /// Writes `pieces`, at most [`crate::control::wire::MAX_OPS`] and [`crate::control::wire::MAX_FETCHED_BYTES`], which the store copies by itself, and appends
    /// their outcomes to `done`.
    pub(crate) async fn write_from_areas(
        &mut self,
        grant: &[u8],
        pieces: &[Piece<InArea>],
        seal: Seal,
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        if self.version() < SHARING_SINCE {
            let reason = format!("it speaks version {} of the transfer protocol", self.version());
            let refused = Refused { other_way: true, ..Refused::for_good(reason) };
            done.extend(pieces.iter().map(|_| Err(refused.clone())));
            return Ok(());
        }
        let id = self.begin(RequestKind::Shm(ShmRequest::Write(seal)), pieces.len() as u16, grant);
        for piece in pieces {
            let InArea { area, at } = piece.buffers[0];
            AreaOp { op: piece.wire_op(), area, at }.encode(self.out());
        }
        self.send_out().await?;
        if let Err(refused) = self.receiver.reply(id).await? {
            done.extend(pieces.iter().map(|_| Err(refused.clone())));
            return Ok(());
        }
        for _ in pieces {
            done.push(self.receiver.verdict().await?.map(|()| Checksum::default()));
        }
        Ok(())
    }
}
