//! Requests whose bytes go over the connection.

use mc_types::Grant;
use smallvec::SmallVec;

use crate::control::server::{
    AdmittedWrite, Closed, Counters, Exchange, MAX_TOGETHER, RECV_CHUNK, Received, Refusal,
};
use crate::control::wire::{Op, TcpRequest};
use crate::fence::Fenced;
use crate::path::{PermittedRequest, ServerPath};
use crate::transport::Seal;

/// Size in bytes at which replies that are held back are sent.
const REPLIES_AT_ONCE: usize = 64 << 10;

/// Bytes on the connection itself, which keeps nothing from request to request.
pub(crate) struct Inline;

impl ServerPath for Inline {
    type Request = TcpRequest;

    async fn serve(
        &mut self,
        exchange: &mut Exchange<'_>,
        PermittedRequest { kind, grant, ops, .. }: PermittedRequest<'_, TcpRequest>,
    ) -> Result<(), Closed> {
        exchange.verdict(Ok(()));
        match kind {
            TcpRequest::Read => exchange.reads(grant, ops).await,
            // Replies to writes wait for the last byte, because a client that is still sending reads none.
            TcpRequest::Write(seal) => exchange.writes(grant, ops, seal == Seal::Yes).await,
        }
    }
}

impl Exchange<'_> {
    async fn reads(&mut self, grant: &Grant, ops: &[u8]) -> Result<(), Closed> {
        for op in Op::decode_all(ops) {
            self.read(grant, op).await?;
            if self.out.len() > REPLIES_AT_ONCE {
                self.flush(true).await?;
            }
        }
        Ok(())
    }

    async fn read(&mut self, grant: &Grant, op: Op) -> Result<(), Closed> {
        let (lent, range, _) = match self.served.locate(grant, op) {
            Ok(found) => found,
            Err(refusal) => {
                self.verdict(Err(refusal));
                return Ok(());
            }
        };
        let start = range.offset + op.offset;
        let pass = match lent.fence.admit_read(start..start + op.len, range.index, grant.expires) {
            Ok(pass) => pass,
            Err(fenced) => {
                self.verdict(Err(fenced.into()));
                return Ok(());
            }
        };
        self.verdict(Ok(()));
        self.flush(true).await?;
        self.socket.send_segment(&lent.segment, start, op.len, &pass).await?;
        let good = pass.check();
        Counters::add(&self.served.counters.bytes_read, op.len);
        if good.is_ok() {
            Counters::add(&self.served.counters.reads, 1);
        }
        self.verdict(good.map_err(Refusal::from));
        Ok(())
    }

    /// Receives writes. Small ones share a receive, in groups, because one for each would cost more than its bytes.
    async fn writes(&mut self, grant: &Grant, ops: &[u8], seal: bool) -> Result<(), Closed> {
        let mut ops = Op::decode_all(ops).peekable();
        let (mut writes, mut outcomes) = (SmallVec::<[_; 1]>::new(), SmallVec::<[_; 1]>::new());
        let sealing = seal.then_some(grant);
        while ops.peek().is_some() {
            let (mut refused, mut bytes) = (None, 0);
            while let Some(op) = ops.next_if(|op| {
                writes.is_empty() || (writes.len() < MAX_TOGETHER && op.len <= RECV_CHUNK - bytes)
            }) {
                match self.served.admit_write(grant, op) {
                    Ok(write) => {
                        bytes = RECV_CHUNK.min(bytes + op.len);
                        writes.push(write);
                    }
                    Err(refusal) => {
                        refused = Some((op, refusal));
                        break;
                    }
                }
            }
            self.receive(&mut writes, &mut outcomes, sealing).await?;
            let Some((op, mut refusal)) = refused else { continue };
            if matches!(refusal, Refusal::Fenced(Fenced::Full | Fenced::InTransfer)) {
                match self.served.admit_later(grant, op, &mut self.patience).await {
                    Ok(write) => {
                        writes.push(write);
                        self.receive(&mut writes, &mut outcomes, sealing).await?;
                        continue;
                    }
                    Err(still) => refusal = still,
                }
            }
            self.socket.discard(op.len).await?;
            // The fence seals a range only once its bytes are there. So this is the same write again, whose answer was lost.
            let again = seal && matches!(refusal, Refusal::Fenced(Fenced::Sealed { .. }));
            let verdict = if again { self.served.sealed_before(grant, op).map(Some) } else { Err(refusal) };
            self.write_verdict(verdict);
        }
        Ok(())
    }

    /// Receives the bytes of `writes`, seals their ranges if they have a grant for that, adds a verdict for each, and
    /// releases their passes.
    async fn receive(
        &mut self,
        writes: &mut SmallVec<[AdmittedWrite; 1]>,
        outcomes: &mut SmallVec<[Received; 1]>,
        sealing: Option<&Grant>,
    ) -> Result<(), Closed> {
        self.socket.receive(writes, outcomes).await?;
        for (write, outcome) in writes.drain(..).zip(outcomes.drain(..)) {
            let verdict = match outcome {
                Received::All => {
                    let bytes = &self.served.counters.bytes_written;
                    self.served.end_write(&write, sealing, bytes, &mut self.patience).await
                }
                Received::Superseded => self.end_lost(&write, sealing).await.map(Some),
            };
            self.write_verdict(verdict);
        }
        Ok(())
    }
}
