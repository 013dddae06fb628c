//! Devices that can't be used, fail and come back, and the options of how they are used. It needs a verbs device, and a network card for
//! a second one: see tests/rdma/run.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod verbs;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_transfer::{
    HostMemory, Rdma, RdmaDevices, RdmaOptions, TcpOptions, TcpTransport, Timeouts, Transport as _,
    Transports,
};
use mc_types::Access;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::common::{Store, pattern, read, sealed, until, write};
use crate::verbs::{Connected, Fault};

const LEN: u64 = 64 << 20;
const MIB: usize = 1 << 20;

fn run(program: &str, arguments: &str) {
    let done = Command::new(program).args(arguments.split_whitespace()).status().unwrap();
    assert!(done.success(), "{program} {arguments}");
}

/// Makes the second device, without an address but the link-local one that each active port has. It stays: its end waits for that of whoever has opened it.
fn second_device() {
    run("ip", "link set dev dummy0 down");
    run("ip", "addr flush dev dummy0");
    if !Path::new("/sys/class/infiniband/rxe1").exists() {
        run("rdma", "link add rxe1 type rxe netdev dummy0");
    }
}

fn second_device_with_address() {
    second_device();
    run("ip", "link set dev dummy0 up");
    run("ip", "addr add 10.7.0.1/24 dev dummy0");
}

fn open(devices: &RdmaDevices) -> Arc<Rdma> {
    Rdma::open(devices, &RdmaOptions::default()).unwrap()
}

/// Opens both devices, once the system has given the second one its address.
async fn open_both() -> Arc<Rdma> {
    second_device_with_address();
    let mut opened = open(&RdmaDevices::Auto);
    until("both devices can be used", || {
        let is_good = names(&opened) == ["rxe0", "rxe1"];
        if !is_good {
            opened = open(&RdmaDevices::Auto);
        }
        is_good
    })
    .await;
    opened
}

fn first_device() -> RdmaDevices {
    RdmaDevices::Named(vec!["rxe0".to_owned()])
}

fn names(rdma: &Rdma) -> Vec<&str> {
    let mut names: Vec<&str> = rdma.names().collect();
    names.sort_unstable();
    names
}

/// Whether only the first device can be used, and the second one is named, with the reason.
fn lacks_second(rdma: &Rdma, why: &str) -> bool {
    let lacks = rdma.lacks();
    names(rdma) == ["rxe0"] && lacks.len() == 1 && lacks[0].contains("rxe1") && lacks[0].contains(why)
}

async fn store(rdma: &Arc<Rdma>) -> Store {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Store::start_full(listener, LEN, Timeouts::default(), 512 << 20, 1_000, Some(rdma.clone()))
}

/// A client, and the bytes that it moved by RDMA.
fn client(rdma: &Arc<Rdma>, only: bool) -> (Arc<TcpTransport>, Arc<AtomicU64>) {
    let moved = Arc::new(AtomicU64::new(0));
    let count = moved.clone();
    let on_moved = Box::new(move |_, bytes| {
        count.fetch_add(bytes, Ordering::SeqCst);
    });
    (
        Arc::new(TcpTransport::with_rdma(
            TcpOptions::default(),
            &HostMemory::new(),
            rdma.clone(),
            only,
            on_moved,
        )),
        moved,
    )
}

/// Moves bytes both ways by RDMA alone, with several connections at once.
async fn moves_bytes(store: &Store, rdma: &Arc<Rdma>) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let (client, moved) = client(rdma, true);
    for _ in 0..3 {
        let index = 1 + LAST.fetch_add(1, Ordering::SeqCst);
        let bytes = pattern(4 * MIB, index);
        write(&client, &store.peer(), &sealed(Access::Write, 0, LEN, index), &bytes).await.unwrap();
        let back = read(&client, &store.peer(), &sealed(Access::Read, 0, LEN, index), bytes.len()).await;
        assert!(back.unwrap().0 == bytes);
    }
    assert_eq!(moved.load(Ordering::SeqCst), 3 * 2 * 4 * MIB as u64);
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_second_device_is_named_while_it_is_down_or_has_no_address_and_used_from_then_on() {
    second_device();
    // The first one has its IPv4 address there.
    let options = "gid-index=1".parse().unwrap();
    let rdma = Rdma::open(&RdmaDevices::Auto, &options).unwrap();
    assert!(lacks_second(&rdma, "it is down"), "{rdma:?}");
    let store = store(&rdma).await;
    store.segment.register(&rdma).unwrap();
    moves_bytes(&store, &rdma).await;
    run("ip", "link set dev dummy0 up");
    until("its port is up", || lacks_second(&rdma, "it has no such address")).await;
    moves_bytes(&store, &rdma).await;
    run("ip", "addr add 10.7.0.1/24 dev dummy0");
    until("it has an address", || names(&rdma) == ["rxe0", "rxe1"]).await;
    assert_eq!(rdma.lacks(), [""; 0]);
    moves_bytes(&store, &rdma).await;
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_second_device_that_fails_its_self_test_is_left_and_named() {
    drop(open_both().await);
    let _fault = verbs::have("rxe1", Fault::NoPairs);
    let rdma = open(&RdmaDevices::Auto);
    assert!(lacks_second(&rdma, "fails its self-test"), "{rdma:?}");
    let store = store(&rdma).await;
    store.segment.register(&rdma).unwrap();
    moves_bytes(&store, &rdma).await;
    let both = RdmaDevices::Named(vec!["rxe0".to_owned(), "rxe1".to_owned()]);
    let why = Rdma::open(&both, &RdmaOptions::default()).unwrap_err().to_string();
    assert!(why.contains("rxe1 fails its self-test"), "it was asked for: {why}");
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_second_device_that_registers_no_memory_is_named_and_the_first_goes_on() {
    let rdma = open_both().await;
    let store = store(&rdma).await;
    let fault = verbs::have("rxe1", Fault::NoMemory);
    let why = store.segment.register(&rdma).unwrap_err().to_string();
    assert!(why.contains("rxe1") && !why.contains("rxe0"), "{why}");
    drop(fault);
    moves_bytes(&store, &open(&RdmaDevices::Auto)).await;
    // Now the client's.
    store.segment.register(&rdma).unwrap();
    let of_client = open(&RdmaDevices::Auto);
    let _fault = verbs::have("rxe1", Fault::NoMemory);
    moves_bytes(&store, &of_client).await;
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn devices_of_one_subnet_go_together_whatever_their_numbers() {
    drop(open_both().await);
    let named = |names: [&str; 2]| RdmaDevices::Named(names.map(str::to_owned).to_vec());
    let of_store = open(&named(["rxe1", "rxe0"]));
    let store = store(&of_store).await;
    store.segment.register(&of_store).unwrap();
    // Devices of two subnets don't reach each other.
    moves_bytes(&store, &open(&named(["rxe0", "rxe1"]))).await;
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn completion_queues_are_spread_over_the_processors() {
    let rdma = open(&first_device());
    let store = store(&rdma).await;
    store.segment.register(&rdma).unwrap();
    verbs::vectors();
    moves_bytes(&store, &rdma).await;
    let vectors = verbs::vectors();
    assert!(vectors.contains(&0) && vectors.contains(&1), "{vectors:?} of a guest with two processors");
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_device_that_has_failed_is_not_used_until_it_is_opened_again() {
    let rdma = open_both().await;
    let store = store(&rdma).await;
    store.segment.register(&rdma).unwrap();
    let fault = verbs::have("rxe1", Fault::Fatal);
    run("ip", "addr add 10.7.0.2/24 dev dummy0");
    until("it has failed", || lacks_second(&rdma, "it has failed")).await;
    drop(fault);
    moves_bytes(&store, &rdma).await;
    let again = open(&RdmaDevices::Auto);
    assert_eq!(names(&again), ["rxe0", "rxe1"]);
    // Changes after the failure, which the new one follows.
    run("ip", "link set dev dummy0 down");
    until("its port is down", || names(&again) == ["rxe0"]).await;
    second_device_with_address();
    until("it is up again", || names(&again) == ["rxe0", "rxe1"]).await;
    assert!(lacks_second(&rdma, "it has failed"), "{rdma:?}");
    moves_bytes(&store, &rdma).await;
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_way_that_failed_is_probed_without_a_call() {
    let rdma = open(&first_device());
    let store = store(&rdma).await;
    store.segment.register(&rdma).unwrap();
    let (client, moved) = client(&rdma, false);
    let fault = verbs::have("rxe0", Fault::NoPairs);
    let (bytes, grant) = (pattern(MIB, 1), sealed(Access::Write, 0, LEN, 1));
    write(&client, &store.peer(), &grant, &bytes).await.unwrap();
    let by_rdma = || client.peers()[0].transports[0].clone();
    // The first ones may go over TCP because their buffers are not registered yet.
    while by_rdma().how == "not tried yet" {
        write(&client, &store.peer(), &grant, &bytes).await.unwrap();
    }
    assert!(by_rdma().how.contains("make a queue pair"), "{:?}", by_rdma());
    assert_eq!(moved.load(Ordering::SeqCst), 0);
    drop(fault);
    until("a probe has gone by it", || by_rdma().usable).await;
    assert_eq!(store.counters().rdma_pairs.load(Ordering::SeqCst), 1, "that of the probe");
    write(&client, &store.peer(), &sealed(Access::Write, 0, LEN, 2), &bytes).await.unwrap();
    assert_eq!(moved.load(Ordering::SeqCst), MIB as u64);
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn each_option_takes_effect_at_both_ends() {
    let text = "traffic-class=104,service-level=3,gid-index=0,pkey=0x7fff,port=1,timeout=17";
    let options: RdmaOptions = text.parse().unwrap();
    let rdma = Rdma::open(&first_device(), &options).unwrap();
    let store = store(&rdma).await;
    store.segment.register(&rdma).unwrap();
    verbs::connected();
    moves_bytes(&store, &rdma).await;
    let connected = verbs::connected();
    let expected =
        Connected { port: 1, gid_index: 0, traffic_class: 104, service_level: 3, timeout: 17, retries: 6 };
    assert!(connected.len() > 1 && connected.iter().all(|pair| *pair == expected), "{connected:?}");
    // The defaults differ.
    let rdma = open(&first_device());
    verbs::connected();
    store.stop();
    let store = self::store(&rdma).await;
    store.segment.register(&rdma).unwrap();
    moves_bytes(&store, &rdma).await;
    let expected =
        Connected { port: 1, gid_index: 1, traffic_class: 0, service_level: 0, timeout: 14, retries: 6 };
    let connected = verbs::connected();
    assert!(connected.len() > 1 && connected.iter().all(|pair| *pair == expected), "{connected:?}");
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn an_option_that_no_device_can_follow_is_named() {
    for (option, named) in [
        ("port=9", "port 9 was asked for"),
        ("gid-index=200", "an address with index 200 was asked for"),
        ("pkey=0x1234", "no partition key 0x1234"),
    ] {
        let options: RdmaOptions = option.parse().unwrap();
        let why = Rdma::for_process(Transports::Rdma, &first_device(), &options).unwrap_err().to_string();
        assert!(why.contains("rxe0") && why.contains(named), "{option}: {why}");
        let reports = Rdma::report(&first_device(), &options).unwrap();
        assert!(!reports[0].usable && reports[0].reasons.join("; ").contains(named), "{reports:?}");
    }
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_client_beyond_the_number_of_pairs_uses_tcp_until_another_is_idle() {
    let options: RdmaOptions = "pairs=1".parse().unwrap();
    let rdma = Rdma::open(&first_device(), &options).unwrap();
    let store = store(&rdma).await;
    store.segment.register(&rdma).unwrap();
    let (busy, of_busy) = client(&rdma, true);
    let (peer, writer, stop) = (store.peer(), busy.clone(), CancellationToken::new());
    let stopped = stop.clone();
    let writing = tokio::spawn(async move {
        let (grant, bytes) = (sealed(Access::Write, 0, LEN / 2, 1), pattern(MIB, 1));
        while !stopped.is_cancelled() {
            write(&writer, &peer, &grant, &bytes).await.unwrap();
        }
    });
    until("it has the pair", || of_busy.load(Ordering::SeqCst) > 0).await;
    let (second, of_second) = client(&rdma, false);
    let grant = sealed(Access::Write, LEN / 2, LEN / 2, 1);
    let bytes = pattern(MIB, 2);
    write(&second, &store.peer(), &grant, &bytes).await.unwrap();
    let by_rdma = || second.peers()[0].transports[0].clone();
    while by_rdma().how == "not tried yet" {
        write(&second, &store.peer(), &grant, &bytes).await.unwrap();
    }
    assert_eq!(of_second.load(Ordering::SeqCst), 0);
    assert!(by_rdma().how.contains("too many clients"), "{:?}", by_rdma());
    stop.cancel();
    writing.await.unwrap();
    // The first one keeps its connection.
    until("a probe got a pair", || by_rdma().usable).await;
    drop(busy);
    write(&second, &store.peer(), &grant, &bytes).await.unwrap();
    assert_eq!(of_second.load(Ordering::SeqCst), MIB as u64);
}
