//! Reads through shared memory, both ends in this process over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

#[path = "common/mod.rs"]
mod common;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::certificates::{CertificateAuthority, at, options};
use common::host::{Host, MIB, client, client_over, read, read_under};
use common::relay::Relay;
use common::{CLUSTER, pattern, refusal, soon, until};
use mc_transfer::{
    Checksum, Peer, ReadOp, Seal, Segment, ShmAccess, TcpTransport, TransferError, Transport, WriteOp,
    socket_name,
};
use mc_types::{Access, Nonce, SealedGrant, SegmentEpoch, TlsLevel};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};

/// Bytes of a client's hello over TCP.
const HELLO_LEN: u64 = 40;

#[tokio::test]
async fn reads_of_every_size_go_through_shared_memory_and_need_no_answer() {
    let host = Host::start(ShmAccess::SameUid, 8 * MIB).await;
    let (transport, shared) = client(ShmAccess::SameUid);
    let (one, two) = (pattern(3 * MIB + 5, 1), pattern(MIB, 2));
    host.write(64, &one, 5).await;
    host.write(4 * MIB as u64, &two, 6).await;

    // Ranges of two objects, into several buffers.
    let grant = host.grant(Access::Read, &[(64, one.len(), 5), (4 * MIB as u64, two.len(), 6)]);
    let (mut a, mut b, mut c) = (vec![0; 10], vec![0; 2 * MIB], vec![0; 1000]);
    let mut ops = [
        ReadOp { range: 0, offset: 7, into: vec![(&mut a).into(), (&mut []).into(), (&mut b).into()] },
        ReadOp { range: 1, offset: 500, into: vec![(&mut c).into()] },
    ];
    let answers = transport.read(&host.peer, &grant, &mut ops, soon()).await;
    assert_eq!([a, b].concat(), one[7..7 + 10 + 2 * MIB]);
    assert_eq!(c, two[500..1500]);
    let sums = [Checksum::of(&one[7..7 + 10 + 2 * MIB]), Checksum::of(&two[500..1500])];
    assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), sums);
    assert_eq!(shared.load(Ordering::SeqCst), 10 + 2 * MIB as u64 + 1000);

    assert_eq!(read(&transport, &host, &host.peer, (64, 1, 5)).await.unwrap(), one[..1]);
    assert_eq!(read(&transport, &host, &host.peer, (64, 0, 5)).await.unwrap(), [0; 0]);
    assert_eq!(shared.load(Ordering::SeqCst), 10 + 2 * MIB as u64 + 1001);
    let counters = host.server.counters();
    let asked = [&counters.reads, &counters.checks].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(asked, [0, 0]);
}

#[tokio::test]
async fn a_newer_neighbour_in_a_block_makes_the_reader_ask() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let (transport, shared) = client(ShmAccess::SameUid);
    let (old, new) = (pattern(5_000, 1), pattern(1_000, 2));
    host.write(0, &old, 5).await;
    host.write(5_056, &new, 6).await;
    assert_eq!(read(&transport, &host, &host.peer, (0, 5_000, 5)).await.unwrap(), old);
    let checks = || host.server.counters().checks.load(Ordering::SeqCst);
    assert_eq!(checks(), 1);
    assert_eq!(read(&transport, &host, &host.peer, (5_056, 1_000, 6)).await.unwrap(), new);
    assert_eq!(read(&transport, &host, &host.peer, (0, 4_096, 5)).await.unwrap(), old[..4_096]);
    assert_eq!(checks(), 1, "other blocks");
    let all = 5_000 + 1_000 + 4_096;
    assert_eq!(shared.load(Ordering::SeqCst), all);
    // Also of those that it was not asked about.
    let told = || host.server.counters().shm_bytes_read.load(Ordering::SeqCst) == all;
    until("the store is told of all bytes", told).await;
}

#[tokio::test]
async fn a_reader_whose_bytes_were_overwritten_before_it_asked_is_told() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let relay = Relay::to(&host.peer.endpoints[0].address).await;
    let mut peer = host.peer.clone();
    peer.endpoints[0].address = relay.address.clone();
    let (transport, shared) = client(ShmAccess::SameUid);
    let old = pattern(MIB - 100, 1);
    host.write(0, &old, 5).await;
    // A neighbour, for whose sake it has to ask.
    host.write(MIB as u64 - 64, &pattern(64, 2), 6).await;

    // It has copied the old bytes and says hello, and its question is on the way, when a newer put takes their place.
    relay.hold_up_after(HELLO_LEN);
    let mut late = std::pin::pin!(read(&transport, &host, &peer, (0, MIB - 100, 5)));
    tokio::select! {
        done = late.as_mut() => panic!("not held: {done:?}"),
        () = relay.held() => {}
    }
    host.write(MIB as u64 / 2, &pattern(100, 2), 7).await;
    relay.release();
    let why = refusal(late.await);
    assert!(why.contains("superseded"), "{why}");
    let why = refusal(read(&transport, &host, &peer, (0, MIB - 100, 5)).await);
    assert!(why.contains("superseded"), "{why}");
    assert_eq!(shared.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_first_reads_make_one_connection() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let (transport, _) = client(ShmAccess::SameUid);
    let value = pattern(MIB, 1);
    host.write(0, &value, 5).await;
    let reads = (0..50).map(|_| read(&transport, &host, &host.peer, (0, MIB, 5)));
    for bytes in futures::future::join_all(reads).await {
        assert!(bytes.unwrap() == value);
    }
    assert_eq!(host.mappings(), 2);
}

#[tokio::test]
async fn whoever_may_not_share_reads_over_tcp() {
    for (theirs, ours) in [(ShmAccess::Off, ShmAccess::Any), (ShmAccess::Any, ShmAccess::Off)] {
        let host = Host::start(theirs, MIB).await;
        let (transport, shared) = client(ours);
        let value = pattern(MIB, 1);
        host.write(0, &value, 5).await;
        assert!(read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap() == value);
        assert_eq!((shared.load(Ordering::SeqCst), host.mappings()), (0, 1));
    }
}

#[tokio::test]
async fn a_client_keeps_no_memory_of_a_store_that_has_ended_and_takes_no_bytes_from_it() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let (transport, _) = client(ShmAccess::SameUid);
    host.write(0, &pattern(MIB, 1), 5).await;
    read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap();
    assert_eq!(host.mappings(), 2);
    // The fixture keeps the memory, so the old bytes are still there to be read.
    host.stop.cancel();
    until("the client has let go", || host.mappings() == 1).await;
    let error = read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap_err();
    assert!(matches!(error, TransferError::Connect { .. } | TransferError::Broken { .. }), "{error}");
}

#[tokio::test]
async fn segments_that_come_and_go_are_followed() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let (transport, shared) = client(ShmAccess::SameUid);
    host.write(0, &pattern(MIB, 1), 5).await;
    read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap();
    assert_eq!((host.mappings(), shared.load(Ordering::SeqCst)), (2, MIB as u64));

    let further = host.number.wrapping_add(1);
    host.server.lend(Segment::allocate(further, MIB as u64, &mut |_| {}).unwrap());
    until("the client has let go of the old list", || host.mappings() == 1).await;
    read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap();
    assert_eq!((host.mappings(), shared.load(Ordering::SeqCst)), (2, 2 * MIB as u64));
    let second = Host { number: further, peer: host.peer.clone(), server: host.server.clone(), ..host };
    assert_eq!(second.mappings(), 2, "and of the new one");

    let withdrawn = second.server.withdraw(further).unwrap();
    until("the client has let go of it", || second.mappings() == 1).await;
    assert!(!withdrawn.is_in_use());
    let why = refusal(read(&transport, &second, &second.peer, (0, MIB, 5)).await);
    assert!(why.contains("is not in this store's memory"), "{why}");
}

#[tokio::test]
async fn strangers_on_either_end_do_no_harm() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let value = pattern(MIB, 1);
    host.write(0, &value, 5).await;
    // A client that speaks something else gets nothing.
    let mut stranger = mc_net::connect_local(&socket_name(host.store, host.peer.epoch)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n.......").await.unwrap();
    assert_eq!(stranger.read(&mut [0; 16]).await.unwrap_or(0), 0);
    assert_eq!(host.mappings(), 1);
    // One that is refused is not left connected.
    let mut refused = mc_net::connect_local(&socket_name(host.store, host.peer.epoch)).unwrap();
    let mut hello = b"mcTX\0\x01\0\x02".to_vec();
    hello.extend_from_slice(&[9; 32]);
    refused.write_all(&hello).await.unwrap();
    let mut reply = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), refused.read_to_end(&mut reply)).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&reply).contains("cluster"), "{reply:?}");
    // One that means another epoch is refused, and so reads over TCP, which refuses it, too.
    let (transport, shared) = client(ShmAccess::SameUid);
    let other = Peer { epoch: SegmentEpoch(9), ..host.peer.clone() };
    let _taken = mc_net::listen_local(&socket_name(host.store, other.epoch)).unwrap();
    assert!(read(&transport, &host, &other, (0, MIB, 5)).await.is_err());
    // A socket of the store's name that never answers costs a moment, and then bytes go over TCP.
    let silent = Host::start(ShmAccess::Off, MIB).await;
    silent.write(0, &value, 5).await;
    let _silent = mc_net::listen_local(&socket_name(silent.store, silent.peer.epoch)).unwrap();
    assert!(read(&transport, &silent, &silent.peer, (0, MIB, 5)).await.unwrap() == value);
    assert_eq!(shared.load(Ordering::SeqCst), 0);
    assert!(read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap() == value);
    assert_eq!(shared.load(Ordering::SeqCst), MIB as u64);
}

/// Hello of a client that speaks versions 1 to `newest`.
fn hello_up_to(newest: u8, host: &Host) -> Vec<u8> {
    let mut hello = b"mcTX\0\x01\0".to_vec();
    hello.push(newest);
    hello.extend_from_slice(&CLUSTER.0.to_be_bytes());
    hello.extend_from_slice(&host.store.0.to_be_bytes());
    hello.extend_from_slice(&host.peer.epoch.0.to_be_bytes());
    hello
}

#[tokio::test]
async fn a_client_of_an_earlier_version_gets_no_stamps() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let mut stream = mc_net::connect_local(&socket_name(host.store, host.peer.epoch)).unwrap();
    stream.write_all(&hello_up_to(3, &host)).await.unwrap();
    let mut reply = [0; 13];
    stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"mcTX\0\x01\0\x08\0\x03\0\0\0");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let receive = || {
        let mut record = [0; 12];
        let mut into = [IoSliceMut::new(&mut record)];
        Ok(rustix::net::recvmsg(stream.as_fd(), &mut into, &mut ancillary, RecvFlags::DONTWAIT)?.bytes)
    };
    assert_eq!(stream.async_io(Interest::READABLE, receive).await.unwrap(), 12);
    let files = ancillary.drain().map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.count(),
        _ => 0,
    });
    assert_eq!(files.collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn a_store_without_stamps_is_asked_about_every_read() {
    let host = Host::start(ShmAccess::Off, MIB).await;
    let (value, shared_value) = (pattern(MIB, 1), pattern(MIB, 2));
    host.write(0, &value, 5).await;
    // A store of version 3, whose memory has other bytes, so that these are told from those over TCP.
    let file = rustix::fs::memfd_create("theirs", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&file, &shared_value).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let listener = mc_net::listen_local(&socket_name(host.store, host.peer.epoch)).unwrap();
    let number = host.number;
    let store = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 40]).await.unwrap();
        stream.write_all(b"mcTX\0\x01\0\x03\0\x03\0\0\0").await.unwrap();
        let record = [number.to_be_bytes().as_slice(), &(MIB as u64).to_be_bytes()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        let sent = rustix::net::sendmsg(
            stream.as_fd(),
            &[IoSlice::new(&record)],
            &mut ancillary,
            SendFlags::empty(),
        );
        assert_eq!(sent, Ok(12));
        stream.write_all(&[0; 12]).await.unwrap();
        stream
    });
    let (transport, shared) = client(ShmAccess::SameUid);
    let large = read(&transport, &host, &host.peer, (0, 20_000, 5)).await.unwrap();
    assert!(large == shared_value[..20_000]);
    assert_eq!(host.server.counters().shm_bytes_read.load(Ordering::SeqCst), 20_000);
    assert!(read(&transport, &host, &host.peer, (0, 1_000, 5)).await.unwrap() == value[..1_000]);
    assert_eq!(shared.load(Ordering::SeqCst), 20_000, "a small one is not worth two round trips");
    drop(store.await.unwrap());
}

/// Reads all of a store's memory with a new client, and returns why it did not go through shared memory.
async fn why_not_shared(host: &Host, ca: &CertificateAuthority, grant: &SealedGrant) -> Option<String> {
    let tcp = TcpTransport::new(options(ca.issue("tenant/team/rw/engine")));
    let (transport, shared) = client_over(tcp, ShmAccess::SameUid);
    let answer = read_under(&transport, &host.peer, grant, MIB).await;
    let report = transport.peers().remove(0).transports.remove(0);
    assert_eq!(report.usable, shared.load(Ordering::SeqCst) == MIB as u64);
    if report.usable {
        assert!(answer.is_ok());
    }
    (!report.usable).then_some(report.how)
}

#[tokio::test]
async fn a_store_that_requires_tls_shares_its_memory_with_whom_a_grant_allows_it() {
    let ca = CertificateAuthority::new();
    let tls = ca.issue("store/kv");
    let host = Host::start_secured(ShmAccess::SameUid, tls.clone(), MIB).await;
    let all = [(0, MIB, 5)];
    let sharing = host.sharing(7, Access::Read, &all);
    assert_eq!(why_not_shared(&host, &ca, &sharing).await, None);
    assert_eq!(why_not_shared(&host, &ca, &host.sharing(7, Access::Read, &all)).await, None, "another one");

    let tcp = TcpTransport::new(options(ca.issue("tenant/team/rw/engine")));
    let (transport, shared) = client_over(tcp, ShmAccess::SameUid);
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&[1; MIB]).into()] }];
    let granted = host.sharing(7, Access::Write, &all);
    transport.write(&host.peer, &granted, &ops, Seal::Yes, soon()).await.remove(0).unwrap();
    assert_eq!(shared.load(Ordering::SeqCst), MIB as u64, "a grant to write does as well");

    let held = why_not_shared(&host, &ca, &host.held(Access::Read, &all)).await.unwrap();
    assert!(held.contains("mcctl principals set NAME --shared-memory on"), "{held}");
    let expired = why_not_shared(&host, &ca, &host.expired(7, Access::Read, &all)).await.unwrap();
    assert!(expired.contains("expired"), "{expired}");
    let stolen = SealedGrant { proof_key: None, ..sharing.clone() };
    let stolen = why_not_shared(&host, &ca, &stolen).await.unwrap();
    assert!(stolen.contains("proof"), "{stolen}");
    let other = host.held(Access::Read, &[(0, MIB, 6)]);
    let forged = SealedGrant { proof_key: other.proof_key, ..sharing.clone() };
    let forged = why_not_shared(&host, &ca, &forged).await.unwrap();
    assert!(forged.contains("proof"), "{forged}");

    // Older clients have no words for it.
    let mut stream = mc_net::connect_local(&socket_name(host.store, host.peer.epoch)).unwrap();
    stream.write_all(&hello_up_to(7, &host)).await.unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await.unwrap();
    assert!(String::from_utf8_lossy(&reply).contains("too old"), "{reply:?}");

    tls.set_level(TlsLevel::Allow);
    assert_eq!(why_not_shared(&host, &ca, &host.grant(Access::Read, &all)).await, None, "none is due");

    let unasked = Host::start_secured(ShmAccess::Auto, tls.clone(), MIB).await;
    let sharing = unasked.sharing(7, Access::Read, &all);
    assert_eq!(why_not_shared(&unasked, &ca, &sharing).await, None);
    tls.set_level(TlsLevel::Require);
    let why = why_not_shared(&unasked, &ca, &sharing).await.unwrap();
    assert!(why.contains("only if it was started with --shm"), "{why}");
}

#[tokio::test]
async fn a_store_ends_sessions_of_holders_that_were_denied_and_of_those_who_have_shown_no_grant() {
    let ca = CertificateAuthority::new();
    let tls = at(TlsLevel::Prefer, ca.issue("store/kv"));
    let host = Host::start_secured(ShmAccess::SameUid, tls.clone(), MIB).await;
    let open = || {
        let tcp = TcpTransport::new(options(at(TlsLevel::Prefer, ca.issue("tenant/team/rw/engine"))));
        client_over(tcp, ShmAccess::SameUid).0
    };
    let all = [(0, MIB, 5)];
    let (before, granted) = (open(), open());
    let sharing = host.sharing(7, Access::Read, &all);
    read_under(&before, &host.peer, &sharing, MIB).await.unwrap();
    assert_eq!(host.mappings(), 2, "no grant was due");
    tls.set_level(TlsLevel::Require);
    until("the connection ends that has shown none", || host.mappings() == 1).await;

    read_under(&granted, &host.peer, &sharing, MIB).await.unwrap();
    assert_eq!(host.mappings(), 2);
    host.authority.shut_out([7].into());
    until("its connection ends", || host.mappings() == 1).await;
    let refused = read_under(&granted, &host.peer, &sharing, MIB).await.unwrap_err();
    assert!(refused.to_string().contains("was denied"), "{refused}");
    assert_eq!(host.mappings(), 1);
}

#[tokio::test]
async fn half_a_request_and_one_of_another_kind_get_no_memory() {
    let ca = CertificateAuthority::new();
    let host = Host::start_secured(ShmAccess::SameUid, ca.issue("store/kv"), MIB).await;
    // Id, kind, number of operations, length of the grant.
    let check = [&[0; 8][..], &[1, 1, 0, 1], &[0, 0, 0, 64]].concat();
    for request in [&check[..7], &check] {
        let mut stream = mc_net::connect_local(&socket_name(host.store, host.peer.epoch)).unwrap();
        stream.write_all(&hello_up_to(8, &host)).await.unwrap();
        let mut reply = [0; 13 + 1 + size_of::<Nonce>()];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply[13], 1, "a grant is due");
        stream.write_all(request).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
        ended.expect("the session has its place for ever").unwrap_or_default();
        assert!(rest.is_empty(), "{rest:?}");
    }
    assert_eq!(host.mappings(), 1);
}

#[tokio::test]
async fn a_session_lasts_as_long_as_connections_do_and_the_next_one_needs_a_grant_again() {
    let ca = CertificateAuthority::new();
    let tls = ca.issue("store/kv");
    tls.set_connection_age(Duration::from_secs(1));
    let host = Host::start_secured(ShmAccess::SameUid, tls, MIB).await;
    let tcp = TcpTransport::new(options(ca.issue("tenant/team/rw/engine")));
    let (transport, shared) = client_over(tcp, ShmAccess::SameUid);
    let all = [(0, MIB, 5)];
    read_under(&transport, &host.peer, &host.sharing(7, Access::Read, &all), MIB).await.unwrap();
    assert_eq!(shared.load(Ordering::SeqCst), MIB as u64);
    until("the session is over", || host.mappings() == 1).await;

    read_under(&transport, &host.peer, &host.held(Access::Read, &all), MIB).await.unwrap();
    assert_eq!(shared.load(Ordering::SeqCst), MIB as u64, "this grant does not let it map the memory");
}
