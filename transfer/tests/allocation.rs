//! Moving bytes takes no memory: buffers and connections are reused from transfer to transfer.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use mc_transfer::{ReadOp, Seal, TcpTransport, Transport, WriteOp};
use mc_types::Access;

use common::{Store, grant, pattern, range, soon};

/// Counts the bytes that are asked for.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(size as u64, Ordering::Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const MIB: usize = 1 << 20;
const TRANSFERS: u64 = 10_000;

/// Client and store are both in this process, so both are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_transfers_of_1_mib_allocate_less_than_a_hundredth_of_their_bytes() {
    let store = Store::start(8 * MIB as u64).await;
    let (transport, peer) = (TcpTransport::default(), store.peer());
    let ranges: Vec<_> = (0..8).map(|i| range(i * MIB as u64, MIB as u64, 1)).collect();
    let write_grant = grant(Access::Write, ranges.clone()).seal(&common::KEY);
    let read_grant = grant(Access::Read, ranges).seal(&common::KEY);
    let from = pattern(MIB, 1);
    let mut into = vec![0; MIB];

    let before = ALLOCATED.load(Ordering::Relaxed);
    for i in 0..TRANSFERS / 2 {
        let range = (i % 8) as u32;
        let ops = [WriteOp { range, offset: 0, from: vec![(&from).into()] }];
        let wrote = transport.write(&peer, &write_grant, &ops, Seal::No, soon()).await.remove(0).unwrap();
        let mut ops = [ReadOp { range, offset: 0, into: vec![(&mut into).into()] }];
        let got = transport.read(&peer, &read_grant, &mut ops, soon()).await.remove(0).unwrap();
        assert_eq!(wrote.checksum, got);
    }
    let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
    let moved = TRANSFERS * MIB as u64;
    println!("{TRANSFERS} transfers of 1 MiB: {} bytes allocated for each", allocated / TRANSFERS);
    assert!(allocated < moved / 100, "{allocated} bytes allocated to move {moved}");
}
