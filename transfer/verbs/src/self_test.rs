//! Test of a device against itself.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::choice::Path;
use crate::device::Domain;
use crate::pair::{Capacity, Op, QueuePair, Sge, Timing, Work};
use crate::queue::CompletionQueue;
use crate::region::{Access, Memory, Region};

/// Bytes that are moved each way.
const LEN: usize = 4 << 10;
/// Longest wait for one of the requests.
const WITHIN: Duration = Duration::from_secs(3);

/// A page that a device may write to.
struct Page(NonNull<u8>);

// SAFETY: memory that is accessed by address only.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

// SAFETY: allocated until the drop, and no references to it are made.
unsafe impl Memory for Page {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.0, LEN)
    }
}

const LAYOUT: Layout = match Layout::from_size_align(LEN, LEN) {
    Ok(layout) => layout,
    Err(_) => panic!("a page is a power of two"),
};

impl Page {
    fn new() -> Arc<Self> {
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(LAYOUT) };
        Arc::new(Self(NonNull::new(base).unwrap_or_else(|| handle_alloc_error(LAYOUT))))
    }

    fn fill(&self, byte: u8) {
        // SAFETY: all of the page. No request is under way.
        unsafe { self.0.write_bytes(byte, LEN) };
    }

    fn is_full_of(&self, byte: u8) -> bool {
        // SAFETY: as above, one byte after the other.
        (0..LEN).all(|at| unsafe { self.0.add(at).read_volatile() } == byte)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout. Its region has ended, which keeps it.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) };
    }
}

/// Writes and reads 4 KiB through two queue pairs of the device that are connected with each other. Some devices that report an active
/// port and an address have no reliable connections, or can't use that address.
///
/// # Errors
/// The step that failed, and why.
pub fn self_test(domain: &Arc<Domain>, path: Path) -> Result<(), String> {
    let device = domain.device().name();
    let failed = |error: &dyn std::fmt::Display| format!("RDMA device {device} fails its self-test: {error}");
    let queue = CompletionQueue::new(domain.device(), 16).map_err(|error| failed(&error))?;
    let (near, far) = (Page::new(), Page::new());
    let local = Region::new(domain, near.clone(), Access::Local).map_err(|error| failed(&error))?;
    let remote = Region::new(domain, far.clone(), Access::Remote).map_err(|error| failed(&error))?;
    let capacity = Capacity { requests: 2, pieces: 1, messages: 1, reads_at_once: 1, remote: true };
    // Dropped before the regions on every path.
    let pair = |first_packet| QueuePair::new(domain, &queue, path, capacity, first_packet);
    let one = pair(0x10_0000).map_err(|error| failed(&error))?;
    let two = pair(0x20_0000).map_err(|error| failed(&error))?;
    one.connect(&two.address(), Timing::default()).map_err(|error| failed(&error))?;
    two.connect(&one.address(), Timing::default()).map_err(|error| failed(&error))?;
    near.fill(0xa5);
    for (op, byte) in [(Op::Write, 0xa5), (Op::Read, 0x5a)] {
        let local = [Sge { address: local.address(), len: LEN as u32, key: local.local_key() }];
        let (remote, key) = (remote.address(), remote.remote_key());
        let work = Work { id: 1, op, local: &local, remote, key, signaled: true };
        // SAFETY: the pages are registered until the queue pairs are gone, and not accessed before the request has completed.
        unsafe { one.post(&[work]) }.map_err(|error| failed(&error))?;
        completed(&queue).map_err(|why| failed(&format!("{op:?} of {LEN} bytes to itself: {why}")))?;
        if !near.is_full_of(byte) || !far.is_full_of(byte) {
            return Err(failed(&format!("{op:?} of {LEN} bytes to itself brought other bytes")));
        }
        far.fill(0x5a);
    }
    Ok(())
}

/// Waits for the end of one request.
fn completed(queue: &CompletionQueue) -> Result<(), String> {
    let until = Instant::now() + WITHIN;
    let mut taken = Vec::new();
    loop {
        queue.arm().map_err(|error| error.to_string())?;
        queue.take(&mut taken).map_err(|error| error.to_string())?;
        if let Some(done) = taken.pop() {
            return done.result.map(drop).map_err(|failure| failure.to_string());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("nothing completed within {WITHIN:?}"));
        }
        queue.wait(left).map_err(|error| error.to_string())?;
    }
}
