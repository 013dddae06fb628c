//! One request after the other on a connection: its verdicts, and the admission and end of its writes.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

use mc_types::{Grant, Receipt};

use super::check::Refusal;
use super::counters::Counters;
use super::served::{AdmittedWrite, Landing, ServedMemory};
use super::socket::{Closed, Socket};
use crate::control::wire::{self, Op};
use crate::fence::Fenced;

/// A client's connection, and the answer to its present request.
pub(crate) struct Exchange<'a> {
    pub(crate) served: &'a ServedMemory,
    pub(crate) socket: Socket,
    /// Protocol version that both ends speak.
    pub(crate) version: u16,
    /// End of the present request's waits for the fence. They are few, and short in all.
    pub(crate) patience: Option<tokio::time::Instant>,
    /// Protocol bytes not sent yet.
    pub(crate) out: Vec<u8>,
}

/// A write whose bytes the store moves itself.
pub(crate) struct FetchedWrite {
    pub(crate) write: AdmittedWrite,
    /// Whether it has lost its pass, so that not all of its bytes have come.
    pub(crate) lost: bool,
}

/// A write of the present request whose bytes are there.
enum Fetched {
    /// This request has brought them.
    Now(AdmittedWrite),
    /// An earlier one has, and has sealed the range.
    Before(Receipt),
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(served: &'a ServedMemory, socket: Socket) -> Self {
        Self { served, socket, version: 0, patience: None, out: Vec::new() }
    }

    pub(crate) fn verdict(&mut self, verdict: Result<(), Refusal>) {
        self.write_verdict(verdict.map(|()| None));
    }

    /// [`Self::verdict`] on a write, with the receipt of the range that it has sealed.
    pub(crate) fn write_verdict(&mut self, verdict: Result<Option<Receipt>, Refusal>) {
        match verdict {
            Ok(Some(receipt)) => wire::put_receipt(&mut self.out, receipt),
            Ok(None) => wire::put_verdict(&mut self.out, Ok(())),
            Err(refusal) => {
                Counters::add(&self.served.counters.refusals, 1);
                wire::put_verdict(&mut self.out, Err((refusal.status(), &refusal.to_string())));
            }
        }
    }

    pub(crate) async fn flush(&mut self, more: bool) -> Result<(), Closed> {
        self.socket.send(&self.out, more).await?;
        self.out.clear();
        Ok(())
    }

    /// Admits each write, and waits for those that have to.
    pub(crate) async fn admit_all(
        &mut self,
        grant: &Grant,
        ops: impl Iterator<Item = Op>,
    ) -> Vec<Result<FetchedWrite, Refusal>> {
        let mut writes = Vec::new();
        for op in ops {
            let write = match self.served.admit_write(grant, op) {
                Err(Refusal::Fenced(Fenced::Full | Fenced::InTransfer)) => {
                    self.served.admit_later(grant, op, &mut self.patience).await
                }
                answer => answer,
            };
            writes.push(write.map(|write| FetchedWrite { write, lost: false }));
        }
        writes
    }

    /// Answers writes whose bytes are there, after it has sealed their ranges. A range may be written by several operations,
    /// and is sealed only when none of them is refused. Counts their bytes in `bytes`.
    pub(crate) async fn end_writes(
        &mut self,
        sealing: Option<&Grant>,
        ops: impl Iterator<Item = Op>,
        writes: Vec<Result<FetchedWrite, Refusal>>,
        bytes: &AtomicU64,
    ) {
        let ops: Vec<Op> = ops.collect();
        let (mut outcomes, mut refused) = (Vec::with_capacity(writes.len()), HashMap::new());
        for (write, op) in writes.into_iter().zip(&ops) {
            let outcome = match (write, sealing) {
                (Ok(FetchedWrite { write, lost: false }), _) => {
                    // Before any of them seals the range that they share.
                    write.land().map(|()| Fetched::Now(write)).map_err(Refusal::from)
                }
                (Ok(FetchedWrite { write, lost: true }), _) => {
                    self.end_lost(&write, sealing).await.map(Fetched::Before)
                }
                // As over TCP: a repetition of a write whose answer was lost.
                (Err(Refusal::Fenced(Fenced::Sealed { .. })), Some(grant)) => {
                    self.served.sealed_before(grant, *op).map(Fetched::Before)
                }
                (Err(refusal), _) => Err(refusal),
            };
            if let Err(refusal) = &outcome {
                refused.insert(op.range, refusal.clone());
            }
            outcomes.push(outcome);
        }
        for (outcome, op) in outcomes.into_iter().zip(ops) {
            let verdict = match (refused.get(&op.range).cloned().map_or(outcome, Err), sealing) {
                (Err(refusal), _) => Err(refusal),
                // The same write has brought the bytes over another connection, and sealed them.
                (Ok(Fetched::Before(receipt)), _) => Ok(Some(receipt)),
                (Ok(Fetched::Now(write)), sealing) => {
                    self.served.count_write(&write, bytes);
                    match sealing {
                        Some(grant) => self
                            .served
                            .seal(&write, grant, Landing::None, &mut self.patience)
                            .await
                            .map(Some)
                            .map_err(Refusal::from),
                        None => Ok(None),
                    }
                }
            };
            self.write_verdict(verdict);
        }
    }

    /// Returns the receipt if a write that has lost its pass was done over another connection, whose answer may be lost: then
    /// sealing it again succeeds. Everything else that ends a write has taken the range from it.
    pub(crate) async fn end_lost(
        &mut self,
        write: &AdmittedWrite,
        sealing: Option<&Grant>,
    ) -> Result<Receipt, Refusal> {
        let ended = Err(Fenced::Ended { index: write.range.index }.into());
        let Some(grant) = sealing else { return ended };
        match self.served.seal(write, grant, Landing::None, &mut self.patience).await {
            Ok(receipt) => Ok(receipt),
            Err(Fenced::InTransfer) => Err(Fenced::InTransfer.into()),
            Err(_) => ended,
        }
    }

    /// Answers every one of `count` operations with the same refusal.
    pub(crate) fn refuse_all(&mut self, count: usize, refusal: &Refusal) {
        (0..count).for_each(|_| self.verdict(Err(refusal.clone())));
    }
}
