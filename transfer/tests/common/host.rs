//! A store that shares its memory, and clients of its host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_net::Tls;
use mc_transfer::{
    Authority, Checksum, DataEncryption, DataServer, DataServerConfig, Peer, PeerEndpoint, ReadOp, Seal,
    Segment, ShmAccess, ShmTransport, TcpTransport, TransferError, Transport, WriteOp, socket_name,
};
use mc_types::{
    Access, Clock, ClusterTime, Grant, GrantedRange, Receipt, SealedGrant, SegmentEpoch, SegmentNumber,
    StoreId,
};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::{CLUSTER, KEY, LIFETIME, soon};

pub(crate) const MIB: usize = 1 << 20;

/// A store that shares its memory. Each test has numbers of its own, because names of sockets are the machine's.
pub(crate) struct Host {
    pub(crate) store: StoreId,
    /// Number of its segment, by which its mappings are told from those of other tests.
    pub(crate) number: SegmentNumber,
    pub(crate) segment: Arc<Segment>,
    pub(crate) server: Arc<DataServer>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) peer: Peer,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) _stop: DropGuard,
}

impl Host {
    pub(crate) async fn start(access: ShmAccess, len: usize) -> Self {
        let segment = Segment::allocate(rand::random(), len as u64, &mut |_| {}).unwrap();
        Self::serve(access, StoreId(rand::random()), SegmentEpoch(3), segment, None).await
    }

    /// One with certificates.
    pub(crate) async fn start_secured(access: ShmAccess, tls: Arc<Tls>, len: usize) -> Self {
        let segment = Segment::allocate(rand::random(), len as u64, &mut |_| {}).unwrap();
        Self::serve(access, StoreId(rand::random()), SegmentEpoch(3), segment, Some(tls)).await
    }

    /// Ends the server, and serves the same memory under the next epoch.
    pub(crate) async fn serve_again(&self) -> Self {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let epoch = SegmentEpoch(self.peer.epoch.0 + 1);
        Self::serve(ShmAccess::SameUid, self.store, epoch, self.segment.clone(), None).await
    }

    async fn serve(
        access: ShmAccess,
        store: StoreId,
        epoch: SegmentEpoch,
        segment: Arc<Segment>,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let number = segment.number();
        let authority = Arc::new(Authority::new(Clock::from_fn(|| Duration::ZERO)));
        authority.learn(CLUSTER, ClusterTime(0));
        let config = DataServerConfig {
            store,
            epoch,
            key: KEY,
            segments: vec![segment.clone()],
            authority: authority.clone(),
            grant_lifetime: LIFETIME,
            fence_bytes: 1 << 20,
            max_connections: 100,
            rdma: None,
            max_pairs: 0,
            tls,
            data_encryption: DataEncryption::On,
        };
        let server = Arc::new(DataServer::new(config));
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let tasks = TaskTracker::new();
        tasks.spawn(server.clone().serve(listener, stop.clone()));
        if access != ShmAccess::Off {
            let listener = mc_net::listen_local(&socket_name(store, epoch)).unwrap();
            tasks.spawn(server.clone().serve_local(listener, access, stop.clone()));
        }
        let endpoint = PeerEndpoint { transport: "tcp".to_owned(), address, attributes: Vec::new() };
        let peer = Peer { cluster: CLUSTER, store, epoch, endpoints: vec![endpoint] };
        let (stop, _stop) = (stop.clone(), stop.drop_guard());
        Self { store, number, segment, server, authority, peer, tasks, stop, _stop }
    }

    pub(crate) fn grant(&self, access: Access, ranges: &[(u64, usize, u64)]) -> SealedGrant {
        self.unsealed(access, ranges).seal(&KEY)
    }

    /// A grant that works for its holder alone.
    pub(crate) fn held(&self, access: Access, ranges: &[(u64, usize, u64)]) -> SealedGrant {
        Grant { needs_proof: true, ..self.unsealed(access, ranges) }.seal(&KEY)
    }

    /// [`Self::held`], by a holder with a number that may map the store's memory.
    pub(crate) fn sharing(&self, holder: u64, access: Access, ranges: &[(u64, usize, u64)]) -> SealedGrant {
        self.unsealed_sharing(holder, access, ranges).seal(&KEY)
    }

    /// [`Self::sharing`], of a time that is over.
    pub(crate) fn expired(&self, holder: u64, access: Access, ranges: &[(u64, usize, u64)]) -> SealedGrant {
        Grant { expires: ClusterTime(0), ..self.unsealed_sharing(holder, access, ranges) }.seal(&KEY)
    }

    fn unsealed_sharing(&self, holder: u64, access: Access, ranges: &[(u64, usize, u64)]) -> Grant {
        let grant = self.unsealed(access, ranges);
        Grant { needs_proof: true, shares_memory: true, holder: Some(holder), ..grant }
    }

    fn unsealed(&self, access: Access, ranges: &[(u64, usize, u64)]) -> Grant {
        let range = |(offset, len, index): &(u64, usize, u64)| GrantedRange {
            segment: self.number,
            offset: *offset,
            len: *len as u64,
            index: *index,
        };
        Grant {
            cluster: CLUSTER,
            store: self.store,
            epoch: self.peer.epoch,
            access,
            expires: ClusterTime(0).after(LIFETIME),
            tenant: String::new(),
            holder: None,
            needs_proof: false,
            shares_memory: false,
            avoids_rdma: false,
            ranges: ranges.iter().map(range).collect(),
        }
    }

    pub(crate) async fn write(&self, offset: u64, bytes: &[u8], index: u64) {
        let grant = self.grant(Access::Write, &[(offset, bytes.len(), index)]);
        let ops = [WriteOp { range: 0, offset: 0, from: vec![bytes.into()] }];
        TcpTransport::default().write(&self.peer, &grant, &ops, Seal::Yes, soon()).await.remove(0).unwrap();
    }

    /// The receipt of a range.
    pub(crate) fn receipt(&self, offset: u64, len: usize, index: u64) -> Receipt {
        let range = GrantedRange { segment: self.number, offset, len: len as u64, index };
        KEY.receipts().receipt(CLUSTER, self.store, self.peer.epoch, &range)
    }

    /// Content of its segment.
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.segment.copy_out(offset, &mut bytes).unwrap();
        bytes
    }

    /// Counts the mappings of its segment in this process. One is the store's.
    pub(crate) fn mappings(&self) -> usize {
        let name = format!("memfd:mc-segment-{} ", self.number);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(&name)).count()
    }
}

/// A client, and the bytes that it moved through shared memory.
pub(crate) fn client(access: ShmAccess) -> (ShmTransport, Arc<AtomicU64>) {
    client_over(TcpTransport::default(), access)
}

pub(crate) fn client_over(tcp: TcpTransport, access: ShmAccess) -> (ShmTransport, Arc<AtomicU64>) {
    let moved = Arc::new(AtomicU64::new(0));
    let count = moved.clone();
    let on_moved = Box::new(move |_, bytes| {
        count.fetch_add(bytes, Ordering::SeqCst);
    });
    (ShmTransport::new(tcp, access, on_moved), moved)
}

pub(crate) async fn read(
    transport: &ShmTransport,
    host: &Host,
    peer: &Peer,
    (offset, len, index): (u64, usize, u64),
) -> Result<Vec<u8>, TransferError> {
    read_under(transport, peer, &host.grant(Access::Read, &[(offset, len, index)]), len).await
}

pub(crate) async fn read_under(
    transport: &ShmTransport,
    peer: &Peer,
    grant: &SealedGrant,
    len: usize,
) -> Result<Vec<u8>, TransferError> {
    let mut bytes = vec![0; len];
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut bytes).into()] }];
    let checksum = transport.read(peer, grant, &mut ops, soon()).await.remove(0)?;
    assert_eq!(checksum, Checksum::of(&bytes));
    Ok(bytes)
}
