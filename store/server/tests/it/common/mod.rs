//! Masters that do what a test tells them, over real sockets.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "test helpers; each test binary uses its part"
)]

mod fake;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use mc_net::TcpNetwork;
use mc_store::StartError;
use mc_store_server::{Server, StoreArgs};
use mc_testkit::until;
use mc_transfer::{Peer, PeerEndpoint};
use mc_types::{Access, ByteSize, Clock, ClusterTime, Grant, GrantKey, GrantedRange, SealedGrant};

pub use fake::{Event, FakeCluster};

pub const SEGMENT: u64 = 2 << 20;

/// A store on loopback with free ports.
pub fn config(masters: &[String], data_dir: &Path) -> StoreArgs {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    StoreArgs {
        segment: vec![ByteSize(SEGMENT)],
        masters: masters.iter().map(|master| master.parse().unwrap()).collect(),
        listen: any,
        http_listen: any,
        advertise: None,
        data_dir: data_dir.into(),
        segment_dir: None,
        name: Some("test".into()),
        shm: mc_transfer::ShmAccess::SameUid,
        transport: mc_transfer::Transports::Auto,
        rdma_devices: mc_transfer::RdmaDevices::Off,
        rdma_options: mc_transfer::RdmaOptions::default(),
        data_encryption: mc_transfer::DataEncryption::On,
    }
}

pub async fn try_start(args: StoreArgs) -> Result<Server, StartError> {
    Server::start(args, TcpNetwork::shared(), None, Clock::monotonic(), |_, _| {}).await
}

pub async fn start(args: StoreArgs) -> Server {
    try_start(args).await.unwrap()
}

/// A store that the cluster has mounted.
pub async fn mounted(cluster: &FakeCluster, data_dir: &Path) -> Server {
    let store = start(config(cluster.addresses(), data_dir)).await;
    until("mounted", async || store.store().ready()).await;
    store
}

/// The store as a client reaches it, and the key of its grants.
pub fn peer_of(store: &Server, cluster: &FakeCluster) -> (Peer, GrantKey) {
    let Event::Mount { key, tcp, .. } = cluster.mounts()[0].clone() else { panic!("a mount") };
    let peer = Peer {
        cluster: cluster.agreed().cluster,
        store: store.store().id(),
        epoch: store.store().epoch(),
        endpoints: vec![PeerEndpoint { transport: "tcp".into(), address: tcp, attributes: vec![] }],
    };
    (peer, key)
}

/// A grant of one range that outlasts a test.
pub fn grant(peer: &Peer, key: &GrantKey, access: Access, range: GrantedRange) -> SealedGrant {
    let &Peer { cluster, store, epoch, .. } = peer;
    let expires = ClusterTime(100_000);
    let (tenant, ranges) = (String::new(), vec![range]);
    Grant {
        cluster,
        store,
        epoch,
        access,
        expires,
        tenant,
        holder: None,
        needs_proof: false,
        shares_memory: false,
        avoids_rdma: false,
        ranges,
    }
    .seal(key)
}

/// Waits until `/readyz` says no, for a reason that contains all of `words`.
pub async fn until_not_ready_because(address: SocketAddr, words: &[&str]) {
    let started = Instant::now();
    loop {
        let (code, why) = http("GET", address, "/readyz").await;
        if code == 503 && words.iter().all(|word| why.contains(word)) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "/readyz never named {words:?}: {code} {why}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One HTTP request; the status code and the body.
pub async fn http(method: &str, address: SocketAddr, path: &str) -> (u16, String) {
    mc_process::http::request(method, &address.to_string(), path).await.unwrap()
}
