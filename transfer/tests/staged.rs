//! Transfers from and to memory of devices, with a driver that keeps plain accesses out of it.
#![allow(unsafe_code, reason = "the calls under test take addresses")]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]
#![allow(clippy::await_holding_lock, reason = "the driver is one test's at a time")]

#[path = "common/mod.rs"]
mod common;
#[path = "../cuda/tests/fake/mod.rs"]
mod fake;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use mc_transfer::{
    Checksum, HostMemory, Peer, RawBytes, ReadBuffer, ReadOp, RegisterError, Seal, ShmAccess,
    StagedTransport, TcpTransport, TransferError, Transport, WriteBuffer, WriteOp, Written,
};
use mc_types::{Access, SealedGrant};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::common::host::{Host, MIB, client};
use crate::common::{pattern, soon, until};
use crate::fake::{Fake, Memory};

/// More than all buffers hold.
const LONG: usize = 100 * MIB + 5;

fn part(memory: Memory, from: usize, len: usize) -> RawBytes {
    assert!(from + len <= memory.len);
    // SAFETY: memory that is never freed, and which nothing else uses.
    let mut raw = unsafe { RawBytes::new(memory.base.add(from), len) };
    RawBytes::locate([&mut raw]).unwrap();
    raw
}

fn all(memory: Memory) -> RawBytes {
    part(memory, 0, memory.len)
}

fn of_host(bytes: &mut [u8]) -> RawBytes {
    // SAFETY: each test keeps the bytes until its calls are over, and does not use them meanwhile.
    unsafe { RawBytes::new(NonNull::from(&mut *bytes).cast(), bytes.len()) }
}

fn write(range: u32, offset: u64, from: &[RawBytes]) -> WriteOp<'static> {
    WriteOp { range, offset, from: from.iter().map(|part| (*part).into()).collect() }
}

fn read(range: u32, offset: u64, into: &[RawBytes]) -> ReadOp<'static> {
    ReadOp { range, offset, into: into.iter().map(|part| (*part).into()).collect() }
}

fn staged(below: impl Transport + 'static) -> StagedTransport {
    StagedTransport::new(Arc::new(below))
}

/// Waits for a condition before each call.
struct Gated(TcpTransport, Box<dyn Fn() -> bool + Send + Sync>);

impl Gated {
    async fn pass(&self) {
        until("the call may go on", || (self.1)()).await;
    }
}

impl fmt::Debug for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gated")
    }
}

impl Transport for Gated {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        Box::pin(async move {
            let answers = self.0.read(peer, grant, ops, deadline).await;
            self.pass().await;
            answers
        })
    }

    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Written, TransferError>>> {
        Box::pin(async move {
            self.pass().await;
            self.0.write(peer, grant, ops, seal, deadline).await
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_longer_than_all_buffers_arrive_whole_and_sealed() {
    let fake = Fake::get();
    let (host, before) = (Host::start(ShmAccess::Off, 2 * LONG).await, fake.left());
    let bytes = pattern(LONG, 1);
    let (from, into) = (fake.holding(&bytes, 0), fake.allocate(LONG, 1));
    let transport = staged(TcpTransport::default());
    let grant = host.grant(Access::Write, &[(0, LONG, 1), (LONG as u64, 1000, 2)]);
    let ops = [write(0, 0, &[all(from)]), write(1, 0, &[part(from, 7, 1000)])];
    let answers = transport.write(&host.peer, &grant, &ops, Seal::Yes, soon()).await;
    let receipts = [host.receipt(0, LONG, 1), host.receipt(LONG as u64, 1000, 2)];
    let sums = [&bytes[..], &bytes[7..1007]].map(Checksum::of);
    let written = |(checksum, receipt)| Ok(Written { checksum, receipt: Some(receipt) });
    assert_eq!(answers, sums.into_iter().zip(receipts).map(written).collect::<Vec<_>>());
    assert!(host.bytes(0, LONG) == bytes);
    for range in [0, 1] {
        let ops = [write(range, 0, &[part(from, 0, 1)])];
        let again = transport.write(&host.peer, &grant, &ops, Seal::No, soon()).await;
        assert!(matches!(again[0], Err(TransferError::Refused { .. })), "range {range} is sealed: {again:?}");
    }

    let grant = host.grant(Access::Read, &[(0, LONG, 1)]);
    let mut ops = [read(0, 0, &[all(into)])];
    let answers = transport.read(&host.peer, &grant, &mut ops, soon()).await;
    assert_eq!(answers, [Ok(Checksum::of(&bytes))]);
    assert!(fake.bytes(into) == bytes);
    assert_eq!(fake.under_way(), 0);
    drop(transport);
    assert_eq!(fake.left(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_may_have_parts_of_the_host_and_of_several_devices() {
    let fake = Fake::get();
    let (host, bytes) = (Host::start(ShmAccess::Off, 64 * MIB).await, pattern(40 * MIB, 2));
    let (one, two) = (fake.holding(&bytes, 0), fake.holding(&bytes, 1));
    let mut head = *b"head";
    let head_raw = of_host(&mut head);
    let transport = staged(TcpTransport::default());
    let grant = host.grant(Access::Write, &[(0, 9, 1), (4096, 30 * MIB, 2), (60 << 20, 4, 3)]);
    let ops = [
        write(0, 0, &[head_raw, part(two, 1, 2), part(one, 5, 3)]),
        write(1, 0, &[part(one, 0, 20 * MIB), head_raw, part(two, 0, 10 * MIB - 4)]),
        write(2, 0, &[head_raw]),
    ];
    let answers = transport.write(&host.peer, &grant, &ops, Seal::Yes, soon()).await;
    let long = [&bytes[..20 * MIB], b"head", &bytes[..10 * MIB - 4]].concat();
    let short = [b"head", &bytes[1..3], &bytes[5..8]].concat();
    let sums = [&short[..], &long, b"head"].map(|bytes| Ok(Checksum::of(bytes)));
    assert_eq!(common::sums(answers), sums);
    assert!(
        host.bytes(0, 9) == short && host.bytes(4096, long.len()) == long && host.bytes(60 << 20, 4) == head
    );

    let (one, two) = (fake.allocate(30 * MIB, 0), fake.allocate(100, 1));
    let (mut tail, mut alone) = ([0; 10], [0; 4]);
    let grant = host.grant(Access::Read, &[(0, 9, 1), (4096, 30 * MIB, 2), (60 << 20, 4, 3)]);
    let mut ops = [
        read(0, 1, &[part(two, 50, 8)]),
        read(1, 0, &[part(one, 0, 30 * MIB - 10), of_host(&mut tail)]),
        read(2, 0, &[of_host(&mut alone)]),
    ];
    let answers = transport.read(&host.peer, &grant, &mut ops, soon()).await;
    assert_eq!(answers, [&short[1..], &long, b"head"].map(|bytes| Ok(Checksum::of(bytes))));
    assert!(fake.bytes(one)[..30 * MIB - 10] == long[..30 * MIB - 10] && tail == long[30 * MIB - 10..]);
    assert_eq!((&fake.bytes(two)[50..58], &alone), (&short[1..], b"head"));
}

/// With one piece at a time, no call of the store would go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_is_copied_while_another_is_transferred() {
    let fake = Fake::get();
    let fake: &Fake = &fake;
    let (host, bytes) = (Host::start(ShmAccess::Off, 64 * MIB).await, pattern(50 * MIB, 3));
    let (from, into) = (fake.holding(&bytes, 0), fake.allocate(bytes.len(), 0));
    let copied = fake::counter(c"cuMemcpyDtoHAsync_v2");
    let begun = copied();
    let transport = staged(Gated(TcpTransport::default(), Box::new(move || copied() >= begun + 2)));
    let grant = host.grant(Access::Write, &[(0, bytes.len(), 1)]);
    let answers = transport.write(&host.peer, &grant, &[write(0, 0, &[all(from)])], Seal::Yes, soon()).await;
    assert_eq!(common::sums(answers), [Ok(Checksum::of(&bytes))]);

    // A read is copied after its transfer. The second transfer has not ended before that.
    let copied = fake::counter(c"cuMemcpyHtoDAsync_v2");
    let (begun, calls) = (copied(), AtomicUsize::new(0));
    let is_first = move || calls.fetch_add(1, Ordering::SeqCst) == 0;
    let transport = staged(Gated(TcpTransport::default(), Box::new(move || is_first() || copied() > begun)));
    let grant = host.grant(Access::Read, &[(0, bytes.len(), 1)]);
    let answers = transport.read(&host.peer, &grant, &mut [read(0, 0, &[all(into)])], soon()).await;
    assert_eq!(answers, [Ok(Checksum::of(&bytes))]);
    assert!(fake.bytes(into) == bytes);
}

/// Other calls stand still while the thread of a runtime copies.
#[test]
fn copies_in_memory_of_the_host_leave_the_thread_of_a_runtime_alone() {
    let fake = Fake::get();
    let (memory, mut host) = (fake.holding(b"gpu", 0), *b"host");
    let parts = [of_host(&mut host), all(memory)];
    let base = parts[0].as_ptr().cast_mut().cast::<[u8; 4]>();
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let transport = staged(TcpTransport::default());
        let from = parts.map(WriteBuffer::from);
        assert_eq!(transport.copy(&from).await.unwrap(), b"hostgpu", "so there is a buffer");

        let (go_on, goes_on) = mpsc::channel::<()>();
        let only = spawn_blocking(move || goes_on.recv());
        let mut copy = Box::pin(transport.copy(&from));
        assert!(copy.as_mut().now_or_never().is_none());
        // SAFETY: the bytes of `host`, which no thread copies yet.
        unsafe { base.write(*b"HOST") };
        drop(go_on);
        assert_eq!(copy.await.unwrap(), b"HOSTgpu");
        only.await.unwrap().unwrap_err();

        let (go_on, goes_on) = mpsc::channel::<()>();
        let only = spawn_blocking(move || goes_on.recv());
        let mut fill = Box::pin(transport.fill(parts.map(ReadBuffer::from).into(), b"1234567"));
        assert!(fill.as_mut().now_or_never().is_none());
        // SAFETY: as above.
        assert_eq!(&unsafe { base.read() }, b"HOST");
        drop(go_on);
        fill.await.unwrap();
        only.await.unwrap().unwrap_err();
    });
    assert_eq!((&host, &fake.bytes(memory)[..]), (b"1234", &b"567"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_waits_for_its_copies() {
    let fake = Fake::get();
    let (host, bytes) = (Host::start(ShmAccess::Off, 64 * MIB).await, pattern(50 * MIB, 4));
    let (memory, transport) = (fake.holding(&bytes, 1), staged(TcpTransport::default()));
    host.write(0, &bytes, 1).await;
    let (reading, writing) =
        (host.grant(Access::Read, &[(0, bytes.len(), 1)]), host.grant(Access::Write, &[(0, bytes.len(), 2)]));
    let (mut reads, writes) = ([read(0, 0, &[all(memory)])], [write(0, 0, &[all(memory)])]);
    let calls = [
        transport.read(&host.peer, &reading, &mut reads, soon()).map(drop).boxed(),
        transport.write(&host.peer, &writing, &writes, Seal::Yes, soon()).map(drop).boxed(),
    ];
    for mut call in calls {
        fake.hold(true);
        let mut has_begun = Box::pin(until("a copy is under way", || fake.held() > 0));
        tokio::select! {
            biased;
            _ = &mut call => panic!("no copy ends"),
            () = &mut has_begun => {}
        }
        let is_released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                is_released.store(true, Ordering::SeqCst);
                fake.hold(false);
            });
            drop(call);
            assert!(is_released.load(Ordering::SeqCst), "a copy was under way");
            assert_eq!((fake.held(), fake.under_way()), (0, 0));
        });
    }
    // All buffers are free again.
    let grant = host.grant(Access::Write, &[(0, bytes.len(), 3)]);
    let answers = transport.write(&host.peer, &grant, &writes, Seal::Yes, soon()).await;
    assert!(answers[0].is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_fails_fails_its_operation_and_leaves_nothing() {
    let fake = Fake::get();
    let (host, before) = (Host::start(ShmAccess::Off, 2 * LONG + 5).await, fake.left());
    let bytes = pattern(LONG, 5);
    host.write(LONG as u64, &bytes, 1).await;
    let (memory, mut alone) = (fake.holding(&bytes, 1), *b"alone");
    let transport = staged(TcpTransport::default());
    let steps =
        [c"cuDevicePrimaryCtxRetain", c"cuMemHostRegister_v2", c"cuStreamCreate", c"cuMemcpyDtoHAsync_v2"];
    let beside = of_host(&mut alone);
    for (nth, step) in (10..).zip(steps) {
        let grant = host.grant(Access::Write, &[(0, LONG, nth), (2 * LONG as u64, 5, nth)]);
        let transport = staged(TcpTransport::default());
        // The first buffers are made, or the first copies end, before one fails.
        fake.fail(step, 2);
        let ops = [write(0, 0, &[all(memory)]), write(1, 0, &[beside])];
        let answers = transport.write(&host.peer, &grant, &ops, Seal::No, soon()).await;
        fake.fail(c"", 0);
        let why = answers[0].clone().unwrap_err();
        assert!(matches!(why, TransferError::Device(_)) && !why.is_of_the_store(), "{why}");
        let why = why.to_string();
        assert!(why.contains("GPU 1: CUDA cannot") && why.contains("nvidia-smi"), "{why}");
        assert_eq!(common::sums(answers)[1], Ok(Checksum::of(b"alone")), "without a device");
        assert_eq!(fake.under_way(), 0);
    }
    let grant = host.grant(Access::Read, &[(LONG as u64, LONG, 1)]);
    let mut ops = [read(0, 0, &[all(memory)])];
    fake.fail(c"cuMemcpyHtoDAsync_v2", 3);
    let answers = transport.read(&host.peer, &grant, &mut ops, soon()).await;
    fake.fail(c"", 0);
    assert!(matches!(answers[0], Err(TransferError::Device(_))), "{answers:?}");
    drop(transport);
    assert_eq!(fake.left(), before);

    // Buffers of copies that can't be waited for are left to the driver, and others are made.
    let transport = staged(TcpTransport::default());
    fake.fail(c"cuStreamSynchronize", 1);
    let answers = transport.read(&host.peer, &grant, &mut ops, soon()).await;
    fake.fail(c"", 0);
    assert!(matches!(answers[0], Err(TransferError::Device(_))), "{answers:?}");
    let answers = transport.read(&host.peer, &grant, &mut ops, soon()).await;
    assert_eq!(answers, [Ok(Checksum::of(&bytes))]);
    assert!(fake.bytes(memory) == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_the_device_refuses_fails_its_operation_alone() {
    let fake = Fake::get();
    let len = 10 * MIB;
    let (host, bytes) = (Host::start(ShmAccess::Off, 5 * len).await, pattern(len, 7));
    let (good, short) = (fake.holding(&bytes, 0), fake.allocate(MIB, 0));
    // SAFETY: the driver alone is told of the range, and refuses it.
    let mut beyond = unsafe { RawBytes::new(short.base, len) };
    RawBytes::locate([&mut beyond]).unwrap();
    let ranges: Vec<_> = (0..5).map(|nth| (nth * len as u64, len, 1)).collect();
    let grant = host.grant(Access::Write, &ranges);
    // Each is a piece of its own, and the last two begin after the first one has failed.
    let ops: Vec<_> = (0..5).map(|nth| write(nth, 0, &[if nth == 0 { beyond } else { all(good) }])).collect();
    let answers = staged(TcpTransport::default()).write(&host.peer, &grant, &ops, Seal::Yes, soon()).await;
    assert!(matches!(answers[0], Err(TransferError::Device(_))), "{answers:?}");
    assert_eq!(common::sums(answers)[1..], vec![Ok(Checksum::of(&bytes)); 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_gets_no_further_pieces() {
    let fake = Fake::get();
    let host = Host::start(ShmAccess::Off, 2 * LONG).await;
    let (memory, copied) = (fake.allocate(LONG, 0), fake::counter(c"cuMemcpyDtoHAsync_v2"));
    let transport = staged(TcpTransport::default());
    let grant = host.grant(Access::Write, &[(0, LONG, 1)]);
    let mut peer = host.peer.clone();
    peer.endpoints[0].address = "127.0.0.1:1".to_owned();
    let before = copied();
    let answers = transport.write(&peer, &grant, &[write(0, 0, &[all(memory)])], Seal::Yes, soon()).await;
    assert!(matches!(answers[0], Err(TransferError::Connect { .. })), "{answers:?}");
    assert!(copied() - before < 7, "of 7 pieces");
    let grant = host.grant(Access::Write, &[(0, LONG, 1)]);
    let past = Instant::now();
    let answers = transport.write(&host.peer, &grant, &[write(0, 0, &[all(memory)])], Seal::Yes, past).await;
    assert_eq!(answers, [Err(TransferError::NoBuffer)], "no store was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_gets_no_buffer_by_its_deadline_blames_no_store() {
    let fake = Fake::get();
    let host = Host::start(ShmAccess::Off, 3 * LONG).await;
    let (memory, copied) = (fake.allocate(LONG, 0), fake::counter(c"cuMemcpyDtoHAsync_v2"));
    let is_open = Arc::new(AtomicBool::new(false));
    let gate = is_open.clone();
    let transport = staged(Gated(TcpTransport::default(), Box::new(move || gate.load(Ordering::SeqCst))));
    let grant = |nth: u64| host.grant(Access::Write, &[(nth * LONG as u64, LONG, nth + 1)]);
    let write_by = async |nth: u64, deadline| {
        let ops = [write(0, 0, &[all(memory)])];
        transport.write(&host.peer, &grant(nth), &ops, Seal::Yes, deadline).await.remove(0)
    };
    let before = copied();
    let slow = async { futures::join!(write_by(0, soon()), write_by(1, soon())) };
    let late = async {
        until("two calls have all buffers", || copied() == before + 6).await;
        let late = write_by(2, Instant::now() + Duration::from_millis(50)).await;
        is_open.store(true, Ordering::SeqCst);
        late
    };
    let (slow, late) = futures::join!(slow, late);
    assert_eq!(late, Err(TransferError::NoBuffer));
    assert!(!late.unwrap_err().is_of_the_store() && slow.0.is_ok() && slow.1.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_share_a_few_buffers_which_stores_of_the_host_reach() {
    let fake = Fake::get();
    let host = Host::start(ShmAccess::SameUid, 10 * 33 * MIB + MIB).await;
    let (shm, moved) = client(ShmAccess::SameUid);
    let (transport, before) = (staged(shm), fake.left());
    let bytes = pattern(33 * MIB, 6);
    let memory = fake.holding(&bytes, 0);
    let place = |nth: u64| (nth * 33 * MIB as u64, bytes.len(), nth + 1);
    let one = async |nth: u64| {
        let grant = host.grant(Access::Write, &[place(nth)]);
        transport.write(&host.peer, &grant, &[write(0, 0, &[all(memory)])], Seal::Yes, soon()).await.remove(0)
    };
    // The first call connects, and bytes go over TCP until that is done.
    let mut tries = 1..;
    while moved.load(Ordering::SeqCst) == 0 {
        let grant = host.grant(Access::Write, &[(10 * 33 * MIB as u64, MIB, tries.next().unwrap())]);
        let ops = [write(0, 0, &[part(memory, 0, MIB)])];
        transport.write(&host.peer, &grant, &ops, Seal::Yes, soon()).await.remove(0).unwrap();
    }
    let first = moved.load(Ordering::SeqCst);
    for answer in join_all((0..10).map(one)).await {
        assert_eq!(common::sums(vec![answer]), [Ok(Checksum::of(&bytes))]);
    }
    assert!(fake.left()[2] - before[2] <= 6, "buffers");
    assert!(transport.copies_late(all(memory).into()), "the buffers have other bytes then");
    let moved = moved.load(Ordering::SeqCst) - first;
    assert_eq!(moved, 10 * 33 * MIB as u64, "without a copy through a connection");
    assert!(host.bytes(9 * 33 * MIB as u64, bytes.len()) == bytes);
}

#[test]
fn memory_of_a_device_is_not_registered() {
    let fake = Fake::get();
    let memory = fake.allocate(4096, 1);
    // SAFETY: memory that is never freed.
    let refused = unsafe { HostMemory::new().register(memory.base.as_ptr(), memory.len) };
    assert!(
        matches!(&refused, Err(RegisterError::OfDevice { device, .. }) if device == "GPU 1"),
        "{refused:?}"
    );
}
