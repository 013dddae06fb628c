//! Registration of a store's segments.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use mc_verbs::{Access, Memory, Region, Sge};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::rdma_devices::{Devices, NoRdma, RdmaDevice};

/// Bytes of one registration: so few that several threads share the work, which is to pin every page.
const PIECE: u64 = 1 << 30;
/// Number of threads that register a segment at a device.
const THREADS: usize = 4;

/// Registrations of a segment, one for each device.
pub(crate) struct Registered {
    /// By the number of the device.
    at_devices: Vec<AtDevice>,
    devices: Arc<Devices>,
}

/// Registration at one device.
#[derive(Default)]
struct AtDevice {
    pieces: OnceLock<Pieces>,
    /// Error of the last attempt.
    failed: Mutex<Option<NoRdma>>,
}

/// Registrations of memory at one device, each of `piece` bytes but the last.
pub(super) struct Pieces {
    regions: Vec<Region>,
    piece: u64,
}

/// Part of a segment's memory, or of memory of somebody else.
pub(super) struct Mapped {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address; what it is used for is said below.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// # Safety
    /// The memory must stay mapped as long as it is registered.
    pub(super) unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// At most `len` bytes from `start` on, which lies inside.
    fn part(&self, start: u64, len: u64) -> Self {
        // SAFETY: inside the memory.
        let base = unsafe { self.base.add(start as usize) };
        Self { base, len: (self.len - start as usize).min(len as usize) }
    }
}

// SAFETY: `Registered::register` and `Mapped::new` take mapped memory that outlives the registration. Segments make no references to
// it, and nor does anybody to raw bytes: see `RawBytes`.
unsafe impl Memory for Mapped {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.base, self.len)
    }
}

impl Registered {
    /// Creates it without a registration.
    pub(crate) fn new(devices: &Arc<Devices>) -> Self {
        Self {
            at_devices: devices.opened.iter().map(|_| AtDevice::default()).collect(),
            devices: devices.clone(),
        }
    }

    /// Registers memory at the devices where it is not registered, for requests of this process only: peers get no key to it.
    ///
    /// # Safety
    /// Each call must name the same memory. It must stay mapped until the value is dropped, and no reference to it may exist.
    ///
    /// # Errors
    /// When it is not registered at some device, which the error names.
    pub(crate) unsafe fn register(&self, base: NonNull<u8>, len: u64) -> Result<(), NoRdma> {
        let memory = Mapped { base, len: len as usize };
        let all: Vec<_> = self.at_devices.iter().zip(&self.devices.opened).collect();
        on_threads(all.len(), all.len(), |nth| {
            let (at, device) = all[nth];
            if at.pieces.get().is_some() {
                return;
            }
            let made = Pieces::new(device, memory.part(0, len), Access::Local);
            *at.failed.lock() = made.as_ref().err().cloned();
            if let Ok(pieces) = made {
                // Another call may have set it first. This one is then dropped.
                let _ = at.pieces.set(pieces);
            }
        });
        self.lacks().map_or(Ok(()), Err)
    }

    /// Number of devices at which it is registered.
    pub(crate) fn count(&self) -> usize {
        self.at_devices.iter().filter(|at| at.pieces.get().is_some()).count()
    }

    /// Whether it is registered at the device; `None` while that was not tried.
    pub(crate) fn at(&self, device: usize) -> Option<bool> {
        let at = self.at_devices.get(device)?;
        if at.pieces.get().is_some() { Some(true) } else { at.failed.lock().as_ref().map(|_| false) }
    }

    /// Why it is not registered at some devices.
    pub(crate) fn lacks(&self) -> Option<NoRdma> {
        let reasons: Vec<_> =
            self.at_devices.iter().filter_map(|at| Some(at.failed.lock().as_ref()?.to_string())).collect();
        (!reasons.is_empty()).then(|| NoRdma(reasons.join("; ")))
    }

    /// Returns the local pieces of a range, which must lie in the segment; `None` if they were
    /// registered with other devices.
    pub(crate) fn pieces(
        &self,
        devices: &Arc<Devices>,
        device: usize,
        range: Range<u64>,
    ) -> Option<SmallVec<[Sge; 2]>> {
        let pieces =
            self.at_devices.get(device).filter(|_| Arc::ptr_eq(devices, &self.devices))?.pieces.get()?;
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

/// Does as many pieces of work as are asked for, on this thread and others; the results are in order. It is slower where the
/// system has no thread left.
pub(super) fn on_threads<T: Send>(count: usize, threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
    let go_on = || {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= count {
                return;
            }
            let result = work(nth);
            done.lock().push((nth, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            // If no further thread can be started, this one does the remaining work alone.
            let _ = thread::Builder::new().spawn_scoped(scope, go_on);
        }
        go_on();
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(_, result)| result).collect()
}

impl Pieces {
    /// Registers memory, on several threads.
    pub(super) fn new(device: &RdmaDevice, memory: Mapped, access: Access) -> Result<Self, NoRdma> {
        let len = memory.len as u64;
        // A multiple of a page, also where the device's limit is not.
        let piece = PIECE.min(device.limits.region_bytes).max(4096) & !4095;
        let pinned = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let regions = on_threads(len.div_ceil(piece) as usize, THREADS, |nth| {
            if failed.load(Ordering::Relaxed) {
                return None;
            }
            let region =
                Region::new(&device.domain, Arc::new(memory.part(nth as u64 * piece, piece)), access);
            match &region {
                Ok(region) => drop(pinned.fetch_add(region.len(), Ordering::Relaxed)),
                Err(_) => failed.store(true, Ordering::Relaxed),
            }
            Some(region)
        });
        let regions: Result<Vec<Region>, _> = regions.into_iter().flatten().collect();
        let regions = regions.map_err(|error| {
            NoRdma(format!("{error} ({} of the {len} bytes were registered)", pinned.into_inner()))
        })?;
        Ok(Self { regions, piece })
    }

    /// Wraps one registration that covers all of the memory.
    pub(super) fn whole(region: Region) -> Self {
        Self { piece: (region.len() as u64).max(1), regions: vec![region] }
    }

    /// Whether a range of at least one byte has one key.
    pub(super) fn covers(&self, at: u64, len: u64) -> bool {
        at / self.piece == (at + len - 1) / self.piece
    }

    /// The key for peers of a byte.
    pub(super) fn remote_key(&self, at: u64) -> Option<u32> {
        Some(self.regions.get(usize::try_from(at / self.piece).ok()?)?.remote_key())
    }
}
