//! A store on loopback, and the grants of an imaginary master.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_net::Tls;
use mc_transfer::{
    Authority, Checksum, Counters, DataEncryption, DataServer, DataServerConfig, Peer, PeerEndpoint, Rdma,
    ReadOp, Seal, Segment, TcpTransport, Timeouts, TransferError, Transport, WriteOp, Written,
};
use mc_types::{
    Access, Clock, ClusterId, ClusterTime, Grant, GrantKey, GrantedRange, Receipt, SealedGrant, SegmentEpoch,
    StoreId,
};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) mod certificates;
pub(crate) mod host;
pub(crate) mod relay;

pub(crate) const CLUSTER: ClusterId = ClusterId(1);
pub(crate) const STORE: StoreId = StoreId(2);
pub(crate) const EPOCH: SegmentEpoch = SegmentEpoch(3);
pub(crate) const KEY: GrantKey = GrantKey([4; 32]);
/// Grants made here expire this long after the start.
pub(crate) const LIFETIME: Duration = Duration::from_secs(10);

pub(crate) struct Store {
    pub(crate) segment: Arc<Segment>,
    pub(crate) address: String,
    pub(crate) authority: Arc<Authority>,
    /// The store's monotonic clock, in milliseconds; stands still unless it is set.
    pub(crate) clock_ms: Arc<AtomicU64>,
    server: Arc<DataServer>,
    stop: DropGuard,
}

impl Store {
    /// A store with one segment that has heard from its master.
    pub(crate) async fn start(len: u64) -> Self {
        Self::start_with(len, Timeouts::default()).await
    }

    pub(crate) async fn start_with(len: u64, timeouts: Timeouts) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), len, timeouts)
    }

    pub(crate) fn start_on(listener: TcpListener, len: u64, timeouts: Timeouts) -> Self {
        Self::start_with_fence(listener, len, timeouts, 512 << 20)
    }

    pub(crate) fn start_with_fence(
        listener: TcpListener,
        len: u64,
        timeouts: Timeouts,
        fence_bytes: u64,
    ) -> Self {
        Self::start_limited(listener, len, timeouts, fence_bytes, 10_000)
    }

    pub(crate) fn start_limited(
        listener: TcpListener,
        len: u64,
        timeouts: Timeouts,
        fence_bytes: u64,
        max_connections: usize,
    ) -> Self {
        Self::start_full(listener, len, timeouts, fence_bytes, max_connections, None)
    }

    /// A store with certificates.
    pub(crate) async fn start_secured(len: u64, timeouts: Timeouts, tls: Arc<Tls>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let secured = (Some(tls), DataEncryption::On);
        Self::start_as(listener, len, timeouts, (512 << 20, 10_000), None, secured)
    }

    /// A store with certificates that takes data in the clear.
    pub(crate) async fn start_unencrypted(len: u64, tls: Arc<Tls>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let secured = (Some(tls), DataEncryption::Off);
        Self::start_as(listener, len, Timeouts::default(), (512 << 20, 10_000), None, secured)
    }

    pub(crate) fn start_full(
        listener: TcpListener,
        len: u64,
        timeouts: Timeouts,
        fence_bytes: u64,
        max_connections: usize,
        rdma: Option<Arc<Rdma>>,
    ) -> Self {
        let plain = (None, DataEncryption::On);
        Self::start_as(listener, len, timeouts, (fence_bytes, max_connections), rdma, plain)
    }

    fn start_as(
        listener: TcpListener,
        len: u64,
        timeouts: Timeouts,
        (fence_bytes, max_connections): (u64, usize),
        rdma: Option<Arc<Rdma>>,
        (tls, data_encryption): (Option<Arc<Tls>>, DataEncryption),
    ) -> Self {
        let clock_ms = Arc::new(AtomicU64::new(0));
        let read = clock_ms.clone();
        let clock = Clock::from_fn(move || Duration::from_millis(read.load(Ordering::SeqCst)));
        let authority = Arc::new(Authority::new(clock));
        authority.learn(CLUSTER, ClusterTime(0));
        let segment = Segment::allocate(0, len, &mut |_| {}).unwrap();
        let max_pairs = rdma.as_ref().map_or(0, |rdma| rdma.max_pairs());
        let config = DataServerConfig {
            store: STORE,
            epoch: EPOCH,
            key: KEY,
            segments: vec![segment.clone()],
            authority: authority.clone(),
            grant_lifetime: LIFETIME,
            fence_bytes,
            max_connections,
            rdma,
            max_pairs,
            tls,
            data_encryption,
        };
        let address = listener.local_addr().unwrap().to_string();
        let server = Arc::new(DataServer::new(config).with_timeouts(timeouts));
        let shutdown = CancellationToken::new();
        tokio::spawn(server.clone().serve(listener, shutdown.clone()));
        Self { segment, address, authority, clock_ms, server, stop: shutdown.drop_guard() }
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.server.counters()
    }

    pub(crate) fn fence_bytes(&self) -> u64 {
        self.server.fence_bytes()
    }

    pub(crate) fn peer(&self) -> Peer {
        peer_at(&self.address)
    }

    /// Content of the segment.
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.segment.copy_out(offset, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn stop(self) {
        drop(self.stop);
    }
}

/// The store, as reached at some other address.
pub(crate) fn peer_at(address: &str) -> Peer {
    let endpoint =
        PeerEndpoint { transport: "tcp".to_owned(), address: address.to_owned(), attributes: Vec::new() };
    Peer { cluster: CLUSTER, store: STORE, epoch: EPOCH, endpoints: vec![endpoint] }
}

pub(crate) fn grant(access: Access, ranges: Vec<GrantedRange>) -> Grant {
    Grant {
        cluster: CLUSTER,
        store: STORE,
        epoch: EPOCH,
        access,
        expires: ClusterTime(0).after(LIFETIME),
        tenant: String::new(),
        holder: None,
        needs_proof: false,
        shares_memory: false,
        avoids_rdma: false,
        ranges,
    }
}

/// A grant of one range, made of the log entry `index`.
pub(crate) fn sealed(access: Access, offset: u64, len: u64, index: u64) -> SealedGrant {
    grant(access, vec![range(offset, len, index)]).seal(&KEY)
}

pub(crate) fn range(offset: u64, len: u64, index: u64) -> GrantedRange {
    GrantedRange { segment: 0, offset, len, index }
}

/// The receipt of a range.
pub(crate) fn receipt_of(offset: u64, len: u64, index: u64) -> Receipt {
    KEY.receipts().receipt(CLUSTER, STORE, EPOCH, &range(offset, len, index))
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes `bytes` at the start of the grant's first range.
pub(crate) async fn write(
    transport: &TcpTransport,
    peer: &Peer,
    grant: &SealedGrant,
    bytes: &[u8],
) -> Result<Checksum, TransferError> {
    let ops = [WriteOp { range: 0, offset: 0, from: vec![bytes.into()] }];
    transport.write(peer, grant, &ops, Seal::No, soon()).await.remove(0).map(|written| written.checksum)
}

/// The checksums of writes.
pub(crate) fn sums(answers: Vec<Result<Written, TransferError>>) -> Vec<Result<Checksum, TransferError>> {
    answers.into_iter().map(|answer| answer.map(|written| written.checksum)).collect()
}

/// Reads `len` bytes from the start of the grant's first range.
pub(crate) async fn read(
    transport: &TcpTransport,
    peer: &Peer,
    grant: &SealedGrant,
    len: usize,
) -> Result<(Vec<u8>, Checksum), TransferError> {
    let mut bytes = vec![0; len];
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut bytes).into()] }];
    let checksum = transport.read(peer, grant, &mut ops, soon()).await.remove(0)?;
    Ok((bytes, checksum))
}

/// The reason of a refusal.
pub(crate) fn refusal<T>(answer: Result<T, TransferError>) -> String {
    match answer {
        Err(TransferError::Refused { reason, .. }) => reason,
        Err(other) => panic!("not a refusal: {other}"),
        Ok(_) => panic!("not a refusal: it was served"),
    }
}

/// Waits until `holds`, for at most 20 s.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = soon();
    while !holds() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
