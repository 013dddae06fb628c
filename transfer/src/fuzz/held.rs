//! An allocator that counts the bytes each thread holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator with a count of the bytes each thread holds, for a test's `#[global_allocator]`.
pub struct Counting;

/// Runs `work` and returns its result and the most bytes that it held at any one time, counted by [`Counting`].
pub fn most_held<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = HELD.get();
    MOST.set(before);
    let result = work();
    (result, MOST.get().saturating_sub(before).unsigned_abs())
}

fn count(more: usize, less: usize) {
    let held = HELD.get().saturating_add_unsigned(more).saturating_sub_unsigned(less);
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

// SAFETY: every call is passed on unchanged to the system's allocator. Counting takes no memory: the thread's counters
// are made without an allocation and are never dropped.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        unsafe { System.realloc(at, layout, size) }
    }
}
