//! Requests whose bytes go by RDMA. See [`crate::rdma`].

use std::ops::Range;
use std::sync::Arc;

use mc_types::Grant;
use tokio::sync::OwnedSemaphorePermit;

use super::check::Refusal;
use super::connection::Connection;
use super::socket::{Closed, Incoming};
use super::{Counters, DataServer, Lent};
use crate::fence::{Cut, Fenced};
use crate::rdma::{Direction, Failed, NoRdma, Part, StoreEnd};
use crate::wire::{END_LEN, End, RdmaOp};

/// The queue pair beside a connection.
pub(super) struct Pair {
    end: StoreEnd,
    _place: OwnedSemaphorePermit,
}

/// A read that the fence has admitted.
struct Reading {
    lent: Arc<Lent>,
    bytes: Range<u64>,
    index: u64,
}

impl From<NoRdma> for Refusal {
    fn from(NoRdma(why): NoRdma) -> Self {
        Self::Device(why)
    }
}

impl DataServer {
    /// Makes a queue pair for a client's.
    fn make_pair(&self, theirs: &End) -> Result<(Pair, End), Refusal> {
        let rdma = self.rdma.as_ref();
        let rdma = rdma.ok_or_else(|| Refusal::Device("the store offers none".to_owned()))?;
        let place = self.pairs.clone().try_acquire_owned();
        let place = place.map_err(|_| Refusal::Device("too many clients have a queue pair".to_owned()))?;
        let (end, ours) = StoreEnd::new(rdma, theirs)?;
        Counters::add(&self.counters.rdma_pairs, 1);
        Ok((Pair { end, _place: place }, ours))
    }

    /// Finds the bytes of a read and checks it, and cuts it into `parts`.
    fn begin_read(
        &self,
        grant: &Grant,
        read: RdmaOp,
        end: &StoreEnd,
        parts: &mut Vec<Part>,
    ) -> Result<Reading, Refusal> {
        let (lent, range, _) = self.locate(grant, read.op)?;
        let start = range.offset + read.op.offset;
        let bytes = start..start + read.op.len;
        lent.fence.check_read(bytes.clone(), range.index, grant.expires)?;
        end.cut(&lent.segment, (start, read.op.len), (read.address, read.key), parts)?;
        Ok(Reading { lent, bytes, index: range.index })
    }
}

impl Connection<'_> {
    /// Makes the queue pair beside this connection. One that is there is replaced.
    pub(super) fn pair(&mut self, end: &[u8]) {
        let Some(end) = end.first_chunk::<END_LEN>() else {
            return self.verdict(Err(Refusal::Device("the request names no end".to_owned())));
        };
        self.pair = None;
        match self.server.make_pair(&End::decode(end)) {
            Ok((pair, ours)) => {
                self.pair = Some(pair);
                self.verdict(Ok(()));
                ours.encode(&mut self.out);
            }
            Err(refusal) => {
                tracing::debug!(%refusal, "a client gets no queue pair");
                self.verdict(Err(refusal));
            }
        }
    }

    /// Writes to the client's memory. The message `id` follows the bytes, unless the verdicts say that RDMA has failed.
    pub(super) async fn rdma_reads(&mut self, grant: &Grant, ops: &[u8], id: u64) -> Result<(), Closed> {
        let Some(pair) = &mut self.pair else { return self.refuse_all(ops, &no_pair()) };
        let (mut parts, mut reads, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for op in RdmaOp::decode_all(ops) {
            let read = self.server.begin_read(grant, op, &pair.end, &mut parts);
            if let Err(refusal @ Refusal::Device(_)) = &read {
                let refusal = refusal.clone();
                return self.refuse_all(ops, &refusal);
            }
            kept.extend(read.as_ref().ok().map(|read| read.lent.clone()));
            reads.push(read);
        }
        let cut = Cut::new(self.server.transfer_ended.clone());
        let (gone, stall) = (self.socket.gone(), self.server.timeouts.stall);
        let number = Direction::ToClient(id as u32);
        match pair.end.carry(number, &parts, kept, &cut, gone, stall).await {
            Ok(()) => {}
            Err(Failed::Gone) => return Err(Closed::ByPeer),
            Err(failed) => return self.failed(ops, failed),
        }
        for read in reads {
            // The second half of the seqlock, after the card has read the last byte.
            let good = read.and_then(|Reading { lent, bytes, index }| {
                lent.fence.check_read(bytes.clone(), index, grant.expires)?;
                Ok(bytes.end - bytes.start)
            });
            if let Ok(len) = good {
                Counters::add(&self.server.counters.reads, 1);
                Counters::add(&self.server.counters.rdma_bytes_read, len);
            }
            self.verdict(good.map(drop));
        }
        Ok(())
    }

    /// Reads from the client's memory.
    pub(super) async fn rdma_writes(&mut self, grant: &Grant, ops: &[u8], seal: bool) -> Result<(), Closed> {
        if self.pair.is_none() {
            return self.refuse_all(ops, &no_pair());
        }
        // All are admitted before the card gets a hold on any, because others wait for those holds.
        let mut writes = Vec::new();
        for RdmaOp { op, .. } in RdmaOp::decode_all(ops) {
            let write = match self.server.admit_write(grant, op) {
                Err(Refusal::Fenced(Fenced::Full | Fenced::InTransfer)) => {
                    self.server.admit_later(grant, op, &mut self.patience).await
                }
                answer => answer,
            };
            writes.push(write);
        }
        let Some(pair) = &mut self.pair else { return self.refuse_all(ops, &no_pair()) };
        let cut = Cut::new(self.server.transfer_ended.clone());
        let (mut parts, mut kept) = (Vec::new(), Vec::new());
        for (write, RdmaOp { address, key, .. }) in writes.iter_mut().zip(RdmaOp::decode_all(ops)) {
            let Ok(Incoming { lent, offset, len, pass, range, .. }) = write else { continue };
            let Some(hold) = pass.hold_for_device(&cut) else {
                *write = Err(Fenced::Ended { index: range.index }.into());
                continue;
            };
            if let Err(missing) = pair.end.cut(&lent.segment, (*offset, *len), (address, key), &mut parts) {
                return self.refuse_all(ops, &missing.into());
            }
            kept.push((hold, lent.clone()));
        }
        let (gone, stall) = (self.socket.gone(), self.server.timeouts.stall);
        let carried = pair.end.carry(Direction::FromClient, &parts, kept, &cut, gone, stall).await;
        match carried {
            Ok(()) => {}
            Err(Failed::Gone) => return Err(Closed::ByPeer),
            Err(failed @ Failed::Device(_)) => return self.failed(ops, failed),
            Err(Failed::Cut) => {
                self.pair = None;
                for write in writes {
                    // Others of the batch have nothing to do with it, but their bytes are not there either.
                    let ended = |write: Incoming| match write.pass.hold() {
                        Some(_) => Refusal::CutOff,
                        None => Fenced::Ended { index: write.range.index }.into(),
                    };
                    self.verdict(Err(write.map_or_else(|refusal| refusal, ended)));
                }
                return Err(Closed::Rdma);
            }
        }
        for write in writes {
            let sealed = match write {
                Ok(write) => {
                    Counters::add(&self.server.counters.writes, 1);
                    Counters::add(&self.server.counters.rdma_bytes_written, write.len);
                    match seal {
                        true => {
                            self.server.seal(&write, grant, &mut self.patience).await.map_err(Refusal::from)
                        }
                        false => Ok(()),
                    }
                }
                // As for a write over TCP: this is the same one again, whose answer was lost.
                Err(Refusal::Fenced(Fenced::Sealed { .. })) if seal => Ok(()),
                Err(refusal) => Err(refusal),
            };
            self.verdict(sealed);
        }
        Ok(())
    }

    /// Answers every operation with the same refusal.
    fn refuse_all(&mut self, ops: &[u8], refusal: &Refusal) -> Result<(), Closed> {
        RdmaOp::decode_all(ops).for_each(|_| self.verdict(Err(refusal.clone())));
        Ok(())
    }

    /// Answers a request whose bytes did not go through, and ends the connection, whose queue pair is gone.
    fn failed(&mut self, ops: &[u8], failed: Failed) -> Result<(), Closed> {
        self.pair = None;
        let refusal = match failed {
            Failed::Device(why) => {
                Counters::add(&self.server.counters.rdma_failures, 1);
                tracing::warn!("RDMA failed, the client goes on over another way or TCP: {why}");
                Refusal::Device(why)
            }
            Failed::Cut | Failed::Gone => Refusal::CutOff,
        };
        self.refuse_all(ops, &refusal)?;
        Err(Closed::Rdma)
    }
}

fn no_pair() -> Refusal {
    Refusal::Device("the connection has no queue pair".to_owned())
}
