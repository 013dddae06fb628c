//! The same with TLS: bytes, refusals, and peers that are not who they should be.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use mc_net::Tls;
use mc_transfer::{Checksum, ReadOp, TcpOptions, TcpTransport, Timeouts, TransferError, Transport as _};
use mc_types::{Access, STORE_NAME, STORE_TENANT, TlsLevel};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::certificates::{CertificateAuthority, at, ends, options};
use crate::common::relay::Relay;
use crate::common::{Store, pattern, peer_at, read, refusal, sealed, soon, until, write};
use crate::sharing::{self, beside_a_large_call};

const MIB: usize = 1 << 20;

async fn start(tls: Arc<Tls>) -> Store {
    Store::start_secured(4096, Timeouts::default(), tls).await
}

/// Writes some bytes and reads them back.
async fn use_store(store: &Store, options: TcpOptions) -> Result<(), TransferError> {
    let (transport, bytes) = (TcpTransport::new(options), pattern(1000, 1));
    write(&transport, &store.peer(), &sealed(Access::Write, 0, 1000, 1), &bytes).await?;
    let (back, _) = read(&transport, &store.peer(), &sealed(Access::Read, 0, 1000, 1), 1000).await?;
    assert!(back == bytes);
    Ok(())
}

/// Why no connection could be made.
fn no_connection(answer: Result<(), TransferError>) -> String {
    match answer {
        Err(TransferError::Connect { reason, .. }) => reason,
        other => panic!("not a failed connect: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_equal_both_ways() {
    let (store, options) = ends(true, 10 * MIB as u64).await;
    let relay = Relay::to(&store.address).await;
    let (transport, peer) = (TcpTransport::new(options), peer_at(&relay.address));
    for (size, index) in [0, 1, 4096, 64 << 10, 65_537, MIB, 9 * MIB + 7].into_iter().zip(1..) {
        let (bytes, offset) = (pattern(size, index), 192);
        let granted = |access| sealed(access, offset, size as u64, index);
        let wrote = write(&transport, &peer, &granted(Access::Write), &bytes).await;
        assert_eq!(wrote, Ok(Checksum::of(&bytes)), "{size} bytes written");
        assert!(store.bytes(offset, size) == bytes, "{size} bytes in the store");
        let (back, sum) = read(&transport, &peer, &granted(Access::Read), size).await.unwrap();
        assert!(back == bytes && sum == Checksum::of(&bytes), "{size} bytes read");
    }
    let open = pattern(4096, 2);
    let seen = [relay.recorded(), relay.recorded_down()];
    assert!(seen.iter().all(|wire| !wire.windows(32).any(|part| part == &open[..32])), "in the open");
}

/// Lengths of the records in some bytes.
fn records(mut wire: &[u8]) -> Vec<usize> {
    let mut lens = Vec::new();
    while let [kind, 3, 3, high, low, rest @ ..] = wire {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        assert!(*kind == 23 && rest.len() >= len, "a record of bytes");
        lens.push(len);
        wire = &rest[len..];
    }
    assert!(wire.is_empty());
    lens
}

#[tokio::test]
async fn a_small_request_and_its_answer_are_one_record_each() {
    let (store, options) = ends(true, 1 << 20).await;
    let relay = Relay::to(&store.address).await;
    let (transport, peer) = (TcpTransport::new(options), peer_at(&relay.address));
    let granted = |access| sealed(access, 0, 4096, 1);
    write(&transport, &peer, &granted(Access::Write), &[1; 4096]).await.unwrap();
    let (up, down) = (relay.recorded().len(), relay.recorded_down().len());
    write(&transport, &peer, &granted(Access::Write), &[2; 4096]).await.unwrap();
    read(&transport, &peer, &granted(Access::Read), 4096).await.unwrap();
    let (up, down) = (records(&relay.recorded()[up..]), records(&relay.recorded_down()[down..]));
    assert!(matches!(up[..], [4097..=5000, ..=500]), "{up:?}");
    assert!(matches!(down[..], [..=100, 4097..=5000]), "{down:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_calls_share_a_connection() {
    let (store, options) = ends(true, sharing::LEN).await;
    let transport = TcpTransport::new(TcpOptions { connections_per_peer: 1, ..options });
    let peer = store.peer();
    let one = async |nth: u64| {
        let (len, place) = ([1, 100, 4096, 20_000, 32_000][nth as usize % 5], nth * (64 << 10));
        let bytes = pattern(len, nth);
        let granted = |access| sealed(access, place, len as u64, 7);
        write(&transport, &peer, &granted(Access::Write), &bytes).await.unwrap();
        assert!(read(&transport, &peer, &granted(Access::Read), len).await.unwrap().0 == bytes);
    };
    let small = join_all((0..400).map(one));
    let (_, well) = beside_a_large_call(&store, &peer, &transport, small).await;
    assert!(well);
    assert_eq!(store.counters().connections_opened.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_store_that_requires_tls_refuses_others_and_says_why() {
    let authority = CertificateAuthority::new();
    let store = start(authority.issue("store/kv")).await;
    let reason = refusal(use_store(&store, TcpOptions::default()).await);
    assert!(reason.contains("requires TLS") && reason.contains("MC_TLS_DIR"), "{reason}");
    let reason = refusal(use_store(&store, options(authority.anonymous())).await);
    assert!(reason.contains("show no identity"), "{reason}");
    assert_eq!(store.counters().refusals.load(Ordering::Relaxed), 2);
    for role in ["tenant/team/rw/engine", "admin/root", "store/other", "master/m1"] {
        use_store(&store, options(authority.issue(role))).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_does_not_require_tls_serves_all() {
    for level in [TlsLevel::Allow, TlsLevel::Prefer] {
        let authority = CertificateAuthority::new();
        let store = start(at(level, authority.issue("store/kv"))).await;
        use_store(&store, TcpOptions::default()).await.unwrap();
        use_store(&store, options(authority.anonymous())).await.unwrap();
        use_store(&store, options(authority.issue("tenant/team/ro/engine"))).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_prefers_tls_goes_on_without_and_one_that_requires_it_does_not() {
    let (authority, store) = (CertificateAuthority::new(), Store::start(4096).await);
    let client = || authority.issue("tenant/team/rw/engine");
    let reason = no_connection(use_store(&store, options(client())).await);
    assert!(reason.contains("no TLS with"), "{reason}");
    for level in [TlsLevel::Allow, TlsLevel::Prefer] {
        use_store(&store, options(at(level, client()))).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_refuses_another_store_than_the_one_that_its_endpoint_names() {
    let authority = CertificateAuthority::new();
    let store = start(authority.issue("store/kv")).await;
    let transport = TcpTransport::new(options(authority.issue("tenant/team/rw/engine")));
    for (name, is_it) in [("kv", true), ("kv-3", true), ("kv2", false), ("other", false)] {
        let mut peer = store.peer();
        peer.endpoints[0].attributes = vec![(STORE_NAME.to_owned(), name.to_owned())];
        let written = write(&transport, &peer, &sealed(Access::Write, 0, 1000, 1), &pattern(1000, 1)).await;
        if is_it {
            written.unwrap();
        } else {
            let reason = no_connection(written.map(drop));
            assert!(reason.contains(&format!("the store {name} is expected there")), "{reason}");
        }
    }
}

#[tokio::test]
async fn a_client_accepts_a_store_of_one_tenant_by_the_credential_of_that_tenant_alone() {
    let authority = CertificateAuthority::new();
    let transport = TcpTransport::new(options(authority.issue("tenant/team/ro/engine")));
    for (server, tenant, why) in [
        ("tenant/team/rw/kv", Some("team"), None),
        ("tenant/default/rw/kv", Some(""), None),
        ("tenant/other/rw/kv", Some("team"), Some("the store kv-3 of tenant team is expected there")),
        ("tenant/default/rw/kv", Some("team"), Some("the store kv-3 of tenant team is expected there")),
        ("tenant/team/rw/kv", Some(""), Some("the store kv-3 of tenant default is expected there")),
        ("tenant/team/rw/kv2", Some("team"), Some("the store kv-3 of tenant team is expected there")),
        ("tenant/team/ro/kv", Some("team"), Some("not of a tenant's writer")),
        ("store/kv", Some("team"), Some("not of a tenant's writer")),
        ("tenant/team/rw/kv", None, Some("not of a store")),
    ] {
        let store = start(authority.issue(server)).await;
        let mut peer = store.peer();
        let said = [(STORE_NAME, Some("kv-3")), (STORE_TENANT, tenant)];
        let said = said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        peer.endpoints[0].attributes = said.collect();
        let written = write(&transport, &peer, &sealed(Access::Write, 0, 1000, 1), &pattern(1000, 1)).await;
        let Some(why) = why else {
            written.unwrap();
            continue;
        };
        let reason = no_connection(written.map(drop));
        assert!(reason.contains(why), "{server} as {tenant:?}: {reason}");
    }
}

#[tokio::test]
async fn a_client_refuses_a_server_that_is_not_a_store_of_its_cluster() {
    let (authority, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    for (server, why) in [
        (authority.issue("tenant/team/rw/engine"), "not of a store"),
        (authority.issue("master/m1"), "not of a store"),
        (authority.issue_until("store/kv", 2000), "xpired"),
        (other.issue("store/kv"), "invalid peer certificate"),
        (authority.anonymous(), "no TLS with"),
    ] {
        let store = start(server).await;
        let reason = no_connection(use_store(&store, options(authority.issue("admin/root"))).await);
        assert!(reason.contains(why), "{reason}");
    }
}

#[tokio::test]
async fn a_store_refuses_a_client_whose_certificate_has_ended_or_is_of_another_authority() {
    let (authority, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let store = start(authority.issue("store/kv")).await;
    let impostor = authority.with_pair_of(&other, "admin/root");
    for client in [authority.issue_until("admin/root", 2000), impostor] {
        no_connection(use_store(&store, options(client)).await);
    }
    let broken = || store.counters().broken_connections.load(Ordering::Relaxed);
    until("both were counted", || broken() == 2).await;
    assert!(use_store(&store, options(authority.issue("admin/root"))).await.is_ok());
}

#[tokio::test]
async fn a_peer_that_stalls_in_the_handshake_is_dropped() {
    let timeouts = Timeouts { stall: Duration::from_millis(100), ..Timeouts::default() };
    let tls = CertificateAuthority::new().issue("store/kv");
    let store = Store::start_secured(4096, timeouts, tls).await;
    let ended = async |mut peer: TcpStream| {
        // A reset is an end as well.
        drop(timeout(Duration::from_secs(20), peer.read_to_end(&mut Vec::new())).await.expect("dropped"));
    };
    // It says nothing, and it begins a record of 512 bytes and stops.
    ended(TcpStream::connect(&store.address).await.unwrap()).await;
    let mut half = TcpStream::connect(&store.address).await.unwrap();
    half.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await.unwrap();
    ended(half).await;
    // It sends a byte now and then.
    let mut slow = TcpStream::connect(&store.address).await.unwrap();
    slow.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
    let closed = || store.counters().connections_closed.load(Ordering::Relaxed);
    let trickle = async {
        while closed() < 3 {
            let _ = slow.write_all(&[0]).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), trickle).await.expect("dropped");
    assert_eq!(store.counters().broken_connections.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_that_flips_on_the_way_breaks_the_connection_and_is_not_delivered() {
    let (store, options) = ends(true, MIB as u64).await;
    let (relay, good) = (Relay::to(&store.address).await, pattern(MIB, 1));
    let (peer, len) = (peer_at(&relay.address), MIB as u64);
    let broken = |answer: Result<(), TransferError>| match answer {
        Err(TransferError::Broken { reason, .. }) => reason,
        other => panic!("not broken: {other:?}"),
    };
    let is_prefix = |bytes: &[u8], rest: u8| {
        let begun = bytes.iter().zip(&good).take_while(|(got, good)| got == good).count();
        (MIB / 4..MIB / 2 + 1).contains(&begun) && bytes[begun..].iter().all(|byte| *byte == rest)
    };

    // On the way to the store.
    relay.flip_up_after(len / 2);
    let granted = sealed(Access::Write, 0, len, 1);
    broken(write(&TcpTransport::new(options.clone()), &peer, &granted, &good).await.map(drop));
    assert!(is_prefix(&store.bytes(0, MIB), 0));
    until("it was counted", || store.counters().broken_connections.load(Ordering::Relaxed) == 1).await;

    // On the way to the client.
    let transport = TcpTransport::new(TcpOptions { connections_per_peer: 1, ..options });
    write(&transport, &store.peer(), &granted, &good).await.unwrap();
    relay.flip_down_after(len / 2);
    let mut bytes = vec![0xAA; MIB];
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut bytes).into()] }];
    let granted = sealed(Access::Read, 0, len, 1);
    let answer = transport.read(&peer, &granted, &mut ops, soon()).await.remove(0);
    let reason = broken(answer.map(drop));
    assert!(reason.contains("TLS has failed"), "{reason}");
    assert!(is_prefix(&bytes, 0xAA));
    assert!(read(&transport, &peer, &granted, MIB).await.unwrap().0 == good, "over another connection");
}
