use std::time::{Duration, Instant};

use super::{Counters, DataServer, Timeouts};
use crate::control::server::{Closed, Exchange, Refusal, Socket, check};
use crate::control::wire::{
    self, AreaOp, HELLO_LEN, Hello, HelloReply, Op, REQUEST_LEN, RdmaOp, Request, RequestKind,
};
use crate::path::rdma::server::ConnectionPair;
use crate::path::shm::server::areas;

/// Time without a request after which a connection frees its buffers, and is closed when others need its place.
const BUFFERS_KEPT: Duration = Duration::from_secs(1);

/// One client's connection: answers its requests one after the other, in order.
///
/// The buffers are reused from request to request, and freed while there are none. Nothing here grows with the size of
/// a transfer.
pub(super) struct Connection<'a> {
    server: &'a DataServer,
    exchange: Exchange<'a>,
    /// The queue pair beside it.
    pair: ConnectionPair<'a>,
    /// Grant and operations of the current request.
    body: Vec<u8>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(server: &'a DataServer, socket: Socket) -> Self {
        let exchange = Exchange::new(&server.served, socket);
        Self { server, exchange, pair: ConnectionPair::new(&server.pairs), body: Vec::new() }
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
        let read = self.exchange.socket.read_exact(&mut hello).await;
        match read.and_then(|()| Ok(Hello::decode(&hello)?)) {
            Ok(_) => self.refuse_hello(why).await,
            Err(closed) => closed,
        }
    }

    async fn refuse_hello(&mut self, why: &Refusal) -> Closed {
        Counters::add(&self.server.served.counters.refusals, 1);
        let reply = HelloReply::encode(0, Err((why.status(), &why.to_string())));
        self.exchange.socket.send(&reply, false).await.err().unwrap_or(Closed::Refused)
    }

    async fn serve(&mut self) -> Result<std::convert::Infallible, Closed> {
        let Timeouts { idle, .. } = self.server.served.timeouts;
        self.shake_hands().await?;
        loop {
            let mut header = [0; REQUEST_LEN];
            match self.exchange.socket.read_message(&mut header, Some(idle.min(BUFFERS_KEPT))).await {
                Err(Closed::Idle(_)) if idle > BUFFERS_KEPT => {
                    (self.body, self.exchange.out) = (Vec::new(), Vec::new());
                    self.exchange.socket.free_buffer();
                    let wanted = async {
                        tokio::select! {
                            () = self.server.place_wanted() => {}
                            () = self.pair.wanted(), if self.pair.is_made() => {}
                        }
                    };
                    self.exchange.socket.wait_idle(idle - BUFFERS_KEPT, wanted).await?;
                    self.exchange.socket.read_message(&mut header, Some(idle)).await?;
                }
                read => read?,
            }
            self.exchange.socket.take_turn().await;
            let begun = Instant::now();
            let request = Request::decode(&header)?;
            self.answer(request).await?;
            self.server
                .served
                .request_seconds
                .of(request.kind.access())
                .record(begun.elapsed().as_secs_f64());
        }
    }

    async fn shake_hands(&mut self) -> Result<(), Closed> {
        let mut hello = [0; HELLO_LEN];
        self.exchange.socket.read_exact(&mut hello).await?;
        let hello = Hello::decode(&hello)?;
        match check::check_hello(self.server.served.identity, self.server.served.authority.times(), &hello) {
            Ok(version) => {
                self.exchange.version = version;
                self.exchange.socket.send(&HelloReply::encode(version, Ok(())), false).await
            }
            Err(refusal) => Err(self.refuse_hello(&refusal).await),
        }
    }

    async fn answer(&mut self, request: Request) -> Result<(), Closed> {
        let mut body = std::mem::take(&mut self.body);
        body.resize(request.body_len(), 0);
        self.exchange.socket.read_exact(&mut body).await?;
        let (grant, ops) = body.split_at(request.grant_len as usize);
        // Checked before anything is answered.
        match request.kind {
            RequestKind::Pair(_) => {}
            RequestKind::RdmaRead
            | RequestKind::RdmaWrite
            | RequestKind::RdmaWriteAndSeal
            | RequestKind::Probe(_) => {
                wire::check_fetched(RdmaOp::decode_all(ops).map(|op| op.op))?;
            }
            RequestKind::AreaWrite | RequestKind::AreaWriteAndSeal => {
                wire::check_fetched(AreaOp::decode_all(ops).map(|op| op.op))?;
            }
            RequestKind::Read | RequestKind::Check | RequestKind::Write | RequestKind::WriteAndSeal => {
                wire::total_len(Op::decode_all(ops))?;
            }
        }
        self.exchange.patience = None;
        let mut end = Ok(());
        self.exchange.out.extend_from_slice(&request.id.to_be_bytes());
        let access = request.kind.access();
        let Self { server, exchange, pair, .. } = self;
        match server.served.open_grant(grant, access) {
            Ok(grant) => {
                if !matches!(request.kind, RequestKind::Pair(_)) {
                    exchange.verdict(Ok(()));
                }
                match request.kind {
                    RequestKind::Read => exchange.reads(&grant, ops).await?,
                    RequestKind::Check => Op::decode_all(ops).for_each(|op| exchange.check(&grant, op)),
                    // Replies to writes wait for the last byte, because a client that is still sending reads none.
                    RequestKind::Write => exchange.writes(&grant, ops, false).await?,
                    RequestKind::WriteAndSeal => exchange.writes(&grant, ops, true).await?,
                    RequestKind::Pair(_) => pair.make(exchange, ops).await,
                    RequestKind::Probe(_) => end = pair.probe(exchange, ops, request.id).await,
                    RequestKind::RdmaRead => end = pair.reads(exchange, &grant, ops, request.id).await,
                    RequestKind::RdmaWrite => end = pair.writes(exchange, &grant, ops, false).await,
                    RequestKind::RdmaWriteAndSeal => end = pair.writes(exchange, &grant, ops, true).await,
                    RequestKind::AreaWrite => {
                        areas::write(exchange, (&server.areas, &server.copiers), &grant, ops, false).await;
                    }
                    RequestKind::AreaWriteAndSeal => {
                        areas::write(exchange, (&server.areas, &server.copiers), &grant, ops, true).await;
                    }
                }
            }
            Err(refusal) => {
                exchange.verdict(Err(refusal));
                if matches!(request.kind, RequestKind::Write | RequestKind::WriteAndSeal) {
                    exchange.socket.discard(wire::total_len(Op::decode_all(ops))?).await?;
                }
            }
        }
        self.body = body;
        self.exchange.flush(false).await?;
        end
    }
}
