//! Requests whose bytes go by RDMA, beside the connection. See [`crate::path::rdma`].

use std::time::Duration;

use mc_types::{Access, Receipt, SealedGrant};
use tokio::sync::OwnedSemaphorePermit;

use super::buffers::Buffers;
use super::failure::{RdmaFailure, within};
use super::pairing::{Pair, PairedLink};
use super::places::{OfPiece, Places, batches, bytes_of, copy_in, copy_out, runs, staged, sum_of};
use super::process::RdmaClient;
use super::routes::Routes;
use crate::control::client::pieces::{Buffer, Piece};
use crate::control::client::{Outcome, Refused, is_for_now};
use crate::control::wire::{Op, RdmaOp, RdmaRequest, RequestKind};
use crate::memory::Staging;
use crate::transport::{Seal, Written};
use crate::{ReadBuffer, WriteBuffer};

/// Where the bytes of a turn are, and the staging memory of those that have to be copied.
pub(super) struct Prepared {
    pub(super) places: Places,
    pub(super) staging: Staging,
    /// The right to staging memory, which ends after it.
    pub(super) turn: Option<OwnedSemaphorePermit>,
}

impl PairedLink<'_> {
    /// Like [`Link::read`], with the bytes going by RDMA. There must be a pair, and no piece may be longer than [`REQUEST`].
    /// It ends at the first batch with a piece that is refused for now.
    pub(super) async fn read(
        &mut self,
        client: (&RdmaClient, &Routes, Prepared, Duration),
        grant: &SealedGrant,
        pieces: &mut [Piece<ReadBuffer<'_>>],
        done: &mut Vec<Outcome>,
    ) -> Result<(), RdmaFailure> {
        // The turn ends after the staging memory.
        let (client, routes, Prepared { places, staging, turn: _turn }, patience) = client;
        let Some(Pair { end, route }) = self.pair.take() else {
            return Err(RdmaFailure::Rdma(String::new()));
        };
        let (mut buffers, mut moved) = (Buffers::new(end.into_inner(), staging, places.reached()), 0);
        if let Err(why) = buffers.check() {
            return Err(RdmaFailure::Rdma(why.to_string()).after(buffers, routes, route).await);
        }
        let progress = self.link.progress();
        for batch in batches(pieces, &places) {
            let (places, batch) = (&places.of_pieces[batch.clone()], &mut pieces[batch]);
            let asked = async {
                let request =
                    self.request(RequestKind::Rdma(RdmaRequest::Read), grant, (batch, places), &buffers);
                self.link.send_out().await?;
                let answers = self.answers(&request).await?;
                if answers.notified {
                    // A verdict can overtake the bytes.
                    let notified = buffers.notified(request.id as u32).await;
                    notified.map_err(|error| RdmaFailure::Rdma(error.to_string()))?;
                }
                Ok(answers.of_pieces)
            };
            let answers = match within(patience, bytes_of(batch), &progress, asked).await {
                Ok(answers) => answers,
                Err(broken) => return Err(broken.after(buffers, routes, route).await),
            };
            let (mut at, mut good) = (0, 0);
            for ((piece, places), answer) in batch.iter_mut().zip(places).zip(answers) {
                let staged = staged(piece, places);
                done.push(match answer {
                    Ok(_) => {
                        let mut sum = self.link.sums.of_reads();
                        copy_out(&buffers, at, (piece, places), &mut sum).await;
                        good += piece.len;
                        Ok(Written { checksum: sum.finish(), receipt: None })
                    }
                    Err(refused) => Err(refused),
                });
                at += staged;
            }
            (client.on_moved)(Access::Read, good);
            moved += good;
            if done[done.len() - batch.len()..].iter().any(is_for_now) {
                break;
            }
        }
        *self.pair = buffers.settled().map(|end| Pair::new(end, route));
        routes.moved(route, moved);
        Ok(())
    }

    /// Like [`Link::write`], with the bytes going by RDMA. There must be a pair, and no piece may be longer than
    /// [`REQUEST`]. It ends at the first batch with a piece that is refused for now.
    pub(super) async fn write(
        &mut self,
        client: (&RdmaClient, &Routes, Prepared, Duration),
        grant: &SealedGrant,
        pieces: &[Piece<WriteBuffer<'_>>],
        seal: Seal,
        done: &mut Vec<Outcome>,
    ) -> Result<(), RdmaFailure> {
        // The turn ends after the staging memory.
        let (client, routes, Prepared { places, staging, turn: _turn }, patience) = client;
        let Some(Pair { end, route }) = self.pair.take() else {
            return Err(RdmaFailure::Rdma(String::new()));
        };
        let (mut buffers, mut moved) = (Buffers::new(end.into_inner(), staging, places.reached()), 0);
        if let Err(why) = buffers.check() {
            return Err(RdmaFailure::Rdma(why.to_string()).after(buffers, routes, route).await);
        }
        let kind = RequestKind::Rdma(RdmaRequest::Write(seal));
        let of_writes = self.link.sums;
        let progress = self.link.progress();
        for batch in batches(pieces, &places) {
            let (places, batch) = (&places.of_pieces[batch.clone()], &pieces[batch]);
            let (mut at, mut sums) = (0, Vec::with_capacity(batch.len()));
            for (piece, places) in batch.iter().zip(places) {
                let staged = staged(piece, places);
                sums.push(if staged > 0 {
                    Some(copy_in(&mut buffers, at, (piece, places), of_writes.of_writes()).await)
                } else {
                    None
                });
                at += staged;
            }
            let asked = async {
                let request = self.request(kind, grant, (batch, places), &buffers);
                self.link.send_out().await?;
                Ok(self.answers(&request).await?.of_pieces)
            };
            // While the device of the store reads the bytes.
            let sum = async {
                for (piece, sum) in batch.iter().zip(&mut sums) {
                    if sum.is_none() {
                        *sum = Some(sum_of(piece, of_writes.of_writes()).await);
                    }
                }
            };
            let (answers, ()) = tokio::join!(within(patience, bytes_of(batch), &progress, asked), sum);
            let answers = match answers {
                Ok(answers) => answers,
                Err(broken) => return Err(broken.after(buffers, routes, route).await),
            };
            let good = batch.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            let good = good.map(|(piece, _)| piece.len).sum();
            (client.on_moved)(Access::Write, good);
            moved += good;
            let sums = sums.into_iter().map(Option::unwrap_or_default);
            let written =
                |(checksum, answer): (_, Result<_, _>)| answer.map(|receipt| Written { checksum, receipt });
            done.extend(sums.zip(answers).map(written));
            if done[done.len() - batch.len()..].iter().any(is_for_now) {
                break;
            }
        }
        *self.pair = buffers.settled().map(|end| Pair::new(end, route));
        routes.moved(route, moved);
        Ok(())
    }

    /// Encodes the request of a batch.
    fn request<B: Buffer>(
        &mut self,
        kind: RequestKind,
        grant: &SealedGrant,
        (batch, places): (&[Piece<B>], &[OfPiece]),
        buffers: &Buffers,
    ) -> Batch {
        let (mut ops, mut of_pieces) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        let mut at = 0;
        for (piece, places) in batch.iter().zip(places) {
            let (first, mut offset) = (ops.len(), piece.offset);
            for (len, reach) in runs(piece, places) {
                let op = |from: u64, len| Op { range: piece.range, offset: offset.wrapping_add(from), len };
                match reach {
                    Some(reach) => {
                        let (key, address) = reach.place(buffers.device()).unwrap_or((0, 0));
                        ops.push(RdmaOp { op: op(0, len), key, address });
                    }
                    None => {
                        let part = |(from, len, key, address)| RdmaOp { op: op(from, len), key, address };
                        ops.extend(buffers.parts(at, len).map(part));
                        at += len;
                    }
                }
                offset = offset.wrapping_add(len);
            }
            of_pieces.push(ops.len() - first);
        }
        let put_ops = |out: &mut Vec<u8>| ops.iter().for_each(|op| op.encode(out));
        let id = self.link.request_of(kind, ops.len() as u16, grant, put_ops);
        Batch { id, ops: of_pieces }
    }

    /// Receives the verdicts on a batch.
    async fn answers(&mut self, batch: &Batch) -> Result<Answers, RdmaFailure> {
        let whole = self.link.receiver.reply(batch.id).await?;
        let (mut of_pieces, mut notified) = (Vec::with_capacity(batch.ops.len()), whole.is_ok());
        for ops in &batch.ops {
            let mut answer = whole.clone().map(|()| None);
            if whole.is_ok() {
                for _ in 0..*ops {
                    answer = answer.and(self.link.receiver.verdict().await?);
                }
            }
            match &answer {
                Err(Refused { device: true, reason, .. }) => return Err(RdmaFailure::Rdma(reason.clone())),
                Err(Refused { other_way: true, .. }) => notified = false,
                _ => {}
            }
            of_pieces.push(answer);
        }
        Ok(Answers { of_pieces, notified })
    }
}

/// A request of several pieces.
struct Batch {
    id: u64,
    /// Number of operations of each piece.
    ops: Vec<usize>,
}

/// Answers to a batch.
struct Answers {
    of_pieces: Vec<Result<Option<Receipt>, Refused>>,
    /// Whether the store also sends a message, if it is a read.
    notified: bool,
}
