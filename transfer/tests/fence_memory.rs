//! Each write that a store remembers takes at most 64 bytes of its memory.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use mc_transfer::{Seal, TcpTransport, Transport as _, WriteOp};
use mc_types::Access;

use common::{KEY, Store, grant, range, soon};

/// Counts the bytes that this process holds.
struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Writes in one request, and requests: each write is a put of its own, in no order.
const BATCH: u64 = 1 << 11;
const BATCHES: u64 = 1 << 6;
const SLOTS: u64 = BATCH * BATCHES;

async fn write_batch(store: &Store, transport: &TcpTransport, place: impl Fn(u64) -> u64, first: u64) {
    // An odd factor visits every slot once.
    let ranges = (first..first + BATCH).map(|nth| range(place(nth) * 64, 8, 1 + nth)).collect();
    let (peer, granted) = (store.peer(), grant(Access::Write, ranges).seal(&KEY));
    let op = |nth| WriteOp { range: nth, offset: 0, from: vec![(&[7; 8]).into()] };
    let ops: Vec<WriteOp<'_>> = (0..BATCH as u32).map(op).collect();
    let answers = transport.write(&peer, &granted, &ops, Seal::No, soon()).await;
    assert!(answers.iter().all(Result::is_ok), "{:?}", answers[0]);
}

#[tokio::test]
async fn a_remembered_write_takes_at_most_64_bytes() {
    type Place = fn(u64) -> u64;
    let orders: [(&str, Place); 2] = [("in order", |nth| nth), ("scattered", |nth| nth * 40_503 % SLOTS)];
    for (order, place) in orders {
        let store = Store::start(SLOTS * 64).await;
        let transport = TcpTransport::default();
        // The buffers of the connection are there after one.
        write_batch(&store, &transport, place, 0).await;
        let (before, known) = (HELD.load(Ordering::Relaxed), store.fence_bytes());
        for batch in 1..BATCHES {
            write_batch(&store, &transport, place, batch * BATCH).await;
        }
        let (writes, held) = (SLOTS - BATCH, HELD.load(Ordering::Relaxed) - before);
        let (each, told) =
            (held as f64 / writes as f64, (store.fence_bytes() - known) as f64 / writes as f64);
        println!("{writes} writes {order}: {each:.1} bytes each, {told:.1} by the store's own account");
        assert!(each <= 64.0, "{order}: {each}");
        // The account may be too high by what it takes for a chunk's place in the tree.
        assert!(told >= each * 0.97 && told <= 64.0, "{order}: {told} for {each}");
    }
}
