//! The store of this process: calls copy to and from its memory by themselves, under the checks of its server.
//!
//! An operation that the server refuses goes to the store over a connection next. There it is refused for the same reason, in the words
//! of every store; or it waits for its turn, or turns out to be done already.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use mc_types::{Access, SealedGrant, StoreId};
use tokio::time::{Instant, timeout_at};

use super::{SHM, ShmTransport};
use crate::ReadBuffer;
use crate::checksum::Checksum;
use crate::control::server::{Memory, OwnServer};
use crate::path::shm::server::own;
use crate::report::PeerTransport;
use crate::transport::{self, Peer, ReadOp, Seal, TransferError, WriteOp, Written};

pub(super) struct OwnStore {
    pub(super) store: StoreId,
    memory: Weak<Memory>,
    /// Address of its memory over TCP, once a call has used it.
    pub(super) address: OnceLock<String>,
    /// Bytes that were copied and found good.
    moved: AtomicU64,
}

impl OwnStore {
    pub(super) fn new(store: StoreId, memory: Weak<Memory>) -> Self {
        Self { store, memory, address: OnceLock::new(), moved: AtomicU64::new(0) }
    }

    /// Returns the server of this memory if it is in this process.
    fn server(&self, peer: &Peer) -> Option<Arc<OwnServer>> {
        let server = self.memory.upgrade().filter(|_| peer.store == self.store)?.server(peer)?;
        self.address.get_or_init(|| peer.address());
        Some(server)
    }

    pub(super) fn report(&self) -> PeerTransport {
        PeerTransport::usable(SHM, "in this process").moved(self.moved.load(Ordering::Relaxed))
    }
}

impl ShmTransport {
    /// Returns the store of this process, and its server, if the memory is that.
    pub(super) fn own(&self, peer: &Peer) -> Option<(&OwnStore, Arc<OwnServer>)> {
        let own = self.own_store.as_ref()?;
        Some((own, own.server(peer)?))
    }

    pub(super) async fn write_own(
        &self,
        (own, server): (&OwnStore, Arc<OwnServer>),
        peer: &Peer,
        grant: &SealedGrant,
        (ops, seal): (&[WriteOp<'_>], Seal),
        deadline: Instant,
    ) -> Vec<Result<Written, TransferError>> {
        let mut answers = Vec::with_capacity(ops.len());
        let write = own::write((*server).as_ref(), grant, ops, seal, self.tcp.calls().sums(), &mut answers);
        let in_time = timeout_at(deadline, write).await.is_ok();
        // It keeps all of the memory, which what follows may outlast.
        drop(server);
        let done = ops.iter().zip(&answers).filter(|(_, answer)| answer.is_some());
        self.note_own(own, Access::Write, done.map(|(op, _)| op.len()).sum());
        if !in_time {
            return late(peer, answers, ops.len());
        }
        let refused = ops.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let left: Vec<_> = refused.map(|(op, _)| WriteOp { from: op.from.clone(), ..*op }).collect();
        let others = match left.as_slice() {
            [] => Vec::new(),
            left => self.write_over(peer, grant, left, seal, deadline).await,
        };
        merged(peer, answers, others)
    }

    pub(super) async fn read_own(
        &self,
        (own, server): (&OwnStore, Arc<OwnServer>),
        peer: &Peer,
        grant: &SealedGrant,
        ops: &mut [ReadOp<'_>],
        deadline: Instant,
    ) -> Vec<Result<Checksum, TransferError>> {
        if let Some(lost) = transport::lost(peer, ops) {
            return lost;
        }
        let mut answers = Vec::with_capacity(ops.len());
        let read = own::read((*server).as_ref(), grant, ops, self.tcp.calls().sums(), &mut answers);
        let in_time = timeout_at(deadline, read).await.is_ok();
        // As for writes.
        drop(server);
        let done = ops.iter().zip(&answers).filter(|(_, answer)| answer.is_some());
        self.note_own(own, Access::Read, done.map(|(op, _)| op.len()).sum());
        if !in_time {
            return late(peer, answers, ops.len());
        }
        let refused = ops.iter_mut().zip(&answers).filter(|(_, answer)| answer.is_none());
        let mut left: Vec<_> = refused
            .map(|(op, _)| ReadOp { into: op.into.iter_mut().map(ReadBuffer::reborrow).collect(), ..*op })
            .collect();
        let others = match left.as_mut_slice() {
            [] => Vec::new(),
            left => self.read_over(peer, grant, left, deadline).await,
        };
        merged(peer, answers, others)
    }

    fn note_own(&self, own: &OwnStore, access: Access, bytes: u64) {
        own.moved.fetch_add(bytes, Ordering::Relaxed);
        (self.on_moved)(access, bytes);
    }
}

/// Returns the answers that were complete at the deadline, and a deadline error for each of the others.
fn late<T: Clone>(peer: &Peer, answers: Vec<Option<T>>, ops: usize) -> Vec<Result<T, TransferError>> {
    let deadline = || TransferError::Deadline { store: peer.store, address: peer.address() };
    let all = answers.into_iter().chain(std::iter::repeat(None)).take(ops);
    all.map(|answer| answer.ok_or_else(deadline)).collect()
}

/// Puts the answers of the connection in the places of those that are missing.
fn merged<T>(
    peer: &Peer,
    answers: Vec<Option<T>>,
    others: Vec<Result<T, TransferError>>,
) -> Vec<Result<T, TransferError>> {
    let mut others = others.into_iter();
    let unanswered = || Err(TransferError::Refused { store: peer.store, reason: "no answer".to_owned() });
    let merge = |answer: Option<T>| answer.map_or_else(|| others.next().unwrap_or_else(unanswered), Ok);
    answers.into_iter().map(merge).collect()
}
