use std::time::{Duration, Instant};

use mc_types::Grant;
use smallvec::SmallVec;

use super::check::{self, Refusal};
use super::rdma::Pair;
use super::socket::{Closed, Incoming, MAX_TOGETHER, RECV_CHUNK, Received, Socket};
use super::{Counters, DataServer, Timeouts};
use crate::elsewhere::Elsewhere;
use crate::fence::Fenced;
use crate::wire::{self, AreaOp, Ask, HELLO_LEN, Hello, HelloReply, Op, REQUEST_LEN, RdmaOp, Request};

/// Size in bytes at which replies that are held back are sent.
const REPLIES_AT_ONCE: usize = 64 << 10;
/// Time without a request after which a connection frees its buffers, and is closed when others need its place.
const BUFFERS_KEPT: Duration = Duration::from_secs(1);

/// One client's connection: answers its requests one after the other, in order.
///
/// The buffers are reused from request to request, and freed while there are none. Nothing here grows with the size of
/// a transfer.
pub(super) struct Connection<'a> {
    pub(super) server: &'a DataServer,
    pub(super) socket: Socket,
    /// Protocol version that both ends speak.
    pub(super) version: u16,
    /// The queue pair beside it.
    pub(super) pair: Option<Elsewhere<Pair>>,
    /// End of the present request's waits for the fence. They are few, and short in all.
    pub(super) patience: Option<tokio::time::Instant>,
    /// Grant and operations of the current request.
    body: Vec<u8>,
    /// Protocol bytes not sent yet.
    pub(super) out: Vec<u8>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(server: &'a DataServer, socket: Socket) -> Self {
        Self { server, socket, version: 0, pair: None, patience: None, body: Vec::new(), out: Vec::new() }
    }

    /// Serves requests until the connection ends, and returns why it did.
    pub(super) async fn run(mut self) -> Closed {
        match self.serve().await {
            Ok(never) => match never {},
            Err(closed) => closed,
        }
    }

    /// Reads the client's hello and refuses it.
    pub(super) async fn refuse(mut self, why: &Refusal) -> Closed {
        let mut hello = [0; HELLO_LEN];
        // The kernel resets a connection that is closed with unread bytes, and the refusal would be lost.
        let read = self.socket.read_exact(&mut hello).await;
        match read.and_then(|()| Ok(Hello::decode(&hello)?)) {
            Ok(_) => self.refuse_hello(why).await,
            Err(closed) => closed,
        }
    }

    async fn refuse_hello(&mut self, why: &Refusal) -> Closed {
        Counters::add(&self.server.counters.refusals, 1);
        let reply = HelloReply::encode(0, Err((why.status(), &why.to_string())));
        self.socket.send(&reply, false).await.err().unwrap_or(Closed::Refused)
    }

    async fn serve(&mut self) -> Result<std::convert::Infallible, Closed> {
        let Timeouts { idle, .. } = self.server.timeouts;
        self.shake_hands().await?;
        loop {
            let mut header = [0; REQUEST_LEN];
            match self.socket.read_message(&mut header, Some(idle.min(BUFFERS_KEPT))).await {
                Err(Closed::Idle(_)) if idle > BUFFERS_KEPT => {
                    (self.body, self.out) = (Vec::new(), Vec::new());
                    self.socket.free_buffer();
                    let wanted = async {
                        tokio::select! {
                            () = self.server.place_wanted() => {}
                            () = self.server.pair_wanted(), if self.pair.is_some() => {}
                        }
                    };
                    self.socket.wait_idle(idle - BUFFERS_KEPT, wanted).await?;
                    self.socket.read_message(&mut header, Some(idle)).await?;
                }
                read => read?,
            }
            self.socket.take_turn().await;
            let begun = Instant::now();
            let request = Request::decode(&header)?;
            self.answer(request).await?;
            self.server.request_seconds.of(request.ask.access()).record(begun.elapsed().as_secs_f64());
        }
    }

    async fn shake_hands(&mut self) -> Result<(), Closed> {
        let mut hello = [0; HELLO_LEN];
        self.socket.read_exact(&mut hello).await?;
        let hello = Hello::decode(&hello)?;
        match check::check_hello(self.server.identity, self.server.authority.times(), &hello) {
            Ok(version) => {
                self.version = version;
                self.socket.send(&HelloReply::encode(version, Ok(())), false).await
            }
            Err(refusal) => Err(self.refuse_hello(&refusal).await),
        }
    }

    async fn answer(&mut self, request: Request) -> Result<(), Closed> {
        let mut body = std::mem::take(&mut self.body);
        body.resize(request.body_len(), 0);
        self.socket.read_exact(&mut body).await?;
        let (grant, ops) = body.split_at(request.grant_len as usize);
        // Checked before anything is answered.
        match request.ask {
            Ask::Pair(_) => {}
            Ask::RdmaRead | Ask::RdmaWrite | Ask::RdmaWriteAndSeal | Ask::Probe(_) => {
                wire::check_fetched(RdmaOp::decode_all(ops).map(|op| op.op))?;
            }
            Ask::AreaWrite | Ask::AreaWriteAndSeal => {
                wire::check_fetched(AreaOp::decode_all(ops).map(|op| op.op))?;
            }
            Ask::Read | Ask::Check | Ask::Write | Ask::WriteAndSeal => {
                wire::total_len(Op::decode_all(ops))?;
            }
        }
        self.patience = None;
        let mut end = Ok(());
        self.out.extend_from_slice(&request.id.to_be_bytes());
        let access = request.ask.access();
        match self.server.open_grant(grant, access) {
            Ok(grant) => {
                if !matches!(request.ask, Ask::Pair(_)) {
                    self.verdict(Ok(()));
                }
                match request.ask {
                    Ask::Read => self.reads(&grant, ops).await?,
                    Ask::Check => Op::decode_all(ops).for_each(|op| self.check(&grant, op)),
                    // Replies to writes wait for the last byte, because a client that is still sending reads none.
                    Ask::Write => self.writes(&grant, ops, false).await?,
                    Ask::WriteAndSeal => self.writes(&grant, ops, true).await?,
                    Ask::Pair(_) => self.pair(ops).await,
                    Ask::Probe(_) => end = self.rdma_probe(ops, request.id).await,
                    Ask::RdmaRead => end = self.rdma_reads(&grant, ops, request.id).await,
                    Ask::RdmaWrite => end = self.rdma_writes(&grant, ops, false).await,
                    Ask::RdmaWriteAndSeal => end = self.rdma_writes(&grant, ops, true).await,
                    Ask::AreaWrite => self.area_writes(&grant, ops, false).await,
                    Ask::AreaWriteAndSeal => self.area_writes(&grant, ops, true).await,
                }
            }
            Err(refusal) => {
                self.verdict(Err(refusal));
                if matches!(request.ask, Ask::Write | Ask::WriteAndSeal) {
                    self.socket.discard(wire::total_len(Op::decode_all(ops))?).await?;
                }
            }
        }
        self.body = body;
        self.flush(false).await?;
        end
    }

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
        let (lent, range, _) = match self.server.locate(grant, op) {
            Ok(found) => found,
            Err(refusal) => {
                self.verdict(Err(refusal));
                return Ok(());
            }
        };
        let start = range.offset + op.offset;
        let bytes = start..start + op.len;
        if let Err(fenced) = lent.fence.check_read(bytes.clone(), range.index, grant.expires) {
            self.verdict(Err(fenced.into()));
            return Ok(());
        }
        self.verdict(Ok(()));
        self.flush(true).await?;
        self.socket.send_segment(&lent.segment, start, op.len).await?;
        // The second half of the seqlock, after the last byte was copied out of the segment. The server has promised a
        // length, so it sends superseded bytes to the end and then refuses them.
        let good = lent.fence.check_read(bytes, range.index, grant.expires);
        Counters::add(&self.server.counters.bytes_read, op.len);
        if good.is_ok() {
            Counters::add(&self.server.counters.reads, 1);
        }
        self.verdict(good.map_err(Refusal::from));
        Ok(())
    }

    /// Says whether bytes that the client read past this connection, before it asked, are good.
    fn check(&mut self, grant: &Grant, op: Op) {
        let good = self.server.locate(grant, op).and_then(|(lent, range, _)| {
            let start = range.offset + op.offset;
            Ok(lent.fence.check_read(start..start + op.len, range.index, grant.expires)?)
        });
        if good.is_ok() {
            Counters::add(&self.server.counters.checks, 1);
            Counters::add(&self.server.counters.shm_reads, 1);
            Counters::add(&self.server.counters.shm_bytes_read, op.len);
        }
        self.verdict(good);
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
                match self.server.admit_write(grant, op) {
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
                match self.server.admit_later(grant, op, &mut self.patience).await {
                    Ok(write) => {
                        writes.push(write);
                        self.receive(&mut writes, &mut outcomes, sealing).await?;
                        continue;
                    }
                    Err(still) => refusal = still,
                }
            }
            self.socket.discard(op.len).await?;
            // A range is sealed only once its bytes are there. So this is the same write again, whose answer was lost.
            let again = seal && matches!(refusal, Refusal::Fenced(Fenced::Sealed { .. }));
            self.verdict(if again { Ok(()) } else { Err(refusal) });
        }
        Ok(())
    }

    /// Receives the bytes of `writes`, seals their ranges if they have a grant for that, adds a verdict for each, and
    /// releases their passes.
    async fn receive(
        &mut self,
        writes: &mut SmallVec<[Incoming; 1]>,
        outcomes: &mut SmallVec<[Received; 1]>,
        sealing: Option<&Grant>,
    ) -> Result<(), Closed> {
        self.socket.receive(writes, outcomes).await?;
        for (write, outcome) in writes.drain(..).zip(outcomes.drain(..)) {
            let verdict = match outcome {
                Received::All => {
                    let bytes = &self.server.counters.bytes_written;
                    self.server.end_write(&write, sealing, bytes, &mut self.patience).await
                }
                Received::Superseded => self.end_lost(&write, sealing).await,
            };
            self.verdict(verdict);
        }
        Ok(())
    }

    pub(super) fn verdict(&mut self, verdict: Result<(), Refusal>) {
        match verdict {
            Ok(()) => wire::put_verdict(&mut self.out, Ok(())),
            Err(refusal) => {
                Counters::add(&self.server.counters.refusals, 1);
                wire::put_verdict(&mut self.out, Err((refusal.status(), &refusal.to_string())));
            }
        }
    }

    async fn flush(&mut self, more: bool) -> Result<(), Closed> {
        self.socket.send(&self.out, more).await?;
        self.out.clear();
        Ok(())
    }
}
