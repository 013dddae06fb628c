//! Many clients: none of them costs the store its heartbeats, and those that are too many are told so.

use std::time::Duration;

use futures::StreamExt as _;
use mc_testkit::{Daemon, http_get, until};
use mc_transfer::{
    Peer, PeerEndpoint, ReadOp, Seal, TcpOptions, TcpTransport, TransferError, Transport as _, WriteOp,
};
use mc_types::{Access, ClusterId, GrantedRange, SealedGrant, StoreId};
use tokio::time::Instant;

use crate::common::{Event, FakeCluster, grant};

const LEN: u64 = 4096;

/// `mc-store` as an executable, with limits of open descriptors as `ulimit` sets them, mounted at a master of the test.
struct Limited {
    cluster: FakeCluster,
    daemon: Daemon,
    http: String,
    peer: Peer,
    key: mc_types::GrantKey,
    _dir: tempfile::TempDir,
}

impl Limited {
    async fn start(ulimit: &str) -> Self {
        let (cluster, dir) = (FakeCluster::start(1), tempfile::tempdir().unwrap());
        let shell = format!("{ulimit} && exec \"$0\" \"$@\"");
        let store = env!("CARGO_BIN_EXE_mc-store");
        let (any, master) = ("127.0.0.1:0", cluster.addresses()[0].clone());
        let mut args = vec!["-c", &shell, store, "--segment", "2mb", "--masters", &master];
        args.extend(["--listen", any, "--http-listen", any]);
        let mut daemon = Daemon::start("/bin/sh", &dir.path().join("store"), &args);
        let http = daemon.address("http").await;
        // The first heartbeat tells that the answer to the mount has arrived: before it, a store serves nobody.
        until("it knows that it is mounted", async || cluster.beats(0) > 0).await;
        let Event::Mount { epoch, key, tcp, .. } = cluster.mounts()[0].clone() else { panic!("a mount") };
        let (_, status) = http_get(&http, "/status").await.unwrap();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let store: StoreId = status["id"].as_str().unwrap().parse().unwrap();
        let endpoints = vec![PeerEndpoint { transport: "tcp".into(), address: tcp, attributes: vec![] }];
        let peer = Peer { cluster: ClusterId(0xc1), store, epoch, endpoints };
        Self { cluster, daemon, http, peer, key, _dir: dir }
    }

    fn granted(&self, access: Access) -> SealedGrant {
        let range = GrantedRange { segment: 0, offset: 64, len: LEN, index: 7 };
        grant(&self.peer, &self.key, access, range)
    }

    async fn metric(&self, name: &str) -> f64 {
        let (_, metrics) = http_get(&self.http, "/metrics").await.unwrap();
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in\n{metrics}")).parse().unwrap()
    }

    /// Bytes of memory that it has.
    async fn resident(&self) -> u64 {
        let (_, status) = http_get(&self.http, "/status").await.unwrap();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", status["pid"])).unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    async fn heartbeats_go_on(&self) {
        let before = self.cluster.beats(0);
        until("five more heartbeats", async || self.cluster.beats(0) >= before + 5).await;
        assert_eq!(self.cluster.mounts().len(), 1, "it stayed mounted: {}", self.daemon.output());
    }
}

/// A client with a connection of its own, which it keeps.
fn client() -> TcpTransport {
    TcpTransport::new(TcpOptions {
        connections_per_peer: 1,
        // 2,000 at once on two busy cores take their time.
        connect_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(10),
        ..TcpOptions::default()
    })
}

async fn read(client: &TcpTransport, store: &Limited, patience: Duration) -> Result<Vec<u8>, TransferError> {
    let mut bytes = vec![0; LEN as usize];
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut bytes).into()] }];
    let grant = store.granted(Access::Read);
    client.read(&store.peer, &grant, &mut ops, Instant::now() + patience).await.remove(0)?;
    Ok(bytes)
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_clients_are_held_beside_the_heartbeats() {
    const CLIENTS: usize = 2_000;
    mc_process::raise_descriptor_limit().unwrap();
    // Given: a store with the soft limit that systems usually give.
    let store = Limited::start("ulimit -Sn 1024").await;
    let value: Vec<u8> = (0..LEN).map(|i| (i * 7) as u8).collect();
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&value).into()] }];
    let writer = client();
    let written =
        writer.write(&store.peer, &store.granted(Access::Write), &ops, Seal::No, Instant::now() + LONG).await;
    written[0].clone().unwrap();
    drop(writer);
    let before = store.resident().await;

    // When: 2,000 clients read, and keep their connections.
    let clients: Vec<TcpTransport> = (0..CLIENTS).map(|_| client()).collect();
    let reads = clients.iter().map(|client| read(client, &store, LONG));
    let read_by_all: Vec<_> = futures::stream::iter(reads).buffer_unordered(200).collect().await;

    // Then: each has its bytes, all connections are there, and the heartbeats go on.
    assert!(read_by_all.iter().all(|bytes| bytes.as_ref() == Ok(&value)), "{:?}", {
        read_by_all.iter().find(|bytes| bytes.is_err())
    });
    assert_eq!(store.metric("mc_store_connections").await, CLIENTS as f64);
    let each = store.resident().await.saturating_sub(before) / CLIENTS as u64;
    println!("{CLIENTS} idle connections: {each} bytes each in the store");
    assert!(each < 32 << 10, "{each} bytes each");
    store.heartbeats_go_on().await;
    for client in clients.iter().step_by(100) {
        assert_eq!(read(client, &store, LONG).await.as_ref(), Ok(&value), "a transfer still works");
    }
    assert_eq!(store.metric("mc_store_connections_opened_total").await, CLIENTS as f64 + 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_too_many_is_told_so_and_gets_its_turn_when_another_leaves() {
    let store = Limited::start("ulimit -n 128").await;
    let most = store.metric("mc_store_connections_limit").await as usize;
    assert_eq!(most, 64);
    let mut clients: Vec<TcpTransport> = (0..most).map(|_| client()).collect();
    for client in &clients {
        read(client, &store, LONG).await.unwrap();
    }

    // A refusal in words, which is about the moment and not about the store.
    let late = client();
    let refused = read(&late, &store, Duration::from_millis(300)).await;
    assert!(
        matches!(&refused, Err(TransferError::Refused { reason, .. }) if reason.contains("64 data connections")),
        "{refused:?}"
    );
    // Many that are refused, and many that say nothing, take nothing from the heartbeats.
    let address = &store.peer.endpoints[0].address;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    store.heartbeats_go_on().await;
    read(&clients[0], &store, LONG).await.unwrap();
    drop(silent);

    let waiting = read(&late, &store, LONG);
    tokio::pin!(waiting);
    let refusals = store.metric("mc_store_connections_refused_total").await;
    tokio::select! {
        early = &mut waiting => panic!("there is no room for it: {early:?}"),
        () = async {
            until("it asks again", async || store.metric("mc_store_connections_refused_total").await > refusals + 1.0).await;
        } => {}
    }
    clients.pop();
    waiting.await.unwrap();
}
