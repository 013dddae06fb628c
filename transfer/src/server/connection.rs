use std::time::{Duration, Instant};

use mc_types::{Grant, Nonce, ProofKey};

use super::{Counters, DataServer, Timeouts};
use crate::control::server::{Closed, Exchange, Proofs, Refusal, Socket, check};
use crate::control::wire::{HELLO_LEN, Hello, HelloReply, NONCE_SINCE, REQUEST_LEN, Request};
use crate::path::server::ConnectionPaths;

/// Longest wait of a client for the first word of a master, which a store that has just started hears within a moment.
const HEARD_WITHIN: Duration = Duration::from_millis(200);
/// Time without a request after which a connection frees its buffers, and is closed when others need its place.
const BUFFERS_KEPT: Duration = Duration::from_secs(1);

/// One client's connection: answers its requests one after the other, in order.
///
/// The buffers are reused from request to request, and freed while there are none. Nothing here grows with the size of
/// a transfer.
pub(super) struct Connection<'a> {
    server: &'a DataServer,
    exchange: Exchange<'a>,
    paths: ConnectionPaths<'a>,
    proofs: Proofs,
    /// Grant, operations and proof of the current request.
    body: Vec<u8>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(server: &'a DataServer, socket: Socket) -> Self {
        let exchange = Exchange::new(&server.served, socket);
        let (paths, proofs) = (server.paths.of_connection(), Proofs::with(Nonce::random()));
        Self { server, exchange, paths, proofs, body: Vec::new() }
    }

    /// Serves requests until the connection ends, and returns why it did.
    pub(super) async fn run(&mut self) -> Closed {
        match self.serve().await {
            Ok(never) => match never {},
            Err(closed) => closed,
        }
    }

    /// Reads the client's hello and refuses it.
    pub(super) async fn refuse(&mut self, why: &Refusal) -> Closed {
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
                    self.exchange.socket.free_buffers();
                    let wanted = async {
                        tokio::select! {
                            () = self.server.place_wanted() => {}
                            () = self.paths.wanted() => {}
                        }
                    };
                    self.exchange.socket.wait_idle(idle - BUFFERS_KEPT, wanted).await?;
                    self.exchange.socket.read_message(&mut header, Some(idle)).await?;
                }
                read => read?,
            }
            self.exchange.socket.take_turn().await;
            if self.exchange.socket.has_expired() {
                return Err(Closed::Expired);
            }
            // It may have been shut out meanwhile, or the store requires TLS by now.
            let taken = self.server.check_peer(self.exchange.socket.peer());
            self.proofs.taken = taken.map_err(|why| Closed::NotServed(why.to_string()))?;
            let begun = Instant::now();
            let request = Request::decode(&header)?;
            self.answer(&header, request).await?;
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
        let served = &self.server.served;
        let admitted = self.server.check_peer(self.exchange.socket.peer());
        let check = || check::check_hello(served.identity, served.authority.times(), &hello);
        let mut checked = admitted.clone().and_then(|taken| Ok((taken, check()?)));
        if checked == Err(Refusal::NotReady) {
            let _ = tokio::time::timeout(HEARD_WITHIN, served.authority.known()).await;
            checked = admitted.and_then(|taken| Ok((taken, check()?)));
        }
        match checked {
            Ok((taken, version)) => {
                self.server.note_tolerated(&self.exchange.socket);
                self.proofs.taken = taken;
                self.exchange.version = version;
                let mut reply = HelloReply::encode(version, Ok(()));
                if version >= NONCE_SINCE {
                    reply.extend_from_slice(&self.proofs.nonce.0);
                }
                self.exchange.socket.send(&reply, false).await
            }
            Err(refusal) => Err(self.refuse_hello(&refusal).await),
        }
    }

    async fn answer(&mut self, header: &[u8; REQUEST_LEN], request: Request) -> Result<(), Closed> {
        let mut body = std::mem::take(&mut self.body);
        body.resize(request.body_len(), 0);
        self.exchange.socket.read_exact(&mut body).await?;
        let (grant, ops, proof) = request.split_body(&body);
        // Checked before anything is answered.
        let payload = request.kind.check_ops(ops)?;
        self.exchange.patience = None;
        self.exchange.out.extend_from_slice(&request.id.to_be_bytes());
        let prove =
            |grant: &Grant, key: &ProofKey| self.proofs.check(grant, key, header, (&request, ops, proof));
        match self.server.served.open_grant(grant, request.kind.access(), prove) {
            Ok(grant) => self.paths.serve(&mut self.exchange, request, &grant, ops).await?,
            Err(refusal) => {
                self.exchange.verdict(Err(refusal));
                if payload > 0 {
                    self.exchange.socket.discard(payload).await?;
                }
            }
        }
        self.body = body;
        self.exchange.flush(false).await
    }
}
