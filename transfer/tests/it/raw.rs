//! Memory that is named by its address: operations that share it, writers beside a transfer, calls that are dropped.
#![allow(unsafe_code, reason = "the calls under test take addresses")]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mc_transfer::{
    Checksum, RawBytes, ReadOp, Seal, ShmAccess, TcpOptions, TcpTransport, Transport, WriteOp,
};
use mc_types::Access;

use crate::common::host::{Host, MIB, client};
use crate::common::relay::Relay;
use crate::common::{Store, pattern, peer_at, read, sealed, soon, write};

/// Memory of the caller. It is reached by its address alone, and gone with the value.
struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: memory that is only reached by copies of the C library.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(len: usize) -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: NonNull::new(base.cast()).unwrap(), len }
    }

    fn raw(&self) -> RawBytes {
        // SAFETY: mapped until the drop, which each test puts after its calls, and no references are made.
        unsafe { RawBytes::new(self.base, self.len) }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: all of it. The C library writes it, so that no reference is formed.
        unsafe { libc::memset(self.base.as_ptr().cast(), byte.into(), self.len) };
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: inside.
        unsafe { libc::memcpy(bytes.as_mut_ptr().cast(), self.base.as_ptr().cast(), self.len) };
        bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`. A later access ends the process.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn is_of_either(mixture: &[u8], one: &[u8], two: &[u8]) -> bool {
    mixture.iter().zip(one.iter().zip(two)).all(|(byte, (one, two))| byte == one || byte == two)
}

/// The checksum of each read is that of the bytes that came, though the other one overwrites them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_into_the_same_memory_do_not_disturb_each_other() {
    const LEN: usize = 12 * MIB;
    let host = Host::start(ShmAccess::SameUid, 2 * LEN).await;
    let (one, two) = (pattern(LEN, 1), pattern(LEN, 2));
    host.write(0, &one, 1).await;
    host.write(LEN as u64, &two, 2).await;
    let grant = host.grant(Access::Read, &[(0, LEN, 1), (LEN as u64, LEN, 2)]);
    let tcp = TcpTransport::new(TcpOptions { connections_per_peer: 2, ..TcpOptions::default() });
    let (shm, moved) = client(ShmAccess::SameUid);
    let transports: [&dyn Transport; 2] = [&tcp, &shm];
    let memory = Pages::new(LEN);
    for transport in transports {
        for _ in 0..10 {
            let mut ops = [0, 1].map(|range| ReadOp { range, offset: 0, into: vec![memory.raw().into()] });
            let answers = transport.read(&host.peer, &grant, &mut ops, soon()).await;
            assert_eq!(answers, [Ok(Checksum::of(&one)), Ok(Checksum::of(&two))]);
            assert!(is_of_either(&memory.bytes(), &one, &two));
        }
    }
    assert!(moved.load(Ordering::SeqCst) > 0);
}

/// The store has what the checksum says, because both are of one copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_changes_is_stored_as_some_mixture_with_its_checksum() {
    const LEN: usize = 3 * MIB;
    let host = Host::start(ShmAccess::SameUid, LEN).await;
    let (transport, moved) = client(ShmAccess::SameUid);
    let (memory, life) = (Pages::new(LEN), Arc::new(()));
    let (memory, ended) = (&memory, Arc::downgrade(&life));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = 0_u8;
            while ended.strong_count() > 0 {
                byte = byte.wrapping_add(1);
                memory.fill(byte);
            }
        });
        // It ends also where this panics.
        let _life = life;
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                for index in 1..=200 {
                    let grant = host.grant(Access::Write, &[(0, LEN, index)]);
                    let ops = [WriteOp { range: 0, offset: 0, from: vec![memory.raw().into()] }];
                    let answer = transport.write(&host.peer, &grant, &ops, Seal::Yes, soon()).await.remove(0);
                    assert_eq!(answer.unwrap().checksum, Checksum::of(&host.bytes(0, LEN)));
                }
            });
        });
    });
    assert!(moved.load(Ordering::SeqCst) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_read_does_not_touch_memory_that_is_gone() {
    let len = 8usize << 20;
    let store = Store::start(len as u64).await;
    let (transport, old) = (TcpTransport::default(), pattern(len, 1));
    write(&transport, &store.peer(), &sealed(Access::Write, 0, len as u64, 1), &old).await.unwrap();
    let relay = Relay::to(&store.address).await;
    relay.hold_down_after(len as u64 / 2);
    let (peer, granted) = (peer_at(&relay.address), sealed(Access::Read, 0, len as u64, 1));
    let memory = Pages::new(len);
    {
        let mut ops = [ReadOp { range: 0, offset: 0, into: vec![memory.raw().into()] }];
        let mut reading = transport.read(&peer, &granted, &mut ops, soon());
        tokio::select! {
            done = &mut reading => panic!("not held: {done:?}"),
            () = relay.held() => {}
        }
    }
    assert!(memory.bytes().iter().any(|byte| *byte != 0), "it was in the middle of it");
    drop(memory);
    relay.release();
    // The other calls go on, over connections of their own, and the relay has delivered all it had.
    assert!(read(&transport, &peer, &granted, len).await.unwrap().0 == old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_write_does_not_touch_memory_that_is_gone() {
    const LEN: usize = 8 * MIB;
    let host = Host::start(ShmAccess::SameUid, LEN).await;
    let (shm, moved) = client(ShmAccess::SameUid);
    let tcp = TcpTransport::default();
    let transports: [&dyn Transport; 2] = [&tcp, &shm];
    for (transport, index) in transports.into_iter().zip([1, 3]) {
        let relay = Relay::to(&host.peer.endpoints[0].address).await;
        let mut peer = host.peer.clone();
        peer.endpoints[0].address = relay.address.clone();
        // In the middle of the first request.
        relay.hold_up_after(60);
        let memory = Pages::new(LEN);
        memory.fill(7);
        let grant = host.grant(Access::Write, &[(0, LEN, index)]);
        {
            let ops = [WriteOp { range: 0, offset: 0, from: vec![memory.raw().into()] }];
            let mut writing = transport.write(&peer, &grant, &ops, Seal::Yes, soon());
            tokio::select! {
                done = &mut writing => panic!("not held: {done:?}"),
                () = relay.held() => {}
            }
        }
        drop(memory);
        relay.release();
        let value = pattern(LEN, index);
        let grant = host.grant(Access::Write, &[(0, LEN, index + 1)]);
        let ops = [WriteOp { range: 0, offset: 0, from: vec![(&value).into()] }];
        assert!(transport.write(&peer, &grant, &ops, Seal::Yes, soon()).await[0].is_ok());
        assert!(host.bytes(0, LEN) == value, "a late write can't come after a newer one");
    }
    assert!(moved.load(Ordering::SeqCst) > 0);
}
