//! Writes whose bytes the store moves itself, by RDMA or out of memory that a client shares.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

use mc_types::Grant;

use super::Counters;
use super::check::Refusal;
use super::connection::Connection;
use super::socket::Incoming;
use crate::fence::Fenced;
use crate::wire::Op;

impl Connection<'_> {
    /// Admits each write, and waits for those that have to.
    pub(super) async fn admit_all(
        &mut self,
        grant: &Grant,
        ops: impl Iterator<Item = Op>,
    ) -> Vec<Result<Incoming, Refusal>> {
        let mut writes = Vec::new();
        for op in ops {
            let write = match self.server.admit_write(grant, op) {
                Err(Refusal::Fenced(Fenced::Full | Fenced::InTransfer)) => {
                    self.server.admit_later(grant, op, &mut self.patience).await
                }
                answer => answer,
            };
            writes.push(write);
        }
        writes
    }

    /// Answers writes whose bytes are there, after it has sealed their ranges. A range may be written by several operations,
    /// and is sealed only when none of them is refused. Counts their
    /// bytes in `bytes`.
    pub(super) async fn end_writes(
        &mut self,
        grant: &Grant,
        ranges: impl Iterator<Item = u32>,
        writes: Vec<Result<Incoming, Refusal>>,
        seal: bool,
        bytes: &AtomicU64,
    ) {
        let ranges: Vec<u32> = ranges.collect();
        // With a seal, this one says that it is the same write again, whose answer was lost: as over TCP.
        let is_again = |refusal: &Refusal| seal && matches!(refusal, Refusal::Fenced(Fenced::Sealed { .. }));
        let mut refused: HashMap<u32, Refusal> = HashMap::new();
        for (write, range) in writes.iter().zip(&ranges) {
            if let Some(refusal) = write.as_ref().err().filter(|refusal| !is_again(refusal)) {
                refused.insert(*range, refusal.clone());
            }
        }
        for (write, range) in writes.into_iter().zip(ranges) {
            let verdict = match (write, refused.get(&range)) {
                (_, Some(refusal)) => Err(refusal.clone()),
                (Err(_again), None) => Ok(()),
                (Ok(write), None) => {
                    Counters::add(&self.server.counters.writes, 1);
                    Counters::add(bytes, write.len);
                    match seal {
                        true => {
                            self.server.seal(&write, grant, &mut self.patience).await.map_err(Refusal::from)
                        }
                        false => Ok(()),
                    }
                }
            };
            self.verdict(verdict);
        }
    }

    /// Answers every one of `count` operations with the same refusal.
    pub(super) fn refuse_all(&mut self, count: usize, refusal: &Refusal) {
        (0..count).for_each(|_| self.verdict(Err(refusal.clone())));
    }
}
