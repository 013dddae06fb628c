//! Transfers from and to memory of devices, through buffers of the host.
//!
//! A call is cut into pieces, and a few of them are under way at a time, each through a buffer of its own. So one piece is copied while
//! another is transferred. Everything else about a transfer stays with the transport below: checksums are those that it computes
//! of the bytes in the buffers, joined.

mod job;
mod plan;
mod stages;

use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream;
use mc_cuda::Device;
use mc_types::SealedGrant;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use self::plan::{Cut, Piece};
use self::stages::{Lease, PIECE, Stages};
use crate::report::PeerReport;
use crate::transport::{lost, sealed_after};
use crate::{
    Checksum, DeviceError, Peer, RawBytes, ReadBuffer, ReadOp, RegisterError, RegisteredMemory, Seal,
    TransferError, Transport, WriteBuffer, WriteOp, Written,
};

/// Pieces of one call that are under way at a time: one is copied, one is transferred, and one is between the two.
const AT_ONCE: usize = 3;

/// A read has no receipt.
type Answer = Result<Written, TransferError>;

/// A transport that also takes buffers in memory of devices: [`RawBytes`] that were [located](RawBytes::locate).
///
/// Calls without any go straight to the transport below. After a call has returned or its future was dropped, no copy is under way; so a
/// drop waits for copies that have begun, of six buffers of 16 MiB at most. A copy also waits for the work that the
/// caller has given the default stream of the device before. A deadline is looked at before each copy, and can't end one.
#[derive(Clone, Debug)]
pub struct StagedTransport {
    below: Arc<dyn Transport>,
    stages: Arc<Stages>,
}

/// State that all pieces of one call share.
struct StagedCall<'a> {
    peer: &'a Peer,
    grant: &'a SealedGrant,
    deadline: Instant,
    /// One of the devices, for which buffers are made.
    device: Device,
    /// The failure after which no other piece is begun.
    failure: Mutex<Option<TransferError>>,
}

impl StagedTransport {
    /// A transport over this one, which gets buffers in memory of the host only.
    #[must_use]
    pub fn new(below: Arc<dyn Transport>) -> Self {
        let stages = Arc::new(Stages::new(below.clone()));
        Self { below, stages }
    }

    /// Fills buffers, one after the other, which may be in memory of devices.
    ///
    /// # Errors
    /// [`DeviceError`]; the content of the buffers is unspecified then.
    ///
    /// # Panics
    /// When `bytes` are fewer than the buffers have.
    pub async fn fill(
        &self,
        mut into: Vec<ReadBuffer<'_>>,
        bytes: impl AsRef<[u8]> + Clone + Send + 'static,
    ) -> Result<(), DeviceError> {
        let parts: Vec<_> = into.iter_mut().map(ReadBuffer::raw).collect();
        let Some(device) = plan::device(&parts) else {
            let mut rest = bytes.as_ref();
            for buffer in &mut into {
                let (now, later) = rest.split_at(buffer.len());
                buffer.put(0, now);
                rest = later;
            }
            return Ok(());
        };
        for piece in plan::cut([(0, parts)].into_iter(), PIECE) {
            let (bytes, copies) = (bytes.clone(), piece.copies());
            let mut lease = self.stages.lease(device).await?;
            job::run(move || {
                for cut in piece.cuts {
                    let from = usize::try_from(cut.offset).unwrap_or(usize::MAX);
                    lease.put(cut.at, bytes.as_ref()[from..from + cut.len].into());
                }
                lease.scatter(&copies)
            })
            .await?;
        }
        Ok(())
    }

    /// Copies the bytes of buffers, one after the other, which may be in memory of devices.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub async fn copy(&self, from: &[WriteBuffer<'_>]) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = Vec::with_capacity(from.iter().map(WriteBuffer::len).sum());
        let parts: Vec<_> = from.iter().map(WriteBuffer::raw).collect();
        let Some(device) = plan::device(&parts) else {
            from.iter().for_each(|buffer| buffer.append_to(&mut bytes));
            return Ok(bytes);
        };
        for piece in plan::cut([(0, parts)].into_iter(), PIECE) {
            let mut lease = self.stages.lease(device).await?;
            let copied = job::run(move || {
                lease.gather(&piece.copies())?;
                WriteBuffer::from(lease.part(0, piece.len())).append_to(&mut bytes);
                Ok::<_, DeviceError>(bytes)
            });
            bytes = copied.await?;
        }
        Ok(bytes)
    }

    async fn write_staged(&self, call: StagedCall<'_>, ops: &[WriteOp<'_>], seal: Seal) -> Vec<Answer> {
        let is_staged = |op: &WriteOp<'_>| op.from.iter().any(WriteBuffer::is_of_device);
        let parts = |(at, op): (usize, &WriteOp<'_>)| (at, op.from.iter().map(WriteBuffer::raw).collect());
        let staged = ops.iter().enumerate().filter(|(_, op)| is_staged(op)).map(parts);
        let pieces = plan::cut(staged, PIECE);
        let long: Vec<usize> = pieces
            .iter()
            .filter(|piece| !piece.is_whole)
            .flat_map(|piece| piece.cuts.first())
            .map(|cut| cut.op)
            .collect();
        let (direct, beside): (Vec<usize>, Vec<WriteOp<'_>>) = ops
            .iter()
            .enumerate()
            .filter(|(_, op)| !is_staged(op))
            .map(|(at, op)| (at, WriteOp { range: op.range, offset: op.offset, from: op.from.clone() }))
            .unzip();
        let direct_answers = async {
            match beside.is_empty() {
                true => Vec::new(),
                false => self.below.write(call.peer, call.grant, &beside, seal, call.deadline).await,
            }
        };
        let pieces = pieces.into_iter().map(|piece| self.write_piece(&call, ops, piece, seal));
        let staged = stream::iter(pieces).buffered(AT_ONCE).collect::<Vec<_>>();
        let (direct_answers, staged) = futures::join!(direct_answers, staged);
        let mut answers = joined(ops.len(), staged.into_iter().flatten());
        for (at, answer) in direct.into_iter().zip(direct_answers) {
            answers[at] = answer;
        }
        if seal == Seal::Yes {
            self.seal(&call, ops, long, &mut answers).await;
        }
        answers
    }

    /// Seals the ranges of operations that were written in several pieces, none of which could know that it was the last one to arrive.
    async fn seal(
        &self,
        call: &StagedCall<'_>,
        ops: &[WriteOp<'_>],
        mut long: Vec<usize>,
        answers: &mut [Answer],
    ) {
        long.dedup();
        long.retain(|at| answers[*at].is_ok());
        let none = |at: &usize| WriteOp { range: ops[*at].range, offset: 0, from: Vec::new() };
        let seals: Vec<_> = long.iter().map(none).collect();
        if seals.is_empty() {
            return;
        }
        let sealed = self.below.write(call.peer, call.grant, &seals, Seal::Yes, call.deadline).await;
        for (at, sealed) in long.into_iter().zip(sealed) {
            answers[at] = sealed_after(answers[at].clone(), sealed);
        }
    }

    async fn write_piece(
        &self,
        call: &StagedCall<'_>,
        ops: &[WriteOp<'_>],
        piece: Piece,
        seal: Seal,
    ) -> Vec<(Cut, Answer)> {
        let copies = piece.copies();
        let lease = match call.lease(&self.stages).await {
            Ok(mut lease) => {
                let gathered = job::run(move || lease.gather(&copies).map(|()| lease)).await;
                gathered.map_err(TransferError::Device)
            }
            Err(error) => Err(error),
        };
        let lease = match lease {
            Ok(lease) => lease,
            Err(error) => return call.failed(piece, &error),
        };
        let op = |cut: &Cut| WriteOp {
            range: ops[cut.op].range,
            offset: ops[cut.op].offset + cut.offset,
            from: vec![lease.part(cut.at, cut.len).into()],
        };
        let seal = if piece.is_whole { seal } else { Seal::No };
        let staged: Vec<_> = piece.cuts.iter().map(op).collect();
        let answers = self.below.write(call.peer, call.grant, &staged, seal, call.deadline).await;
        call.note(&answers);
        piece.cuts.into_iter().zip(answers).collect()
    }

    async fn read_staged(&self, call: StagedCall<'_>, ops: &mut [ReadOp<'_>]) -> Vec<Answer> {
        if let Some(lost) = lost(call.peer, ops) {
            return lost;
        }
        let count = ops.len();
        let places: Vec<(u32, u64)> = ops.iter().map(|op| (op.range, op.offset)).collect();
        let (mut staged, mut direct, mut beside) = (Vec::new(), Vec::new(), Vec::new());
        for (at, op) in ops.iter_mut().enumerate() {
            if op.into.iter().any(ReadBuffer::is_of_device) {
                staged.push((at, op.into.iter_mut().map(ReadBuffer::raw).collect::<Vec<RawBytes>>()));
            } else {
                direct.push(at);
                let into = op.into.iter_mut().map(ReadBuffer::reborrow).collect();
                beside.push(ReadOp { range: op.range, offset: op.offset, into });
            }
        }
        let direct_answers = async {
            match beside.is_empty() {
                true => Vec::new(),
                false => of_reads(self.below.read(call.peer, call.grant, &mut beside, call.deadline).await),
            }
        };
        let pieces = plan::cut(staged.into_iter(), PIECE);
        let pieces = pieces.into_iter().map(|piece| self.read_piece(&call, &places, piece));
        let staged = stream::iter(pieces).buffered(AT_ONCE).collect::<Vec<_>>();
        let (direct_answers, staged) = futures::join!(direct_answers, staged);
        let mut answers = joined(count, staged.into_iter().flatten());
        for (at, answer) in direct.into_iter().zip(direct_answers) {
            answers[at] = answer;
        }
        answers
    }

    /// `places` are the range and the offset of each operation.
    async fn read_piece(
        &self,
        call: &StagedCall<'_>,
        places: &[(u32, u64)],
        mut piece: Piece,
    ) -> Vec<(Cut, Answer)> {
        let mut lease = match call.lease(&self.stages).await {
            Ok(lease) => lease,
            Err(error) => return call.failed(piece, &error),
        };
        let op = |cut: &Cut| {
            let (range, offset) = places[cut.op];
            ReadOp { range, offset: offset + cut.offset, into: vec![lease.part(cut.at, cut.len).into()] }
        };
        let mut staged: Vec<_> = piece.cuts.iter().map(op).collect();
        let answers = of_reads(self.below.read(call.peer, call.grant, &mut staged, call.deadline).await);
        call.note(&answers);
        let (good, bad): (Vec<_>, Vec<_>) =
            piece.cuts.into_iter().zip(answers).partition(|(_, answer)| answer.is_ok());
        let (cuts, mut answers): (Vec<_>, Vec<_>) = good.into_iter().unzip();
        piece.cuts = cuts;
        let copies = piece.copies();
        if let Err(error) = job::run(move || lease.scatter(&copies)).await {
            answers.fill(Err(TransferError::Device(error)));
        }
        piece.cuts.into_iter().zip(answers).chain(bad).collect()
    }
}

impl StagedCall<'_> {
    /// Waits for a buffer, unless a piece has failed.
    async fn lease(&self, stages: &Arc<Stages>) -> Result<Lease, TransferError> {
        if let Some(failure) = &*self.failure.lock() {
            return Err(failure.clone());
        }
        match timeout_at(self.deadline, stages.lease(self.device)).await {
            Ok(leased) if Instant::now() < self.deadline => leased.map_err(TransferError::Device),
            _ => Err(TransferError::NoBuffer),
        }
    }

    /// Keeps other pieces from being begun after a failure that would be theirs, too. A store refuses operations one by one, and a
    /// device refuses single addresses.
    fn note(&self, answers: &[Answer]) {
        let is_shared = |error: &&TransferError| {
            !matches!(
                error,
                TransferError::Refused { .. } | TransferError::InDoubt { .. } | TransferError::Device(_)
            )
        };
        if let Some(error) = answers.iter().filter_map(|answer| answer.as_ref().err()).find(is_shared) {
            self.failure.lock().get_or_insert_with(|| error.clone());
        }
    }

    fn failed(&self, piece: Piece, error: &TransferError) -> Vec<(Cut, Answer)> {
        self.note(&[Err(error.clone())]);
        piece.cuts.into_iter().map(|cut| (cut, Err(error.clone()))).collect()
    }
}

/// Joins the answers of the cuts of operations, which come in the order of the pieces.
fn joined(ops: usize, cuts: impl Iterator<Item = (Cut, Answer)>) -> Vec<Answer> {
    let mut answers = vec![Ok(Written { checksum: Checksum::of(&[]), receipt: None }); ops];
    for (cut, answer) in cuts {
        if let Ok(so_far) = answers[cut.op] {
            answers[cut.op] = answer.map(|next| so_far.followed_by(next, cut.len as u64));
        }
    }
    answers
}

fn of_reads(answers: Vec<Result<Checksum, TransferError>>) -> Vec<Answer> {
    answers.into_iter().map(|answer| answer.map(|checksum| Written { checksum, receipt: None })).collect()
}

impl Transport for StagedTransport {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        let Some(device) = ops.iter().find_map(|op| op.into.iter().find_map(ReadBuffer::device)) else {
            return self.below.read(peer, grant, ops, deadline);
        };
        let call = StagedCall { peer, grant, deadline, device, failure: Mutex::default() };
        Box::pin(async move {
            let answers = self.read_staged(call, ops).await;
            answers.into_iter().map(|answer| answer.map(|read| read.checksum)).collect()
        })
    }

    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Written, TransferError>>> {
        let Some(device) = ops.iter().find_map(|op| op.from.iter().find_map(WriteBuffer::device)) else {
            return self.below.write(peer, grant, ops, seal, deadline);
        };
        let call = StagedCall { peer, grant, deadline, device, failure: Mutex::default() };
        Box::pin(self.write_staged(call, ops, seal))
    }

    fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        self.below.allocate(len)
    }

    /// The buffers are used for other bytes afterwards.
    fn copies_late(&self, bytes: WriteBuffer<'_>) -> bool {
        bytes.is_of_device() || self.below.copies_late(bytes)
    }

    fn peers(&self) -> Vec<PeerReport> {
        self.below.peers()
    }
}
