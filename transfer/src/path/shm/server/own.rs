//! Transfers of the process that lends the memory: its own calls copy straight between their buffers and the segment.
//!
//! Such a call runs the checks of a connection by itself: the grant, the range, the fence, the stamps before the first byte of a
//! write, and the seal after its last. Three things differ, because nobody but its caller drives it, who may leave it alone for any time:
//!
//! - **A newer write** of the range waits for one step of the copy at most, as each step holds the write's pass. So do the end of
//!   the write by a seal, and the horizon of the fence. See [`crate::fence`].
//! - **The end of the server.** The memory may be served again afterwards, under a fence that knows nothing of these calls. So each
//!   step of a write also holds [`OwnCalls`](crate::control::server::OwnCalls), which [`DataServer::serve`](crate::DataServer::serve) takes for good before it returns: the step was finished by
//!   then, or is not taken. A read looks after its last byte. A byte of a later server's writes was copied after that end, so the look
//!   fails. A seal may still succeed: the leader ends no put in memory of an epoch that is over.
//! - **The memory.** A call keeps the segment that it has found, also one that is withdrawn meanwhile, as a connection does.
//!
//! Nothing of a call happens between two polls, so a future that is dropped, or leaked, touches no memory any more.

use mc_types::{Access, Grant, SealedGrant};
use tokio::time::Instant;

use crate::checksum::{Checksum, Sums};
use crate::control::server::{Counters, Refusal, ServedMemory};
use crate::control::wire::Op;
use crate::fence::Fenced;
use crate::transport::{ReadOp, Seal, WriteOp, Written};

/// Bytes that are summed and copied in one step: few enough to stay in the cache. A newer write waits for as many.
const STEP: usize = 128 << 10;
/// Bytes after which a call yields to other tasks and its deadline.
const TURN: usize = 1 << 20;

/// Writes a batch, and seals with [`Seal::Yes`]. The answers are there in order also if the call is dropped; `None` is that of a
/// write that is refused, which may be there in part.
pub(crate) async fn write(
    served: &ServedMemory,
    grant: &SealedGrant,
    ops: &[WriteOp<'_>],
    seal: Seal,
    sums: Sums,
    answers: &mut Vec<Option<Written>>,
) {
    let begun = Instant::now();
    let Ok(grant) = served.open_own_grant(grant, Access::Write) else {
        return answers.resize(ops.len(), None);
    };
    let mut turn = Turn::default();
    for op in ops {
        answers.push(write_one(served, &grant, op, seal, sums, &mut turn).await.ok());
    }
    served.request_seconds.of(Access::Write).record(begun.elapsed().as_secs_f64());
}

async fn write_one(
    served: &ServedMemory,
    grant: &Grant,
    op: &WriteOp<'_>,
    seal: Seal,
    sums: Sums,
    turn: &mut Turn,
) -> Result<Written, Refusal> {
    // One that has to wait for its turn does so at the connection.
    let write = served.admit_write(grant, Op { range: op.range, offset: op.offset, len: op.len() })?;
    let (mut checksum, mut to) = (sums.of_writes(), write.offset);
    for piece in op.from.iter().flat_map(|buffer| buffer.chunks(STEP)) {
        piece.add_to(&mut checksum);
        {
            let _serving = served.own_calls.step().ok_or(Refusal::NotReady)?;
            let ended = Fenced::Ended { index: write.range.index };
            let _held = write.pass.hold().ok_or(ended)?;
            write.lent.segment.write(to, piece);
        }
        to += piece.len() as u64;
        turn.after(piece.len()).await;
    }
    let sealing = (seal == Seal::Yes).then_some(grant);
    let receipt = served.end_write(&write, sealing, &served.counters.shm_bytes_written, &mut None).await?;
    Ok(Written { checksum: checksum.finish(), receipt })
}

/// Reads a batch into memory that no device may write to. The answers are as those of [`write`].
pub(crate) async fn read(
    served: &ServedMemory,
    grant: &SealedGrant,
    ops: &mut [ReadOp<'_>],
    sums: Sums,
    answers: &mut Vec<Option<Checksum>>,
) {
    let begun = Instant::now();
    let Ok(grant) = served.open_own_grant(grant, Access::Read) else {
        return answers.resize(ops.len(), None);
    };
    let mut turn = Turn::default();
    for op in ops {
        answers.push(read_one(served, &grant, op, sums, &mut turn).await.ok());
    }
    served.request_seconds.of(Access::Read).record(begun.elapsed().as_secs_f64());
}

async fn read_one(
    served: &ServedMemory,
    grant: &Grant,
    op: &mut ReadOp<'_>,
    sums: Sums,
    turn: &mut Turn,
) -> Result<Checksum, Refusal> {
    let len = op.len();
    let (lent, range, _) = served.locate(grant, Op { range: op.range, offset: op.offset, len })?;
    let start = range.offset + op.offset;
    let (mut checksum, mut from) = (sums.of_reads(), start);
    for mut piece in op.into.iter_mut().flat_map(|buffer| buffer.chunks_mut(STEP)) {
        lent.segment.read_into(from, &mut piece);
        // Before anything else fills the same memory.
        piece.add_to(0..piece.len(), &mut checksum);
        from += piece.len() as u64;
        turn.after(piece.len()).await;
    }
    // After the last byte: see the module, and that of the fence.
    let _serving = served.own_calls.step().ok_or(Refusal::NotReady)?;
    lent.fence.check_read(start..start + len, range.index, grant.expires)?;
    Counters::add(&served.counters.shm_reads, 1);
    Counters::add(&served.counters.shm_bytes_read, len);
    Ok(checksum.finish())
}

/// Counts the bytes that a call has moved since it last yielded.
#[derive(Default)]
struct Turn(usize);

impl Turn {
    async fn after(&mut self, bytes: usize) {
        self.0 += bytes;
        if self.0 >= TURN {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }
}
