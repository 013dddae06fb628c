//! Calls over the connections to stores.

use std::sync::Arc;

use mc_types::{Receipt, SealedGrant};
use tokio::time::Instant;

use super::call::TransferCall;
use super::pool::Pools;
use super::work::Work;
use crate::ReadBuffer;
use crate::checksum::{Checksum, Sums};
use crate::control::client::{OutOfBand, TcpOptions, pieces};
use crate::path::ClientPath;
use crate::report::{PeerReport, PeerTransport};
use crate::transport::{self, Peer, ReadOp, Seal, TransferError, WriteOp, Written, sealed_after};

/// The connections of a transport, and the calls that it makes over them: with bytes, which may go by the path beside them, and
/// without, for paths that use other memory.
pub(crate) struct Calls {
    pools: Pools,
}

/// Answer to a request whose bytes do not go over the connection.
pub(crate) struct Answered {
    /// Answers to the operations, with the receipts of the ranges that it has sealed.
    pub(crate) answers: Vec<Result<Option<Receipt>, TransferError>>,
    /// Reason why some pieces have no answer from the store.
    pub(crate) failed: Option<TransferError>,
    /// Whether the store can't reach the place of some bytes. Then it has written nothing of its request.
    pub(crate) other_way: bool,
    /// Whether every request was answered, so that the store does not touch the places any more.
    pub(crate) is_settled: bool,
}

impl Calls {
    pub(super) fn new(options: TcpOptions, beside: Result<Arc<dyn ClientPath>, PeerTransport>) -> Self {
        let stripe_bytes = options.stripe_bytes.max(1 << 20);
        Self { pools: Pools::new(TcpOptions { stripe_bytes, ..options }, beside) }
    }

    /// Whether and how answers have checksums.
    pub(crate) fn sums(&self) -> Sums {
        self.pools.sums()
    }

    /// Whether bytes may go by a path beside the connections.
    pub(super) fn have_path_beside(&self) -> bool {
        self.pools.has_path_beside()
    }

    pub(super) fn report(&self) -> Vec<PeerReport> {
        self.pools.report()
    }

    /// Returns the transports to a store that this process has not called yet.
    pub(crate) fn untried(&self) -> Vec<PeerTransport> {
        self.pools.transports(None)
    }

    /// Reads a batch: see [`crate::Transport::read`].
    pub(super) async fn read(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        ops: &mut [ReadOp<'_>],
        deadline: Instant,
    ) -> Vec<Result<Checksum, TransferError>> {
        if let Some(lost) = transport::lost(peer, ops) {
            return lost;
        }
        let count = ops.len();
        let total = ops.iter().map(ReadOp::len).sum();
        let call = match TransferCall::new(&self.pools, peer, grant, deadline) {
            Ok(call) => call,
            Err(error) => return vec![Err(error); count],
        };
        let ops =
            ops.iter_mut().map(|op| (op.range, op.offset, op.into.iter_mut().map(ReadBuffer::reborrow)));
        let lanes = pieces::cut(ops, total, call.lanes(count, total), call.longest());
        let lanes = lanes.into_iter().map(Work::Read);
        call.run(lanes, count).await.into_iter().map(|read| read.map(|read| read.checksum)).collect()
    }

    /// Writes a batch: see [`crate::Transport::write`].
    pub(super) async fn write(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        ops: &[WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> Vec<Result<Written, TransferError>> {
        let count = ops.len();
        let total = ops.iter().map(WriteOp::len).sum();
        let call = match TransferCall::new(&self.pools, peer, grant, deadline) {
            Ok(call) => call,
            Err(error) => return vec![Err(error); count],
        };
        let cut = ops.iter().map(|op| (op.range, op.offset, op.from.iter().copied()));
        let lanes = pieces::cut(cut, total, call.lanes(count, total), call.longest());
        // The bytes of an operation that was cut may come over several connections, so none of them is the last.
        let whole = lanes.iter().map(Vec::len).sum::<usize>() == count;
        let with = if whole { seal } else { Seal::No };
        let lanes = lanes.into_iter().map(|pieces| Work::Write(pieces, with));
        let mut answers = call.run(lanes, count).await;
        if with != seal {
            let good: Vec<usize> = (0..count).filter(|op| answers[*op].is_ok()).collect();
            let ranges: Vec<u32> = good.iter().map(|op| ops[*op].range).collect();
            for (op, sealed) in good.into_iter().zip(call.seal(&ranges).await) {
                answers[op] = sealed_after(answers[op].clone(), sealed);
            }
        }
        answers
    }

    /// Seals ranges whose bytes are written.
    pub(crate) async fn seal(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        ranges: &[u32],
        deadline: Instant,
    ) -> Vec<Result<Written, TransferError>> {
        match TransferCall::new(&self.pools, peer, grant, deadline) {
            Ok(call) => call.seal(ranges).await,
            Err(error) => vec![Err(error); ranges.len()],
        }
    }

    /// Asks a store about bytes that do not go over the connection. `ops` is the number of operations that the pieces are parts of.
    pub(crate) async fn ask(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        (request, ops): (OutOfBand, usize),
        deadline: Instant,
    ) -> Answered {
        let call = match TransferCall::new(&self.pools, peer, grant, deadline) {
            Ok(call) => call,
            Err(error) => {
                let answers = vec![Err(error.clone()); ops];
                return Answered { answers, failed: Some(error), other_way: false, is_settled: true };
            }
        };
        let lane = call.lane(Work::OutOfBand(request)).await;
        let other_way =
            lane.done.iter().any(|outcome| outcome.as_ref().is_err_and(|refused| refused.other_way));
        let is_settled = !matches!(lane.work, Work::OutOfBand(OutOfBand { in_doubt: true, .. }));
        let (failed, mut answers) = (lane.failed.clone(), vec![Ok(None); ops]);
        lane.merge(&mut answers);
        let receipt = |written: Option<Written>| written.and_then(|written| written.receipt);
        let answers = answers.into_iter().map(|answer| answer.map(receipt)).collect();
        Answered { answers, failed, other_way, is_settled }
    }
}
