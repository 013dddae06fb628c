//! Requests whose bytes go over the connection.

use mc_types::SealedGrant;

use crate::checksum::Checksum;
use crate::control::client::iovecs::{IoVecs, MAX_PARTS};
use crate::control::client::pieces::Piece;
use crate::control::client::{Broken, CACHED, Link, Outcome};
use crate::control::wire::{KINDS_SINCE, RequestKind, TcpRequest};
use crate::transport::{Seal, Written};
use crate::{ReadBuffer, WriteBuffer};

impl Link {
    /// Reads `pieces`, at most [`crate::control::wire::MAX_OPS`], and appends their outcomes to `done` as they come.
    pub(crate) async fn read(
        &mut self,
        grant: &SealedGrant,
        pieces: &mut [Piece<ReadBuffer<'_>>],
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        if let Err(refused) = self.ask(RequestKind::Tcp(TcpRequest::Read), grant, pieces).await? {
            done.extend(pieces.iter().map(|_| Err(refused.clone())));
            return Ok(());
        }
        for piece in pieces {
            if let Err(refused) = self.receiver.verdict().await? {
                done.push(Err(refused));
                continue;
            }
            let checksum = self.receiver.receive(piece, self.sums).await?;
            done.push(self.receiver.verdict().await?.map(|_| Written { checksum, receipt: None }));
        }
        Ok(())
    }

    /// Writes `pieces`, at most [`crate::control::wire::MAX_OPS`], and appends their outcomes to `done` as they come. A store of an earlier
    /// version seals nothing.
    pub(crate) async fn write(
        &mut self,
        grant: &SealedGrant,
        pieces: &[Piece<WriteBuffer<'_>>],
        seal: Seal,
        done: &mut Vec<Outcome>,
    ) -> Result<(), Broken> {
        let seal = if self.version() >= KINDS_SINCE { seal } else { Seal::No };
        let id = self.request(RequestKind::Tcp(TcpRequest::Write(seal)), grant, pieces);
        let out = std::mem::take(self.out());
        let sent = self.send_payload(&out, pieces).await;
        *self.out() = out;
        let checksums = sent?;
        if let Err(refused) = self.receiver.reply(id).await? {
            done.extend(pieces.iter().map(|_| Err(refused.clone())));
            return Ok(());
        }
        for checksum in checksums {
            done.push(self.receiver.verdict().await?.map(|receipt| Written { checksum, receipt }));
        }
        Ok(())
    }

    /// Sends the request and the payload of `pieces`, each part right after it was added to the checksum.
    async fn send_payload(
        &mut self,
        request: &[u8],
        pieces: &[Piece<WriteBuffer<'_>>],
    ) -> Result<Vec<Checksum>, Broken> {
        let mut checksums = Vec::with_capacity(pieces.len());
        let mut batch = IoVecs::default();
        batch.push(request.into());
        let mut batched = 0;
        for piece in pieces {
            let mut checksum = self.sums.of_writes();
            for part in piece.buffers.iter().flat_map(|buffer| buffer.chunks(CACHED)) {
                part.add_to(&mut checksum);
                batch.push(part);
                batched += part.len();
                if batched >= CACHED || batch.len() == MAX_PARTS {
                    self.sender.send_parts(&mut batch).await?;
                    batch.clear();
                    batched = 0;
                }
            }
            checksums.push(checksum.finish());
        }
        self.sender.send_parts(&mut batch).await?;
        self.sender.flush().await?;
        Ok(checksums)
    }
}
