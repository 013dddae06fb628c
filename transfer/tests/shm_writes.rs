//! Writes through shared memory, both ends in this process over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

#[path = "common/mod.rs"]
mod common;

use std::io::IoSlice;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering;

use common::host::{Host, MIB, client};
use common::relay::Relay;
use common::{CLUSTER, pattern, refusal, soon, until};
use mc_transfer::{
    Checksum, HostMemory, Peer, RegisteredMemory, Seal, Segment, ShmAccess, ShmTransport, TcpOptions,
    TcpTransport, TransferError, Transport, WriteOp, Written, socket_name,
};
use mc_types::Access;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Bytes of a client's hello over TCP.
const HELLO_LEN: u64 = 40;

fn allocated(transport: &ShmTransport, bytes: &[u8]) -> RegisteredMemory {
    let mut memory = transport.allocate(bytes.len()).unwrap();
    memory.as_mut_slice().copy_from_slice(bytes);
    memory
}

/// Writes all of a range and seals it.
async fn write(
    transport: &ShmTransport,
    host: &Host,
    peer: &Peer,
    (offset, bytes, index): (u64, &[u8], u64),
) -> Result<Written, TransferError> {
    let grant = host.grant(Access::Write, &[(offset, bytes.len(), index)]);
    let ops = [WriteOp { range: 0, offset: 0, from: vec![bytes.into()] }];
    transport.write(peer, &grant, &ops, Seal::Yes, soon()).await.remove(0)
}

fn shm_bytes_written(host: &Host) -> u64 {
    host.server.counters().shm_bytes_written.load(Ordering::SeqCst)
}

#[tokio::test]
async fn bytes_of_any_memory_and_size_are_copied_by_the_store_and_sealed() {
    let host = Host::start(ShmAccess::SameUid, 64 * MIB).await;
    let (transport, moved) = client(ShmAccess::SameUid);
    let mut total = 0;
    // In one request, and in several, because a request carries 4 MiB at most.
    for (index, len) in [(5, 20_000), (6, 9 * MIB + 1), (7, 20 * MIB + 3)] {
        let value = pattern(len, index);
        let shared = allocated(&transport, &value);
        for (index, bytes) in [(10 * index, value.as_slice()), (10 * index + 1, shared.as_slice())] {
            let written = write(&transport, &host, &host.peer, (64, bytes, index)).await.unwrap();
            let receipt = Some(host.receipt(64, len, index));
            assert_eq!(written, Written { checksum: Checksum::of(&value), receipt });
            assert!(host.bytes(64, len) == value);
            total += len as u64;
            assert_eq!((moved.load(Ordering::SeqCst), shm_bytes_written(&host)), (total, total));
        }
    }
}

#[tokio::test]
async fn a_write_seals_what_it_has_written() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let (transport, _) = client(ShmAccess::SameUid);
    let (value, other) = (pattern(MIB, 1), pattern(MIB, 2));
    let receipt = write(&transport, &host, &host.peer, (0, &value, 5)).await.unwrap().receipt;
    // The same write again, whose answer was lost, is answered as the first; its bytes are not copied.
    let again = write(&transport, &host, &host.peer, (0, &other, 5)).await.unwrap().receipt;
    assert_eq!((receipt, again), (Some(host.receipt(0, MIB, 5)), receipt));
    assert!(host.bytes(0, MIB) == value);
    assert_eq!(shm_bytes_written(&host), MIB as u64);
    let grant = host.grant(Access::Write, &[(0, MIB, 5)]);
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&other).into()] }];
    let why = refusal(transport.write(&host.peer, &grant, &ops, Seal::No, soon()).await.remove(0));
    assert!(why.contains("sealed"), "{why}");
}

#[tokio::test]
async fn several_operations_of_mixed_memory_are_one_request() {
    let host = Host::start(ShmAccess::SameUid, 8 * MIB).await;
    let (transport, moved) = client(ShmAccess::SameUid);
    let (one, two, three) = (pattern(300_000, 1), pattern(MIB, 2), pattern(70_000, 3));
    let shared = allocated(&transport, &two);
    let grant = host.grant(Access::Write, &[(0, one.len() + two.len(), 5), (4 * MIB as u64, three.len(), 5)]);
    let ops = [
        WriteOp { range: 0, offset: 0, from: vec![(&one).into(), (&[]).into(), shared.as_slice().into()] },
        WriteOp { range: 1, offset: 0, from: vec![(&three[..5]).into(), (&three[5..]).into()] },
    ];
    let answers = transport.write(&host.peer, &grant, &ops, Seal::Yes, soon()).await;
    let sums = [Checksum::of(&[one.as_slice(), &two].concat()), Checksum::of(&three)];
    assert_eq!(common::sums(answers), sums.map(Ok));
    assert!(host.bytes(0, one.len() + two.len()) == [one, two].concat());
    assert!(host.bytes(4 * MIB as u64, three.len()) == three);
    assert_eq!(moved.load(Ordering::SeqCst), 300_000 + MIB as u64 + 70_000);
}

#[tokio::test]
async fn what_is_small_goes_over_tcp() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let (transport, moved) = client(ShmAccess::SameUid);
    write(&transport, &host, &host.peer, (0, &pattern(1_000, 1), 5)).await.unwrap();
    assert_eq!((moved.load(Ordering::SeqCst), shm_bytes_written(&host)), (0, 0));
}

/// As in a put session: ranges of one object, one after the other, and the seal at the end.
#[tokio::test]
async fn ranges_are_written_one_by_one_and_sealed_at_the_end() {
    const LEN: usize = 12 * MIB + 5;
    let host = Host::start(ShmAccess::SameUid, 16 * MIB).await;
    let (transport, moved) = client(ShmAccess::SameUid);
    let value = pattern(LEN, 1);
    let shared = allocated(&transport, &value);
    let grant = host.grant(Access::Write, &[(0, LEN, 5)]);
    let cuts = [0, 20_000, MIB, 11 * MIB, LEN];
    for (nth, cut) in cuts.windows(2).enumerate() {
        let (from, to) = (cut[0], cut[1]);
        let memory = if nth % 2 == 0 { shared.as_slice() } else { &value };
        let ops = [WriteOp { range: 0, offset: from as u64, from: vec![(&memory[from..to]).into()] }];
        let written = transport.write(&host.peer, &grant, &ops, Seal::No, soon()).await.remove(0);
        assert_eq!(written, Ok(Written { checksum: Checksum::of(&value[from..to]), receipt: None }));
    }
    assert_eq!((moved.load(Ordering::SeqCst), shm_bytes_written(&host)), (LEN as u64, LEN as u64));
    let seal = [WriteOp { range: 0, offset: 0, from: Vec::new() }];
    let sealed = transport.write(&host.peer, &grant, &seal, Seal::Yes, soon()).await.remove(0).unwrap();
    assert_eq!(sealed.receipt, Some(host.receipt(0, LEN, 5)));
    let again = [WriteOp { range: 0, offset: 0, from: vec![(&shared.as_slice()[MIB..2 * MIB]).into()] }];
    for with in [Seal::No, Seal::Yes] {
        let answer = transport.write(&host.peer, &grant, &again, with, soon()).await.remove(0);
        assert!(with == Seal::Yes && answer.is_ok() || refusal(answer).contains("sealed"));
    }
    assert!(host.bytes(0, LEN) == value);
}

#[tokio::test]
async fn a_writer_that_comes_late_writes_nothing() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let relay = Relay::to(&host.peer.endpoints[0].address).await;
    let mut peer = host.peer.clone();
    peer.endpoints[0].address = relay.address.clone();
    let (transport, moved) = client(ShmAccess::SameUid);
    let (old, new) = (allocated(&transport, &pattern(MIB, 1)), pattern(MIB, 2));

    relay.hold_up_after(HELLO_LEN);
    let mut late = std::pin::pin!(write(&transport, &host, &peer, (0, old.as_slice(), 5)));
    tokio::select! {
        done = late.as_mut() => panic!("not held: {done:?}"),
        () = relay.held() => {}
    }
    // Its range was given away, and is in use again.
    host.write(0, &new, 6).await;
    assert!(host.bytes(0, MIB) == new);
    relay.release();
    let why = refusal(late.await);
    assert!(why.contains("superseded"), "{why}");
    assert!(host.bytes(0, MIB) == new);
    assert_eq!((moved.load(Ordering::SeqCst), shm_bytes_written(&host)), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_newer_write_ends_one_that_is_being_copied() {
    const LEN: usize = 16 * MIB;
    let host = Host::start(ShmAccess::SameUid, LEN).await;
    let (transport, _) = client(ShmAccess::SameUid);
    let old = allocated(&transport, &pattern(LEN, 1));
    let new = allocated(&transport, &pattern(MIB, 2));
    let mut cut_off = 0;
    for index in (10..1_000).step_by(10) {
        let older = write(&transport, &host, &host.peer, (0, old.as_slice(), index));
        let newer = async {
            // The first admitted write of the older one is the sign that it is under way.
            while host.bytes(0, 1) != old.as_slice()[..1] {
                tokio::task::yield_now().await;
            }
            write(&transport, &host, &host.peer, (15 * MIB as u64, new.as_slice(), index + 1)).await
        };
        let (older, newer) = tokio::join!(older, newer);
        newer.unwrap();
        assert!(host.bytes(15 * MIB as u64, MIB) == new.as_slice());
        cut_off += u32::from(older.is_err());
        let zero = [old.as_slice()[0].wrapping_add(1)];
        host.write(0, &zero, index + 2).await;
    }
    assert!(cut_off > 0, "no write was under way when a newer one came");
}

#[tokio::test]
async fn a_request_that_nobody_waits_for_brings_its_own_bytes_or_none() {
    let host = Host::start(ShmAccess::SameUid, 2 * MIB).await;
    let relay = Relay::to(&host.peer.endpoints[0].address).await;
    let mut held_up = host.peer.clone();
    held_up.endpoints[0].address = relay.address.clone();
    let (transport, _) = client(ShmAccess::SameUid);
    let (one, two) = (pattern(MIB, 1), pattern(MIB, 2));

    // Held once the first byte of the request has come.
    relay.hold_up_after(HELLO_LEN + 1);
    tokio::select! {
        done = write(&transport, &host, &held_up, (0, &one, 5)) => panic!("not held: {done:?}"),
        () = relay.held() => {}
    }
    // It was dropped. The next write must not take its bounce buffer, whose bytes the store has not copied yet.
    write(&transport, &host, &host.peer, (MIB as u64, &two, 6)).await.unwrap();
    relay.release();
    // Its area may have ended meanwhile.
    let refused = || host.server.counters().refusals.load(Ordering::SeqCst) > 0;
    until("the late request was carried out", || refused() || shm_bytes_written(&host) == 2 * MIB as u64)
        .await;
    assert!(host.bytes(0, MIB) == if refused() { vec![0; MIB] } else { one });
    assert!(host.bytes(MIB as u64, MIB) == two);
}

/// Returns relays to the host's store, and a peer with one endpoint for each of them.
async fn two_ways(host: &Host) -> ([Relay; 2], Peer) {
    let address = &host.peer.endpoints[0].address;
    let relays = [Relay::to(address).await, Relay::to(address).await];
    let mut peer = host.peer.clone();
    peer.endpoints = relays
        .each_ref()
        .map(|relay| mc_transfer::PeerEndpoint {
            address: relay.address.clone(),
            ..host.peer.endpoints[0].clone()
        })
        .into();
    (relays, peer)
}

/// The first endpoint stalls in the middle of a request, the second one answers it. The bounce buffer of the first must not get other
/// bytes, because that request is still to be carried out.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_that_another_endpoint_answered_brings_its_own_bytes() {
    const LEN: usize = 12 * MIB;
    let host = Host::start(ShmAccess::SameUid, LEN).await;
    let ([one, two], peer) = two_ways(&host).await;
    let (transport, _) = client(ShmAccess::SameUid);
    let value = pattern(LEN, 1);
    let grant = host.grant(Access::Write, &[(0, LEN, 5)]);
    one.hold_up_after(HELLO_LEN + 1);
    // The first request and the first byte of the next one.
    two.hold_up_after(HELLO_LEN + 16 + grant.bytes.len() as u64 + 36 + 1);
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&value).into()] }];
    let write = transport.write(&peer, &grant, &ops, Seal::Yes, soon());
    let others = async {
        one.held().await;
        two.held().await;
        // Its area may have ended meanwhile.
        let answered = || shm_bytes_written(&host) + host.server.counters().refusals.load(Ordering::SeqCst);
        let before = answered();
        one.release();
        until("the late request was answered", || answered() > before).await;
        two.release();
    };
    let (answers, ()) = tokio::join!(write, others);
    assert_eq!(common::sums(answers), [Ok(Checksum::of(&value))]);
    assert!(host.bytes(0, LEN) == value);
}

/// The first endpoint stalls in the middle of a request, the second one answers it. Without a seal the store can copy for the first
/// one later. Only a bounce buffer still has the same bytes then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_without_a_seal_fails_if_its_memory_may_be_copied_later() {
    let (value, other) = (pattern(MIB, 1), pattern(MIB, 2));
    for is_allocated in [false, true] {
        let host = Host::start(ShmAccess::SameUid, MIB).await;
        let ([one, _two], peer) = two_ways(&host).await;
        let (transport, _) = client(ShmAccess::SameUid);
        let mut shared = allocated(&transport, &value);
        let grant = host.grant(Access::Write, &[(0, MIB, 5)]);
        one.hold_up_after(HELLO_LEN + 1);
        let from = vec![if is_allocated { shared.as_slice() } else { &value[..] }.into()];
        let ops = [WriteOp { range: 0, offset: 0, from }];
        let answer = transport.write(&peer, &grant, &ops, Seal::No, soon()).await.remove(0);
        assert!(host.bytes(0, MIB) == value);
        shared.as_mut_slice().copy_from_slice(&other);
        one.release();
        // The area of a bounce buffer may have ended meanwhile.
        let refused = || !is_allocated && host.server.counters().refusals.load(Ordering::SeqCst) > 0;
        let is_over = || refused() || shm_bytes_written(&host) == 2 * MIB as u64;
        until("the late request was carried out", is_over).await;
        if is_allocated {
            assert!(host.bytes(0, MIB) == other, "a late copy would do no harm");
            let failed = answer.unwrap_err().to_string();
            assert!(failed.contains("may still copy"), "{failed}");
        } else {
            assert_eq!(answer.unwrap().checksum, Checksum::of(&value));
            assert!(host.bytes(0, MIB) == value);
        }
    }
}

/// The second request loses its pass to the seal of the first one, which has brought the same bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_write_twice_at_once_is_done_twice() {
    const LEN: usize = 3 * MIB;
    let host = Host::start(ShmAccess::SameUid, LEN).await;
    let (transport, moved) = client(ShmAccess::SameUid);
    let transport = std::sync::Arc::new(transport);
    let value = std::sync::Arc::new(allocated(&transport, &pattern(LEN, 1)));
    write(&transport, &host, &host.peer, (0, value.as_slice(), 5)).await.unwrap();
    for index in 6..200 {
        let grant = host.grant(Access::Write, &[(0, LEN, index)]);
        let both = [(); 2].map(|()| {
            let (transport, value) = (transport.clone(), value.clone());
            let (peer, grant) = (host.peer.clone(), grant.clone());
            tokio::spawn(async move {
                let ops = [WriteOp { range: 0, offset: 0, from: vec![value.as_slice().into()] }];
                transport.write(&peer, &grant, &ops, Seal::Yes, soon()).await.remove(0)
            })
        });
        for answer in futures::future::join_all(both).await {
            assert_eq!(common::sums(vec![answer.unwrap()]), [Ok(Checksum::of(value.as_slice()))]);
        }
    }
    assert!(moved.load(Ordering::SeqCst) > 100 * LEN as u64);
}

#[tokio::test]
async fn after_a_round_that_failed_no_other_one_waits_for_the_store() {
    let host = Host::start(ShmAccess::SameUid, 64 * MIB).await;
    let relay = Relay::to(&host.peer.endpoints[0].address).await;
    let mut peer = host.peer.clone();
    peer.endpoints[0].address = relay.address.clone();
    let (transport, moved) = client(ShmAccess::SameUid);
    let value = allocated(&transport, &pattern(64 * MIB, 1));
    write(&transport, &host, &peer, (0, value.as_slice(), 5)).await.unwrap();
    assert_eq!(moved.load(Ordering::SeqCst), 64 * MIB as u64);
    let before = relay.connections();
    relay.hold_up_after(0);
    let failed = write(&transport, &host, &peer, (0, value.as_slice(), 6)).await.unwrap_err();
    assert!(matches!(failed, TransferError::Stalled { .. } | TransferError::Broken { .. }), "{failed}");
    // Each of the 16 rounds would make one, and wait for it.
    assert!(relay.connections() - before < 5, "{} connections", relay.connections() - before);
}

/// The first operation is sealed when the second one finds no bounce buffer.
#[tokio::test]
async fn what_finds_no_bounce_buffer_goes_over_tcp_and_the_rest_is_not_written_again() {
    const BOUNCE_BUFFERS: usize = 16;
    let host = Host::start(ShmAccess::SameUid, 64 * MIB).await;
    let relay = Relay::to(&host.peer.endpoints[0].address).await;
    let mut held_up = host.peer.clone();
    held_up.endpoints[0].address = relay.address.clone();
    let (transport, moved) = client(ShmAccess::SameUid);
    let (small, one, two) =
        (pattern(20_000, 1), allocated(&transport, &pattern(MIB, 2)), pattern(20 * MIB, 3));
    write(&transport, &host, &host.peer, (0, one.as_slice(), 4)).await.unwrap();
    relay.hold_up_after(0);
    let at = |nth: usize| ((32 + nth) * MIB) as u64;
    let all = (0..BOUNCE_BUFFERS).map(|nth| write(&transport, &host, &held_up, (at(nth), &small, 5)));
    let holders = futures::future::join_all(all);
    let grant = host.grant(Access::Write, &[(0, MIB, 6), (MIB as u64, 20 * MIB, 6)]);
    let ops = [
        WriteOp { range: 0, offset: 0, from: vec![one.as_slice().into()] },
        WriteOp { range: 1, offset: 0, from: vec![(&two).into()] },
    ];
    let answers = tokio::select! {
        biased;
        answers = holders => panic!("not held: {answers:?}"),
        answers = transport.write(&host.peer, &grant, &ops, Seal::Yes, soon()) => answers,
    };
    assert_eq!(common::sums(answers), [Ok(Checksum::of(one.as_slice())), Ok(Checksum::of(&two))]);
    assert!(host.bytes(0, MIB) == one.as_slice() && host.bytes(MIB as u64, 20 * MIB) == two);
    assert_eq!((moved.load(Ordering::SeqCst), shm_bytes_written(&host)), (2 * MIB as u64, 2 * MIB as u64));
    let ops = [1, 0].map(|range| WriteOp { range, offset: 0, from: vec![small.as_slice().into()] });
    for answer in transport.write(&host.peer, &grant, &ops, Seal::No, soon()).await {
        assert!(refusal(answer).contains("sealed"));
    }
}

/// Counts the mappings of areas of so many bytes in this process. The client has one, and the store another.
fn mappings_of(len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let len_of = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some(usize::from_str_radix(to, 16).ok()? - usize::from_str_radix(from, 16).ok()?)
    };
    maps.lines().filter(|line| line.contains("memfd:mc-client") && len_of(line) == Some(len)).count()
}

#[tokio::test]
async fn an_area_lasts_as_long_as_its_memory_and_its_client() {
    const LEN: usize = 777 << 12;
    let host = Host::start(ShmAccess::SameUid, 8 * MIB).await;
    let (transport, _) = client(ShmAccess::SameUid);
    let memory = transport.allocate(LEN).unwrap();
    assert_eq!(mappings_of(LEN), 1);
    write(&transport, &host, &host.peer, (0, memory.as_slice(), 5)).await.unwrap();
    assert_eq!(mappings_of(LEN), 2);
    drop(memory);
    until("the store has let go", || mappings_of(LEN) == 0).await;

    let memory = transport.allocate(LEN).unwrap();
    write(&transport, &host, &host.peer, (0, memory.as_slice(), 6)).await.unwrap();
    assert_eq!(mappings_of(LEN), 2);
    drop(transport);
    until("the store has let go with the client", || mappings_of(LEN) == 1).await;
    assert_eq!(memory.as_slice(), [0; LEN]);
}

#[test]
fn buffers_can_be_many() {
    let (transport, _) = {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { client(ShmAccess::SameUid) })
    };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let buffers: Vec<_> = (0..2_000).map(|_| transport.allocate(20_000).unwrap()).collect();
    assert!(buffers.iter().all(|buffer| buffer.as_slice().iter().all(|byte| *byte == 0)));
    assert!(open() < before + 500, "others of this process are open as well");
    assert!(transport.allocate(usize::MAX).is_err());
}

#[tokio::test]
async fn a_session_that_ends_is_followed_by_another() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let (transport, _) = client(ShmAccess::SameUid);
    let value = allocated(&transport, &pattern(MIB, 1));
    write(&transport, &host, &host.peer, (0, value.as_slice(), 5)).await.unwrap();
    // It ends all sessions, and with them the areas. A call that does not know yet goes over TCP.
    host.server.lend(Segment::allocate(host.number.wrapping_add(1), MIB as u64, &mut |_| {}).unwrap());
    for index in 6.. {
        write(&transport, &host, &host.peer, (0, value.as_slice(), index)).await.unwrap();
        assert!(host.bytes(0, MIB) == value.as_slice());
        if shm_bytes_written(&host) >= 2 * MIB as u64 && index > 20 {
            break;
        }
    }
}

#[tokio::test]
async fn memory_that_could_cost_the_store_something_is_not_taken() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let mut stream = mc_net::connect_local(&socket_name(host.store, host.peer.epoch)).unwrap();
    let mut hello = b"mcTX\0\x01\0\x04".to_vec();
    hello.extend_from_slice(&CLUSTER.0.to_be_bytes());
    hello.extend_from_slice(&host.store.0.to_be_bytes());
    hello.extend_from_slice(&host.peer.epoch.0.to_be_bytes());
    stream.write_all(&hello).await.unwrap();
    // Hello reply, the record of one segment, and the end of the list. One read does not go beyond a message with descriptors.
    for len in [13, 12, 12] {
        stream.read_exact(&mut vec![0; len]).await.unwrap();
    }
    let file = rustix::fs::memfd_create("theirs", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, MIB as u64).unwrap();
    let mut offer = async |file: &OwnedFd| {
        let message = [&[0, 0, 0, 2], (MIB as u64).to_be_bytes().as_slice(), &[0; 8]].concat();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        let message = [IoSlice::new(&message)];
        let sent = rustix::net::sendmsg(stream.as_fd(), &message, &mut ancillary, SendFlags::empty());
        assert_eq!(sent, Ok(20));
        let mut number = [0; 8];
        stream.read_exact(&mut number).await.unwrap();
        u64::from_be_bytes(number)
    };
    assert_eq!(offer(&file).await, 0, "it can shrink");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    assert_eq!(offer(&file).await, 0, "others can write it");
    let whole = rustix::fs::memfd_create("theirs", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::pwrite(&whole, &[1; MIB], 0).unwrap();
    for file in [&file, &whole] {
        rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).unwrap();
    }
    assert_eq!(offer(&file).await, 0, "it has holes");
    assert_ne!(offer(&whole).await, 0);
    // A message that means nothing ends the session.
    stream.write_all(&[9; 20]).await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn memory_of_the_host_is_there_before_all_transports_and_reached_by_each() {
    const LEN: usize = 779 << 12;
    let memory = HostMemory::new();
    let mut allocated = memory.allocate(LEN).unwrap();
    allocated.as_mut_slice().copy_from_slice(&pattern(LEN, 1));
    assert_eq!(mappings_of(LEN), 1);
    let host = Host::start(ShmAccess::SameUid, 8 * MIB).await;
    let transport = || {
        let tcp = TcpTransport::without_rdma(TcpOptions::default(), &memory, String::new());
        ShmTransport::new(tcp, ShmAccess::SameUid, Box::new(|_, _| ()))
    };
    let transports = [transport(), transport()];
    for (transport, nth) in transports.iter().zip(1..) {
        write(transport, &host, &host.peer, (0, allocated.as_slice(), nth)).await.unwrap();
        assert_eq!(mappings_of(LEN), 1 + nth as usize, "the store maps it for each");
        assert!(host.bytes(0, LEN) == allocated.as_slice());
    }
    drop(transports);
    until("the store has let go", || mappings_of(LEN) == 1).await;
    drop(allocated);
    assert_eq!(mappings_of(LEN), 0);
}

#[tokio::test]
async fn registered_memory_moves_through_shared_memory() {
    const LEN: usize = 3 * MIB;
    let (memory, host) = (HostMemory::new(), Host::start(ShmAccess::SameUid, 8 * MIB).await);
    let tcp = TcpTransport::without_rdma(TcpOptions::default(), &memory, String::new());
    let transport = ShmTransport::new(tcp, ShmAccess::SameUid, Box::new(|_, _| ()));
    let value = pattern(LEN, 1);
    // SAFETY: mapped until it is unregistered.
    #[allow(unsafe_code, reason = "the call under test takes an address")]
    unsafe { memory.register(value.as_ptr().cast_mut(), LEN) }.unwrap();
    write(&transport, &host, &host.peer, (0, &value, 5)).await.unwrap();
    assert!(host.bytes(0, LEN) == value);
    assert_eq!(shm_bytes_written(&host), LEN as u64);
    memory.unregister(value.as_ptr()).unwrap();
    assert!(memory.unregister(value.as_ptr()).is_err());
}
