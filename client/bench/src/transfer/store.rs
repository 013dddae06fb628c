//! The store of the bench, in a process of its own.

use std::hint::black_box;
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use mc_console::{Ended, Global};
use mc_transfer::{
    Authority, DataEncryption, DataServer, DataServerConfig, Peer, PeerEndpoint, Rdma, Segment, ShmAccess,
    fence_limit, socket_name,
};
use mc_types::{
    Access, ByteSize, Clock, ClusterId, ClusterTime, Grant, GrantKey, GrantedRange, SealedGrant,
    SegmentEpoch, StoreId,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug, Args)]
pub(crate) struct TransferStoreArgs {
    #[arg(long)]
    pub(crate) region: ByteSize,
}

const LIFETIME: Duration = Duration::from_secs(3600);
/// Size of the writes of a plain stream.
pub(super) const CHUNK: usize = 1 << 20;
/// Memory that plain answers come from: more than the processor's caches hold.
pub(super) const PLAIN_REGION: usize = 256 << 20;

/// Identity, key and addresses of a store that serves, as its process prints them.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    cluster: String,
    store: u64,
    epoch: u64,
    key: [u8; 32],
    address: String,
    /// Address of plain streams.
    raw: String,
}

/// The store's process, which ends with this value.
pub(super) struct Child {
    pub(super) target: Arc<Target>,
    /// Address at which plain streams send or receive: see [`serve`].
    pub(super) raw: String,
    _process: tokio::process::Child,
}

/// The store, as callers use it.
pub(super) struct Target {
    pub(super) peer: Peer,
    /// Grant to read all of its memory.
    pub(super) read: SealedGrant,
    key: GrantKey,
}

impl Child {
    pub(super) async fn start(global: &Global, region: ByteSize) -> Result<Self> {
        let mut command = tokio::process::Command::new(std::env::current_exe()?);
        command
            .args(["transfer-store", "--region", &region.0.to_string()])
            .args(["--transport", &global.transport.to_string()])
            .args(["--rdma-devices", &global.rdma_devices.to_string()])
            .args(["--rdma-options", &global.rdma_options.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn().context("cannot start the bench's store")?;
        let out = process.stdout.take().context("the store has no standard output")?;
        let line = BufReader::new(out).lines().next_line().await?;
        let line = line.context("the bench's store ended before it was ready: see its message above")?;
        let ready: Ready = serde_json::from_str(&line).context("the first line of the bench's store")?;
        let peer = Peer {
            cluster: ready.cluster.parse().context("cannot parse the cluster id of the bench's store")?,
            store: StoreId(ready.store),
            epoch: SegmentEpoch(ready.epoch),
            endpoints: vec![PeerEndpoint {
                transport: "tcp".to_owned(),
                address: ready.address,
                attributes: Vec::new(),
            }],
        };
        let key = GrantKey(ready.key);
        let read = grant(&peer, &key, Access::Read, 1, std::iter::once((0, region.0)));
        let target = Arc::new(Target { peer, read, key });
        Ok(Self { target, raw: ready.raw, _process: process })
    }
}

impl Target {
    /// Makes a grant to write ranges (offset and length), of an allocation that is newer than all before.
    pub(super) fn write_grant(&self, index: u64, ranges: impl Iterator<Item = (u64, u64)>) -> SealedGrant {
        grant(&self.peer, &self.key, Access::Write, index, ranges)
    }
}

/// Mean time to seal a grant of 64 ranges that needs proofs, as a master does, and to open it, as a store does, in microseconds.
pub(super) fn grant_us() -> f64 {
    const TIMES: u32 = 10_000;
    let peer =
        Peer { cluster: ClusterId(1), store: StoreId(2), epoch: SegmentEpoch(3), endpoints: Vec::new() };
    let key = GrantKey::random();
    let ranges = || (0..64).map(|nth| (nth << 20, 1 << 20));
    let begun = std::time::Instant::now();
    for index in 0..TIMES {
        let sealed = grant(&peer, &key, Access::Read, u64::from(index), ranges());
        let opened = Grant::open(black_box(&sealed.bytes), &key);
        assert!(black_box(opened).is_ok_and(|(grant, _)| grant.ranges.len() == 64));
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES)
}

fn grant(
    peer: &Peer,
    key: &GrantKey,
    access: Access,
    index: u64,
    ranges: impl Iterator<Item = (u64, u64)>,
) -> SealedGrant {
    let range = |(offset, len)| GrantedRange { segment: 0, offset, len, index };
    let expires = ClusterTime(0).after(LIFETIME);
    let (cluster, store, epoch) = (peer.cluster, peer.store, peer.epoch);
    let (tenant, ranges) = (String::new(), ranges.map(range).collect());
    Grant {
        cluster,
        store,
        epoch,
        access,
        expires,
        tenant,
        holder: None,
        needs_proof: true,
        shares_memory: false,
        avoids_rdma: false,
        ranges,
    }
    .seal(key)
}

/// Serves one segment until standard input ends, and plain streams: see [`plain`].
pub(crate) async fn serve(global: &Global, args: &TransferStoreArgs) -> Result<Ended> {
    let (cluster, store) = (ClusterId::random(), StoreId::random());
    let (epoch, key) = (SegmentEpoch::random(), GrantKey::random());
    let authority = Arc::new(Authority::new(Clock::monotonic()));
    authority.learn(cluster, ClusterTime(0));
    let region = args.region.0;
    let segment = tokio::task::block_in_place(|| Segment::allocate(0, region, &mut |_| {}))?;
    let rdma = Rdma::for_process(global.transport, &global.rdma_devices, &global.rdma_options)?.ok();
    if let Some(rdma) = &rdma {
        tokio::task::block_in_place(|| segment.register(rdma))?;
    }
    let server = Arc::new(DataServer::new(DataServerConfig {
        store,
        epoch,
        key: GrantKey(key.0),
        segments: vec![segment],
        authority,
        grant_lifetime: LIFETIME,
        fence_bytes: fence_limit(region),
        max_connections: 1_000,
        rdma,
        max_pairs: 100,
        tls: None,
        data_encryption: DataEncryption::On,
    }));
    let stop = CancellationToken::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(server.clone().serve(listener, stop.clone()));
    if global.transport.shm() {
        let listener = mc_net::listen_local(&socket_name(store, epoch))?;
        tokio::spawn(server.serve_local(listener, ShmAccess::SameUid, stop.clone()));
    }
    let raw = std::net::TcpListener::bind("127.0.0.1:0")?;
    let raw_address = raw.local_addr()?.to_string();
    std::thread::spawn(move || {
        let memory: Arc<[u8]> = vec![1; PLAIN_REGION].into();
        for stream in raw.incoming().flatten() {
            let memory = memory.clone();
            std::thread::spawn(move || plain(stream, &memory));
        }
    });
    let ready = Ready {
        cluster: cluster.to_string(),
        store: store.0,
        epoch: epoch.0,
        key: key.0,
        address,
        raw: raw_address,
    };
    println!("{}", serde_json::to_string(&ready)?);
    // It ends with the bench.
    let _ = tokio::task::block_in_place(|| std::io::stdin().read(&mut [0]));
    stop.cancel();
    Ok(Ended::Well)
}

/// One plain stream, until the other end has had enough. It sends chunks after the byte `g`, and takes them after `p`. After
/// `s` and a length it answers each byte with so many, from one place after the other, and after `t` it answers so many with
/// a byte.
fn plain(mut stream: std::net::TcpStream, memory: &[u8]) {
    let _ = stream.set_nodelay(true);
    let (mut what, mut len, mut chunk) = ([0], [0; 8], vec![1; CHUNK]);
    let _ = stream.read_exact(&mut what);
    match what[0] {
        b'g' => while stream.write_all(&chunk).is_ok() {},
        b'p' => while stream.read(&mut chunk).is_ok_and(|n| n > 0) {},
        serial => {
            let _ = stream.read_exact(&mut len);
            let len = usize::try_from(u64::from_be_bytes(len)).unwrap_or(0).min(memory.len());
            let mut taken = vec![0; len];
            let mut places =
                (0..memory.len() / len.max(1)).cycle().map(|place| &memory[place * len..][..len]);
            let mut answer = || match serial {
                b's' => stream
                    .read_exact(&mut what)
                    .and_then(|()| stream.write_all(places.next().unwrap_or_default())),
                _ => stream.read_exact(&mut taken).and_then(|()| stream.write_all(&what)),
            };
            while answer().is_ok() {}
        }
    }
}
