//! Transfers to and from the memory of a store in the same process. A call yields after each MiB, so a test can let something
//! happen in the middle of it.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

#[path = "common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use common::host::{Host, MIB, client, read};
use common::{CLUSTER, KEY, LIFETIME, pattern, refusal, soon};
use futures::FutureExt as _;
use mc_transfer::{
    Checksum, Memory, Peer, PeerTransport, Seal, ShmAccess, ShmTransport, TransferError, Transport, WriteOp,
    Written,
};
use mc_types::{Access, ClusterTime, Grant, GrantKey, GrantedRange, SealedGrant, SegmentEpoch};

/// A client of the process that has the store, and the bytes that it moved without a connection or through shared memory.
fn own_client(host: &Host) -> (ShmTransport, Arc<Memory>, Arc<AtomicU64>) {
    let (transport, moved) = client(ShmAccess::SameUid);
    let memory = Arc::new(Memory::of(Vec::new()));
    host.server.admit_own_calls(&memory);
    (transport.with_own_store(host.store, Arc::downgrade(&memory)), memory, moved)
}

async fn own_host(len: usize) -> Host {
    let host = Host::start(ShmAccess::SameUid, len).await;
    // Its tasks begin.
    host.write(0, &[0], 1).await;
    host
}

/// Connections that were opened since [`own_host`] opened one.
fn connections(host: &Host) -> u64 {
    host.server.counters().connections_opened.load(Ordering::SeqCst) - 1
}

async fn write(
    transport: &ShmTransport,
    host: &Host,
    (offset, bytes, index): (u64, &[u8], u64),
) -> Result<Written, TransferError> {
    let grant = host.grant(Access::Write, &[(offset, bytes.len(), index)]);
    write_under(transport, &host.peer, &grant, bytes).await
}

async fn write_under(
    transport: &ShmTransport,
    peer: &Peer,
    grant: &SealedGrant,
    bytes: &[u8],
) -> Result<Written, TransferError> {
    let ops = [WriteOp { range: 0, offset: 0, from: vec![bytes.into()] }];
    transport.write(peer, grant, &ops, Seal::Yes, soon()).await.remove(0)
}

#[tokio::test]
async fn bytes_move_without_a_connection() {
    let host = own_host(8 * MIB).await;
    let (transport, _memory, moved) = own_client(&host);
    let (small, large) = (pattern(1_000, 1), pattern(3 * MIB + 5, 2));
    let grant = host.grant(Access::Write, &[(64, small.len(), 5), (4 * MIB as u64, large.len(), 5)]);
    let ops = [
        WriteOp { range: 0, offset: 0, from: vec![(&small[..7]).into(), (&[]).into(), (&small[7..]).into()] },
        WriteOp { range: 1, offset: 0, from: vec![(&large).into()] },
    ];
    let answers = transport.write(&host.peer, &grant, &ops, Seal::Yes, soon()).await;
    let sums = [Checksum::of(&small), Checksum::of(&large)];
    let receipts = [host.receipt(64, small.len(), 5), host.receipt(4 * MIB as u64, large.len(), 5)];
    let written = |(checksum, receipt)| Ok(Written { checksum, receipt: Some(receipt) });
    assert_eq!(answers, sums.into_iter().zip(receipts).map(written).collect::<Vec<_>>());
    assert!(host.bytes(64, small.len()) == small && host.bytes(4 * MIB as u64, large.len()) == large);

    assert_eq!(read(&transport, &host, &host.peer, (64, small.len(), 5)).await.unwrap(), small);
    assert!(read(&transport, &host, &host.peer, (4 * MIB as u64, large.len(), 5)).await.unwrap() == large);

    let each = (small.len() + large.len()) as u64;
    let counters = host.server.counters();
    let counted = [&counters.shm_bytes_written, &counters.shm_bytes_read, &moved];
    assert_eq!(counted.map(|count| count.load(Ordering::SeqCst)), [each, each, 2 * each]);
    assert_eq!((connections(&host), host.mappings()), (0, 1));
    let report = transport.peers().remove(0);
    let PeerTransport { name, usable, how, bytes, .. } = report.transports[0].clone();
    assert_eq!((report.store, report.address), (host.store, host.peer.endpoints[0].address.clone()));
    assert_eq!((name, usable, how.as_str(), bytes), ("shm", true, "in this process", 2 * each));
}

#[tokio::test]
async fn a_batch_that_meets_its_deadline_keeps_what_was_done() {
    let host = own_host(4 * MIB).await;
    let (transport, _memory, moved) = own_client(&host);
    let (small, large) = (pattern(1_000, 1), pattern(3 * MIB, 2));
    let ranges = [(0, small.len(), 5), (MIB as u64, large.len(), 5)];
    let ops = [
        WriteOp { range: 0, offset: 0, from: vec![(&small).into()] },
        WriteOp { range: 1, offset: 0, from: vec![(&large).into()] },
    ];
    let grant = host.grant(Access::Write, &ranges);
    tokio::time::pause();
    let mut writing = transport.write(&host.peer, &grant, &ops, Seal::Yes, soon());
    assert!(futures::poll!(&mut writing).is_pending(), "the large one yields");
    tokio::time::advance(Duration::from_secs(3600)).await;
    let answers = writing.await;
    assert_eq!(answers[0].as_ref().map(|written| written.checksum), Ok(Checksum::of(&small)));
    assert!(matches!(answers[1], Err(TransferError::Deadline { .. })), "{answers:?}");
    assert_eq!(moved.load(Ordering::SeqCst), small.len() as u64);
}

#[tokio::test]
async fn grants_are_checked_as_over_a_connection() {
    let host = own_host(MIB).await;
    let (transport, _memory, moved) = own_client(&host);
    let (value, other) = (pattern(20_000, 1), pattern(20_000, 2));
    write(&transport, &host, (0, &value, 5)).await.unwrap();
    let good = Grant {
        cluster: CLUSTER,
        store: host.store,
        epoch: host.peer.epoch,
        access: Access::Write,
        expires: ClusterTime(0).after(LIFETIME),
        tenant: String::new(),
        holder: None,
        needs_proof: false,
        shares_memory: false,
        avoids_rdma: false,
        ranges: vec![GrantedRange { segment: host.number, offset: 0, len: 20_000, index: 6 }],
    };
    let range = |range: GrantedRange| Grant { ranges: vec![range], ..good.clone() };
    let refused = [
        (good.seal(&GrantKey([9; 32])), "wrong key"),
        (Grant { expires: ClusterTime(0), ..good.clone() }.seal(&KEY), "expired"),
        (Grant { access: Access::Read, ..good.clone() }.seal(&KEY), "permits to read"),
        (Grant { epoch: SegmentEpoch(8), ..good.clone() }.seal(&KEY), "epoch"),
        (range(GrantedRange { len: 10_000, ..good.ranges[0] }).seal(&KEY), "not inside the granted range"),
        (
            range(GrantedRange { offset: MIB as u64, ..good.ranges[0] }).seal(&KEY),
            "not in this store's memory",
        ),
        (range(GrantedRange { index: 4, ..good.ranges[0] }).seal(&KEY), "superseded"),
    ];
    for (grant, reason) in refused {
        let why = refusal(write_under(&transport, &host.peer, &grant, &other).await);
        assert!(why.contains(reason), "{why}, and not {reason}");
        assert!(host.bytes(0, value.len()) == value, "{reason}");
    }
    assert_eq!(moved.load(Ordering::SeqCst), 20_000, "by the first write");
    // It is sealed: the same write again is answered as the first one, and writes nothing.
    write(&transport, &host, (0, &other, 5)).await.unwrap();
    assert!(host.bytes(0, value.len()) == value);
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&other).into()] }];
    let grant = host.grant(Access::Write, &[(0, 20_000, 5)]);
    let why = refusal(transport.write(&host.peer, &grant, &ops, Seal::No, soon()).await.remove(0));
    assert!(why.contains("sealed"), "{why}");

    let stale = refusal(read(&transport, &host, &host.peer, (0, 20_000, 4)).await);
    assert!(stale.contains("superseded"), "{stale}");
}

#[tokio::test]
async fn memory_of_another_epoch_is_asked_for_over_the_connection() {
    let host = own_host(MIB).await;
    let (transport, memory, _) = own_client(&host);
    let peer = Peer { epoch: SegmentEpoch(8), ..host.peer.clone() };
    let grant = host.grant(Access::Write, &[(0, 1_000, 5)]);
    let why = write_under(&transport, &peer, &grant, &pattern(1_000, 1)).await.unwrap_err().to_string();
    assert!(why.contains("epoch"), "{why}");
    assert_eq!(connections(&host), 1);
    // The store has stopped, and something else of this process has its memory.
    drop(memory);
    write(&transport, &host, (0, &pattern(1_000, 1), 5)).await.unwrap();
    assert_eq!(connections(&host), 2);
}

#[tokio::test]
async fn a_newer_write_ends_one_that_is_under_way() {
    let host = own_host(4 * MIB).await;
    let (transport, _memory, _) = own_client(&host);
    let (older, newer) = (pattern(4 * MIB, 1), pattern(4 * MIB, 2));
    let mut write = Box::pin(write(&transport, &host, (0, &older, 5)));
    assert!(write.as_mut().now_or_never().is_none(), "in the middle");
    assert!(host.bytes(0, MIB) == older[..MIB]);
    host.write(0, &newer, 6).await;
    let why = refusal(write.await);
    assert!(why.contains("superseded"), "{why}");
    assert!(host.bytes(0, 4 * MIB) == newer);
}

#[tokio::test]
async fn a_read_in_which_a_newer_write_comes_is_refused() {
    let host = own_host(4 * MIB).await;
    let (transport, _memory, _) = own_client(&host);
    host.write(0, &pattern(4 * MIB, 1), 5).await;
    let mut read = Box::pin(read(&transport, &host, &host.peer, (0, 4 * MIB, 5)));
    assert!(read.as_mut().now_or_never().is_none(), "in the middle");
    host.write(3 * MIB as u64, &pattern(MIB, 2), 6).await;
    let why = refusal(read.await);
    assert!(why.contains("superseded"), "{why}");
}

/// After the server's end another one may serve the same memory, whose fence knows of none of these calls.
#[tokio::test]
async fn calls_touch_no_memory_after_the_end_of_the_server() {
    let host = own_host(4 * MIB).await;
    let (transport, _memory, moved) = own_client(&host);
    let (older, newer) = (pattern(4 * MIB, 1), pattern(4 * MIB, 2));
    let mut write = Box::pin(write(&transport, &host, (0, &older, 5)));
    let mut reads = Box::pin(read(&transport, &host, &host.peer, (0, 4 * MIB, 5)));
    assert!(write.as_mut().now_or_never().is_none() && reads.as_mut().now_or_never().is_none());
    let later = host.serve_again().await;
    later.write(0, &newer, 5).await;
    assert!(write.await.is_err());
    assert!(later.bytes(0, 4 * MIB) == newer);
    assert!(reads.await.is_err());
    assert_eq!(moved.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_segment_is_kept_for_a_call_that_has_it() {
    let host = own_host(4 * MIB).await;
    let (transport, _memory, _) = own_client(&host);
    let value = pattern(4 * MIB, 1);
    let mut first = Box::pin(write(&transport, &host, (0, &value, 5)));
    assert!(first.as_mut().now_or_never().is_none(), "in the middle");
    let withdrawn = host.server.withdraw(host.number).unwrap();
    assert!(withdrawn.is_in_use());
    first.await.unwrap();
    let why = refusal(write(&transport, &host, (0, &value, 6)).await);
    assert!(why.contains("not in this store's memory"), "{why}");
    assert!(host.bytes(0, 4 * MIB) == value);
}

/// A small newer write comes while an older one copies bytes over the same place, and is left. If a step of the older one were not
/// under its pass, it would go on after that, and this fails in a few of the rounds.
#[test]
fn the_bytes_of_the_newer_of_two_writes_are_left() {
    const LEN: usize = 128 << 10;
    const ROUNDS: u64 = 20_000;
    let of_host = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let host = of_host.block_on(own_host(LEN));
    let (transport, _memory, _) = own_client(&host);
    let (transport, host, start) = (&transport, &host, &Barrier::new(2));
    let (older, newer) = (vec![1; LEN], [2; 64]);
    let at = (LEN - newer.len()) as u64;
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut wrong = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = runtime();
            for round in 0..ROUNDS {
                start.wait();
                // It may be refused.
                drop(runtime.block_on(write(transport, host, (0, &older, 10 + 2 * round))));
                start.wait();
            }
        });
        let runtime = runtime();
        for round in 0..ROUNDS {
            start.wait();
            (0..round % 128 * 16).for_each(|_| std::hint::spin_loop());
            let written = runtime.block_on(write(transport, host, (at, &newer, 11 + 2 * round)));
            start.wait();
            if written.is_err() || host.bytes(at, newer.len()) != newer {
                wrong.push(round);
            }
        }
    });
    assert!(wrong.is_empty(), "{wrong:?}");
}
