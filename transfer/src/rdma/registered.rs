//! Registration of a store's segments.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use mc_verbs::{Access, Memory, Region, Sge};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::ways::Way;
use super::{NoRdma, Rdma};

/// Bytes of one registration: so few that several threads share the work, which is to pin every page.
const PIECE: u64 = 1 << 30;
/// Number of threads that register a segment at a device.
const THREADS: usize = 4;

/// A segment's registrations.
pub(crate) struct Registered {
    /// By the number of the way.
    ways: Vec<Pieces>,
    rdma: Arc<Rdma>,
}

/// Registrations of one segment at one device, each of `piece` bytes but the last.
struct Pieces {
    regions: Vec<Region>,
    piece: u64,
}

/// Part of a segment's memory.
struct Mapped {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address; what it is used for is said below.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// At most `len` bytes from `start` on, which lies inside.
    fn part(&self, start: u64, len: u64) -> Self {
        // SAFETY: inside the memory.
        let base = unsafe { self.base.add(start as usize) };
        Self { base, len: (self.len - start as usize).min(len as usize) }
    }
}

// SAFETY: `Registered::new` takes mapped memory that outlives the registration. Segments make no references to it.
unsafe impl Memory for Mapped {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.base, self.len)
    }
}

impl Registered {
    /// Registers memory at all devices, for requests of this process only: peers get no key to it.
    ///
    /// # Safety
    /// The memory must stay mapped until the value is dropped, and no reference to it may exist.
    pub(crate) unsafe fn new(rdma: &Arc<Rdma>, base: NonNull<u8>, len: u64) -> Result<Self, NoRdma> {
        let ways = thread::scope(|scope| {
            let memory = || Mapped { base, len: len as usize };
            let register = |way| {
                let memory = memory();
                scope.spawn(move || Pieces::new(way, memory))
            };
            let registering: Vec<_> = rdma.ways.iter().map(register).collect();
            registering.into_iter().map(join).collect::<Result<Vec<_>, _>>()
        });
        Ok(Self { ways: ways?, rdma: rdma.clone() })
    }

    /// Returns the local pieces of a range, which must lie in the segment; `None` if they were
    /// registered with other devices.
    pub(super) fn pieces(
        &self,
        rdma: &Arc<Rdma>,
        way: usize,
        range: Range<u64>,
    ) -> Option<SmallVec<[Sge; 2]>> {
        let pieces = self.ways.get(way).filter(|_| Arc::ptr_eq(rdma, &self.rdma))?;
        let (mut at, mut found) = (range.start, SmallVec::new());
        while at < range.end {
            let region = pieces.regions.get(usize::try_from(at / pieces.piece).ok()?)?;
            let within = at % pieces.piece;
            let len = (region.len() as u64 - within).min(range.end - at);
            let len = u32::try_from(len).ok()?;
            found.push(Sge { address: region.address() + within, len, key: region.local_key() });
            at += u64::from(len);
        }
        Some(found)
    }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T, NoRdma>>) -> Result<T, NoRdma> {
    thread.join().unwrap_or_else(|_| Err(NoRdma("registering memory panicked".to_owned())))
}

impl Pieces {
    fn new(way: &Way, memory: Mapped) -> Result<Self, NoRdma> {
        let len = memory.len as u64;
        // A multiple of a page, also where the device's limit is not.
        let piece = PIECE.min(way.limits.region_bytes).max(4096) & !4095;
        let starts: Vec<u64> = (0..len).step_by(piece as usize).collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(starts.len())));
        let register = || -> Result<(), NoRdma> {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                let Some(start) = starts.get(nth) else { return Ok(()) };
                let part = memory.part(*start, piece);
                let region = Region::new(&way.domain, Arc::new(part), Access::Local);
                let region = region.map_err(|error| {
                    next.store(starts.len(), Ordering::Relaxed);
                    let pinned: usize =
                        done.lock().iter().map(|(_, region): &(usize, Region)| region.len()).sum();
                    NoRdma(format!("{error} ({pinned} of the {len} bytes of the segment were registered)"))
                })?;
                done.lock().push((nth, region));
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS.min(starts.len())).map(|_| scope.spawn(register)).collect();
            threads.into_iter().map(join).collect::<Result<Vec<()>, _>>()
        })?;
        let mut regions = done.into_inner();
        regions.sort_by_key(|(nth, _)| *nth);
        Ok(Self { regions: regions.into_iter().map(|(_, region)| region).collect(), piece })
    }
}
