//! Requests whose bytes go by RDMA. See [`crate::path::rdma`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mc_types::{Grant, GrantedRange};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::end::{Direction, Failed, Part, StoreEnd};
use crate::authority::Times;
use crate::blocking_drop::BlockingDrop;
use crate::control::server::{
    AdmittedWrite, Closed, Counters, Exchange, FetchedWrite, Lent, Refusal, ServedMemory, Socket,
};
use crate::control::wire::{END_LEN, End, PROGRESS, PROGRESS_SINCE, RdmaOp, RdmaRequest};
use crate::fence::{CutOff, DeviceHold, Fenced, ReadPass};
use crate::memory::{NoRdma, Rdma};
use crate::path::{PermittedRequest, ServerPath};
use crate::transport::Seal;

/// Longest wait for the place of an idle pair: less than a client's patience.
const PAIR_WITHIN: Duration = Duration::from_millis(100);

/// The queue pairs of a store.
pub(crate) struct Pairs {
    /// Devices to make them with.
    rdma: Option<Arc<Rdma>>,
    /// Connections that may still get one beside them.
    places: Arc<Semaphore>,
    /// Wakes the connection with a pair that has been idle for the longest time when another one gets none.
    wanted: Notify,
}

/// A queue pair.
struct Pair {
    end: StoreEnd,
    _place: OwnedSemaphorePermit,
}

/// The queue pair beside a connection, if it has one.
pub(crate) struct ConnectionPair<'a> {
    pairs: &'a Pairs,
    pair: Option<BlockingDrop<Pair>>,
}

/// Reports of progress that a client gets before the reply to its request.
struct Reports<'a> {
    socket: &'a Socket,
    /// Whether the client's protocol version has reports.
    are_known: bool,
    /// Number of bytes of the last report that were sent; 0 if the whole report was sent.
    sent: AtomicUsize,
}

impl<'a> Reports<'a> {
    fn new(exchange: &'a Exchange<'_>) -> Self {
        let are_known = exchange.version >= PROGRESS_SINCE;
        Self { socket: &exchange.socket, are_known, sent: AtomicUsize::new(0) }
    }

    /// Sends a report. Skips it if the connection takes no bytes, because bytes for the client are then under way
    /// anyway.
    fn send(&self) {
        if self.are_known {
            let sent = self.sent.load(Ordering::Relaxed);
            let now = self.socket.try_send(&PROGRESS[sent..]);
            self.sent.store((sent + now) % PROGRESS.len(), Ordering::Relaxed);
        }
    }

    /// Returns the unsent rest of a report that was sent in part.
    fn rest(self) -> impl Iterator<Item = u8> + use<> {
        let sent = self.sent.into_inner();
        let rest = if sent == 0 { 0 } else { PROGRESS.len() - sent };
        PROGRESS.into_iter().take(rest)
    }
}

impl Pairs {
    /// Makes at most `max` pairs at a time, with the devices of `rdma`.
    pub(crate) fn new(rdma: Option<Arc<Rdma>>, max: usize) -> Self {
        let places = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { rdma, places, wanted: Notify::new() }
    }

    /// Makes the store's queue pair for the queue pair of a client.
    async fn make(&self, served: &ServedMemory, theirs: End) -> Result<(BlockingDrop<Pair>, End), Refusal> {
        let rdma = self.rdma.clone().ok_or_else(|| Refusal::Device("the store offers none".to_owned()))?;
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => Ok(place),
            Err(_) => {
                // The pair that has been idle for the longest time goes, with its connection.
                self.wanted.notify_one();
                let place = tokio::time::timeout(PAIR_WITHIN, self.places.clone().acquire_owned()).await;
                place.map_err(|_| ()).and_then(|place| place.map_err(drop))
            }
        };
        let place = place.map_err(|()| Refusal::Device("too many clients have a queue pair".to_owned()))?;
        // Some drivers look up where the client is, and wait for an answer.
        let segments: Vec<_> = served.lent.load().iter().map(|lent| lent.segment.clone()).collect();
        let made =
            tokio::task::spawn_blocking(move || StoreEnd::new(rdma.devices(), &segments, &theirs)).await;
        let made = made.unwrap_or_else(|failed| Err(NoRdma(failed.to_string())));
        let (end, ours) = made.map_err(|NoRdma(why)| Refusal::Device(why))?;
        Counters::add(&served.counters.rdma_pairs, 1);
        Ok((BlockingDrop::new(Pair { end, _place: place }), ours))
    }
}

/// Admits a read and gives the card its hold on the bytes, and adds them to `parts`.
fn begin_read<'l>(
    grant: &Grant,
    read: RdmaOp,
    located: &'l Result<(Arc<Lent>, GrantedRange, Times), Refusal>,
    (end, cut_off): (&StoreEnd, &Arc<CutOff>),
    parts: &mut Vec<Part>,
) -> Result<(ReadPass<'l>, DeviceHold), Refusal> {
    let (lent, range, _) = located.as_ref().map_err(Refusal::clone)?;
    let start = range.offset + read.op.offset;
    let pass = lent.fence.admit_read(start..start + read.op.len, range.index, grant.expires)?;
    let hold = pass.hold_for_device(cut_off).ok_or(Fenced::Ended { index: range.index })?;
    add_parts(end, lent, (start, read.op.len), &read, parts)?;
    Ok((pass, hold))
}

/// Adds a range to the `parts` for the card.
fn add_parts(
    end: &StoreEnd,
    lent: &Lent,
    place: (u64, u64),
    op: &RdmaOp,
    parts: &mut Vec<Part>,
) -> Result<(), Refusal> {
    let added = end.add_parts(&lent.segment, place, (op.address, op.key), parts);
    added.map_err(|NoRdma(why)| Refusal::OtherWay(why))
}

impl ServerPath for ConnectionPair<'_> {
    type Request = RdmaRequest;

    async fn serve(
        &mut self,
        exchange: &mut Exchange<'_>,
        PermittedRequest { id, kind, grant, ops }: PermittedRequest<'_, RdmaRequest>,
    ) -> Result<(), Closed> {
        if grant.avoids_rdma {
            exchange.verdict(Err(Refusal::OtherWay("the tenant's bytes may not go by RDMA".to_owned())));
            return Ok(());
        }
        match kind {
            RdmaRequest::Pair(_) => self.make(exchange, ops).await,
            RdmaRequest::Probe(_) => {
                exchange.verdict(Ok(()));
                self.probe(exchange, ops, id).await?;
            }
            RdmaRequest::Read => self.reads(exchange, grant, ops, id).await?,
            RdmaRequest::Write(seal) => {
                exchange.verdict(Ok(()));
                self.writes(exchange, grant, ops, seal == Seal::Yes).await?;
            }
        }
        Ok(())
    }

    /// Returns when another connection wants a queue pair and there is still none.
    async fn wanted(&self) {
        if self.pair.is_none() {
            std::future::pending::<()>().await;
        }
        loop {
            self.pairs.wanted.notified().await;
            if self.pairs.places.available_permits() == 0 {
                return;
            }
        }
    }
}

impl<'a> ConnectionPair<'a> {
    pub(crate) fn new(pairs: &'a Pairs) -> Self {
        Self { pairs, pair: None }
    }

    /// Makes the queue pair beside this connection. One that is there is replaced.
    async fn make(&mut self, exchange: &mut Exchange<'_>, end: &[u8]) {
        self.pair = None;
        let made = match end.first_chunk::<END_LEN>() {
            Some(end) => self.pairs.make(exchange.served, End::decode(end)).await,
            None => Err(Refusal::Device("the request names no end".to_owned())),
        };
        match made {
            Ok((pair, ours)) => {
                self.pair = Some(pair);
                exchange.verdict(Ok(()));
                ours.encode(&mut exchange.out);
            }
            Err(refusal) => {
                tracing::debug!(%refusal, "a client gets no queue pair");
                exchange.verdict(Err(refusal));
            }
        }
    }

    /// Writes to the client's memory. The message `id` follows the bytes.
    async fn reads(
        &mut self,
        exchange: &mut Exchange<'_>,
        grant: &Grant,
        ops: &[u8],
        id: u64,
    ) -> Result<(), Closed> {
        // Put back if all goes well.
        let Some(pair) = self.pair.take() else {
            exchange.verdict(Ok(()));
            exchange.refuse_all(RdmaOp::decode_all(ops).count(), &no_pair());
            return Ok(());
        };
        let cut_off = CutOff::new(exchange.served.transfer_ended.clone());
        let located: Vec<_> =
            RdmaOp::decode_all(ops).map(|op| exchange.served.locate(grant, op.op)).collect();
        let (mut parts, mut reads, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for (op, located) in RdmaOp::decode_all(ops).zip(&located) {
            let read = begin_read(grant, op, located, (&pair.end, &cut_off), &mut parts);
            if let Err(refusal @ Refusal::OtherWay(_)) = read {
                self.pair = Some(pair);
                exchange.verdict(Ok(()));
                exchange.refuse_all(RdmaOp::decode_all(ops).count(), &refusal);
                return Ok(());
            }
            let read = read.map(|(pass, hold)| {
                kept.push((hold, located.as_ref().ok().map(|(lent, ..)| lent.clone())));
                pass
            });
            reads.push((read, op.op.len));
        }
        match self.carry_to_client(exchange, pair, (&parts, kept, &cut_off), id).await {
            Ok(()) => exchange.verdict(Ok(())),
            Err(Failed::CutOff) => {
                // Refused as a whole, because without its pair the client gets no message after the bytes. It asks again.
                exchange.verdict(Err(Refusal::CutOff));
                exchange.flush(false).await?;
                return Err(Closed::Rdma);
            }
            Err(Failed::Device(why)) => {
                exchange.verdict(Ok(()));
                return failed(exchange, ops, why).await;
            }
            Err(Failed::Gone) => return Err(Closed::ByPeer),
        }
        for (read, len) in reads {
            // After the card has read the last byte.
            let good = read.and_then(|pass| Ok(pass.check()?));
            if good.is_ok() {
                Counters::add(&exchange.served.counters.reads, 1);
                Counters::add(&exchange.served.counters.rdma_bytes_read, len);
            }
            exchange.verdict(good);
        }
        Ok(())
    }

    /// Tries the queue pair: writes bytes of no object to the client's memory. The message `id` follows them.
    async fn probe(&mut self, exchange: &mut Exchange<'_>, ops: &[u8], id: u64) -> Result<(), Closed> {
        let count = RdmaOp::decode_all(ops).count();
        let Some(pair) = self.pair.take() else {
            exchange.refuse_all(count, &no_pair());
            return Ok(());
        };
        let part = |op: RdmaOp| pair.end.probe_part(op.op.len, (op.address, op.key));
        let parts: Vec<Part> = RdmaOp::decode_all(ops).map(part).collect();
        // No write ever signals this.
        let cut_off = CutOff::new(exchange.served.transfer_ended.clone());
        match self.carry_to_client(exchange, pair, (&parts, (), &cut_off), id).await {
            Ok(()) => {}
            Err(Failed::Device(why)) => return failed(exchange, ops, why).await,
            Err(Failed::Gone | Failed::CutOff) => return Err(Closed::ByPeer),
        }
        (0..count).for_each(|_| exchange.verdict(Ok(())));
        Ok(())
    }

    /// Writes the parts to the client's memory. The message `id` follows the bytes, and the pair comes back if all goes well.
    async fn carry_to_client<K>(
        &mut self,
        exchange: &mut Exchange<'_>,
        mut pair: BlockingDrop<Pair>,
        (parts, kept, cut_off): (&[Part], K, &CutOff),
        id: u64,
    ) -> Result<(), Failed> {
        let (gone, reports) = (exchange.socket.gone(), Reports::new(exchange));
        let waits = (exchange.served.timeouts.stall, || reports.send());
        let carried = pair.end.carry(Direction::ToClient(id as u32), parts, kept, cut_off, gone, waits).await;
        let rest = reports.rest();
        exchange.out.splice(0..0, rest);
        if carried.is_ok() {
            self.pair = Some(pair);
        }
        carried
    }

    /// Reads from the client's memory.
    async fn writes(
        &mut self,
        exchange: &mut Exchange<'_>,
        grant: &Grant,
        ops: &[u8],
        seal: bool,
    ) -> Result<(), Closed> {
        // Put back if all goes well.
        let Some(mut pair) = self.pair.take() else {
            exchange.refuse_all(RdmaOp::decode_all(ops).count(), &no_pair());
            return Ok(());
        };
        // All are admitted before the card gets a hold on any, because others wait for those holds.
        let mut writes = exchange.admit_all(grant, RdmaOp::decode_all(ops).map(|op| op.op)).await;
        let cut_off = CutOff::new(exchange.served.transfer_ended.clone());
        let (mut parts, mut kept) = (Vec::new(), Vec::new());
        for (write, op) in writes.iter_mut().zip(RdmaOp::decode_all(ops)) {
            let Ok(FetchedWrite { write: AdmittedWrite { lent, offset, len, pass, .. }, lost }) = write
            else {
                continue;
            };
            let Some(hold) = pass.hold_for_device(&cut_off) else {
                *lost = true;
                continue;
            };
            kept.push((hold, lent.clone()));
            if let Err(refusal) = add_parts(&pair.end, lent, (*offset, *len), &op, &mut parts) {
                self.pair = Some(pair);
                exchange.refuse_all(RdmaOp::decode_all(ops).count(), &refusal);
                return Ok(());
            }
        }
        let (gone, reports) = (exchange.socket.gone(), Reports::new(exchange));
        let waits = (exchange.served.timeouts.stall, || reports.send());
        let carried = pair.end.carry(Direction::FromClient, &parts, kept, &cut_off, gone, waits).await;
        let rest = reports.rest();
        exchange.out.splice(0..0, rest);
        match carried {
            Ok(()) => {
                self.pair = Some(pair);
                let bytes = &exchange.served.counters.rdma_bytes_written;
                let ops = RdmaOp::decode_all(ops).map(|op| op.op);
                exchange.end_writes(seal.then_some(grant), ops, writes, bytes).await;
                Ok(())
            }
            Err(Failed::CutOff) => {
                end_cut_off(exchange, grant, writes, seal).await;
                exchange.flush(false).await?;
                Err(Closed::Rdma)
            }
            Err(Failed::Gone) => Err(Closed::ByPeer),
            Err(Failed::Device(why)) => failed(exchange, ops, why).await,
        }
    }
}

/// Answers writes after a cut-off, when the bytes of any of them may be missing.
async fn end_cut_off(
    exchange: &mut Exchange<'_>,
    grant: &Grant,
    writes: Vec<Result<FetchedWrite, Refusal>>,
    seal: bool,
) {
    for write in writes {
        let verdict = match write {
            Err(refusal) => Err(refusal),
            // The cut-off is not about this write. The client sends it again.
            Ok(FetchedWrite { write, .. }) if write.pass.hold().is_some() => Err(Refusal::CutOff),
            Ok(FetchedWrite { write, .. }) => {
                exchange.end_lost(&write, seal.then_some(grant)).await.map(Some)
            }
        };
        exchange.write_verdict(verdict);
    }
}

/// Answers a request whose bytes did not go through, and ends the connection, whose queue pair is gone.
async fn failed(exchange: &mut Exchange<'_>, ops: &[u8], why: String) -> Result<(), Closed> {
    Counters::add(&exchange.served.counters.rdma_failures, 1);
    tracing::warn!("RDMA failed, the client goes on over another route or TCP: {why}");
    exchange.refuse_all(RdmaOp::decode_all(ops).count(), &Refusal::Device(why));
    exchange.flush(false).await?;
    Err(Closed::Rdma)
}

fn no_pair() -> Refusal {
    Refusal::Device("the connection has no queue pair".to_owned())
}

#[cfg(test)]
mod tests {
    use mc_types::{Access, Clock, ClusterId, ClusterTime, GrantKey, SegmentEpoch, StoreId};
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::DataEncryption;
    use crate::control::wire::{Op, Status};
    use crate::{Authority, DataServer, DataServerConfig};

    /// A client's end of a connection and the store's.
    async fn connected() -> (tokio::net::TcpStream, Socket) {
        let listener = mc_net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = mc_net::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
        (client, Socket::new(stream.into(), Duration::from_secs(10)))
    }

    #[tokio::test]
    async fn a_report_reaches_a_client_that_knows_it_and_no_other() {
        let (mut client, socket) = connected().await;
        for are_known in [false, true] {
            let reports = Reports { socket: &socket, are_known, sent: AtomicUsize::new(0) };
            reports.send();
            assert_eq!(reports.rest().count(), 0, "the client has taken what there was");
        }
        drop(socket);
        let mut sent = Vec::new();
        client.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, PROGRESS);
    }

    /// A server of no memory.
    fn server() -> DataServer {
        DataServer::new(DataServerConfig {
            store: StoreId(1),
            epoch: SegmentEpoch(1),
            key: GrantKey([1; 32]),
            segments: Vec::new(),
            authority: Arc::new(Authority::new(Clock::from_fn(|| Duration::ZERO))),
            grant_lifetime: Duration::from_secs(1),
            fence_bytes: 1 << 20,
            max_connections: 1,
            rdma: None,
            max_pairs: 0,
            tls: None,
            data_encryption: DataEncryption::On,
        })
    }

    /// Whatever client asks: those of this build do not.
    #[tokio::test]
    async fn no_request_moves_bytes_of_a_tenant_that_avoids_rdma() {
        let (_client, socket) = connected().await;
        let (served, pairs) = (server(), Pairs::new(None, 1));
        let mut exchange = Exchange::new(served.as_ref(), socket);
        let grant = |access, avoids_rdma| Grant {
            cluster: ClusterId(1),
            store: StoreId(1),
            epoch: SegmentEpoch(1),
            access,
            expires: ClusterTime(1),
            tenant: String::new(),
            holder: None,
            needs_proof: false,
            shares_memory: false,
            avoids_rdma,
            ranges: Vec::new(),
        };
        for kind in [
            RdmaRequest::Pair(Access::Read),
            RdmaRequest::Probe(Access::Write),
            RdmaRequest::Read,
            RdmaRequest::Write(Seal::Yes),
        ] {
            for (avoids_rdma, status) in [(true, Status::OtherWay), (false, Status::Device)] {
                let grant = grant(Access::Read, avoids_rdma);
                let request = PermittedRequest { id: 1, kind, grant: &grant, ops: &[] };
                ConnectionPair::new(&pairs).serve(&mut exchange, request).await.unwrap();
                let told = std::mem::take(&mut exchange.out);
                let is_asked = avoids_rdma || matches!(kind, RdmaRequest::Pair(_));
                assert_eq!(told.first() == Some(&(status as u8)), is_asked, "{kind:?}: {told:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_failure_is_told_to_the_client_before_its_connection_ends() {
        let (mut client, socket) = connected().await;
        let served = server();
        let (mut exchange, mut ops) = (Exchange::new(served.as_ref(), socket), Vec::new());
        RdmaOp { op: Op { range: 0, offset: 0, len: 1 }, key: 0, address: 0 }.encode(&mut ops);
        assert!(matches!(failed(&mut exchange, &ops, "card".to_owned()).await, Err(Closed::Rdma)));
        drop(exchange);
        let mut sent = Vec::new();
        client.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent.first(), Some(&(Status::Device as u8)));
    }

    #[tokio::test]
    async fn the_rest_of_a_report_that_was_sent_in_part_goes_before_the_reply() {
        let (_client, socket) = connected().await;
        let reports = Reports { socket: &socket, are_known: true, sent: AtomicUsize::new(3) };
        assert_eq!(reports.rest().count(), PROGRESS.len() - 3);
    }
}
