//! Memory that the log keeps, however much was written.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use mc_log::{LogOptions, LogStore, SledOptions};

use common::{append, entry};

/// Counts the bytes that are allocated now.
struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const MIB: i64 = 1 << 20;

#[tokio::test]
async fn a_log_keeps_little_more_than_its_tail_and_its_cache() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions { tail_bytes: 4 << 20, ..LogOptions::default() };
    let sled = SledOptions { cache: 4 << 20, ..SledOptions::default() };
    let (mut store, _) = LogStore::open_sled(dir.path(), sled, options).await.unwrap();
    let before = LIVE.load(Ordering::Relaxed);
    for index in 0..1024 {
        append(&mut store, [entry(1, index, 128 << 10)]).await.await.unwrap().unwrap();
        let kept = LIVE.load(Ordering::Relaxed) - before;
        assert!(kept < 64 * MIB, "{} MiB in memory after {} KiB", kept / MIB, (index + 1) * 128);
    }
    store.close().await;
}
