//! Copies through pinned memory.
#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::ptr::{self, NonNull};

use crate::driver::{Context, CudaError, Device};

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all contexts.
const PORTABLE: c_uint = 1;
/// `CU_STREAM_DEFAULT`: copies wait for what the caller has given the default stream before, as plain copies do.
const AFTER_DEFAULT_STREAM: c_uint = 0;

/// Host memory that is pinned for devices, through which bytes go to and from theirs.
pub struct Stage {
    base: NonNull<u8>,
    len: usize,
    /// One lane for each device that was used.
    lanes: Vec<Lane>,
    /// Whether a copy may still be under way, because the driver could not wait for it.
    is_lost: bool,
    pinned_in: Context,
}

/// Bytes in the memory of a device, and their place in the host memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCopy {
    /// Device whose memory holds the bytes.
    pub device: Device,
    /// Address of the first byte there.
    pub address: u64,
    /// Offset in the host memory.
    pub at: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Direction of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// From the memory of devices to host memory.
    Host,
    /// From host memory to the memory of devices.
    Devices,
}

/// A stream of a device.
struct Lane {
    device: Device,
    stream: *mut c_void,
    context: Context,
}

// SAFETY: the memory is the caller's, who lets any thread use it, and so does the driver with a stream.
unsafe impl Send for Stage {}
// SAFETY: a shared reference gives nothing to do.
unsafe impl Sync for Stage {}

impl Stage {
    /// Pins host memory. Pinning it for one device pins it for all: every device can copy to and from it.
    ///
    /// # Safety
    /// The memory must stay mapped until the stage is dropped; for ever if it [is lost](Self::is_lost) then.
    ///
    /// # Errors
    /// [`CudaError`].
    pub unsafe fn new(device: Device, base: NonNull<u8>, len: usize) -> Result<Self, CudaError> {
        let pinned_in = device.context()?;
        let current = pinned_in.enter()?;
        // SAFETY: the caller's memory. This thread has a context.
        let done = unsafe { (pinned_in.cuda.cuMemHostRegister_v2)(base.as_ptr().cast(), len, PORTABLE) };
        pinned_in.cuda.check("pin memory", done)?;
        drop(current);
        Ok(Self { base, len, lanes: Vec::new(), is_lost: false, pinned_in })
    }

    /// Whether a copy may still be under way, so that the memory has to stay for ever.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Copies, and returns when no copy is under way any more, also on an error.
    ///
    /// # Safety
    /// Each range of a device must lie in memory of it that stays allocated until this returns, and nothing may write to what is read or use
    /// what is written meanwhile.
    ///
    /// # Errors
    /// [`CudaError`]. The bytes at the destination are unspecified then.
    ///
    /// # Panics
    /// When a copy would not be inside of the host memory.
    pub unsafe fn copy(&mut self, towards: Towards, copies: &[DeviceCopy]) -> Result<(), CudaError> {
        if self.is_lost {
            return Err(CudaError::new("copy", "an earlier copy did not end"));
        }
        for copy in copies {
            let fits = self.len.checked_sub(copy.len).is_some_and(|most| copy.at <= most);
            assert!(fits, "{copy:?} does not fit into {} bytes", self.len);
        }
        let begun = copies
            .chunk_by(|one, next| one.device == next.device)
            // SAFETY: as the caller promises, and inside.
            .try_for_each(|run| unsafe { self.begin(towards, run) });
        let used = self.lanes.iter().filter(|lane| copies.iter().any(|copy| copy.device == lane.device));
        let waits: Vec<_> = used.map(Lane::wait).collect();
        let waited = waits.into_iter().collect::<Result<(), _>>();
        if let Err(why) = &waited {
            self.is_lost = true;
            tracing::error!("{why}: the memory for copies is not used any more");
        }
        begun.and(waited)
    }

    /// Begins copies of one device.
    ///
    /// # Safety
    /// As [`Self::copy`] until the lane of the device was waited for; the copies must be inside.
    unsafe fn begin(&mut self, towards: Towards, copies: &[DeviceCopy]) -> Result<(), CudaError> {
        let Some(first) = copies.first() else { return Ok(()) };
        let at = match self.lanes.iter().position(|lane| lane.device == first.device) {
            Some(at) => at,
            None => {
                self.lanes.push(Lane::new(first.device)?);
                self.lanes.len() - 1
            }
        };
        let Lane { stream, context, .. } = &self.lanes[at];
        let (cuda, _current) = (context.cuda, context.enter()?);
        copies.iter().try_for_each(|copy| {
            // SAFETY: inside.
            let host = unsafe { self.base.add(copy.at) }.as_ptr().cast();
            // SAFETY: memory of both sides that the caller keeps, and a stream of the context that this thread has.
            unsafe {
                match towards {
                    Towards::Host => {
                        let done = (cuda.cuMemcpyDtoHAsync_v2)(host, copy.address, copy.len, *stream);
                        cuda.check("copy from a device", done)
                    }
                    Towards::Devices => {
                        let done = (cuda.cuMemcpyHtoDAsync_v2)(copy.address, host, copy.len, *stream);
                        cuda.check("copy to a device", done)
                    }
                }
            }
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_lost {
            // The driver ends the streams with their contexts, after whatever it does there.
            std::mem::take(&mut self.lanes).into_iter().for_each(std::mem::forget);
            return;
        }
        let context = &self.pinned_in;
        let unpinned = context.enter().and_then(|_current| {
            // SAFETY: pinned in `new`, and no copy is under way.
            let done = unsafe { (context.cuda.cuMemHostUnregister)(self.base.as_ptr().cast()) };
            context.cuda.check("unpin memory", done)
        });
        if let Err(why) = unpinned {
            tracing::warn!("{why}");
        }
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Lane {
    fn new(device: Device) -> Result<Self, CudaError> {
        let context = device.context()?;
        let (current, mut stream) = (context.enter()?, ptr::null_mut());
        // SAFETY: room for the answer. This thread has the context.
        let done = unsafe { (context.cuda.cuStreamCreate)(&raw mut stream, AFTER_DEFAULT_STREAM) };
        context.cuda.check("make a stream", done)?;
        drop(current);
        Ok(Self { device, stream, context })
    }

    /// Waits for its copies.
    fn wait(&self) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        // SAFETY: a live stream.
        let done = unsafe { (self.context.cuda.cuStreamSynchronize)(self.stream) };
        self.context.cuda.check("wait for a copy", done)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let ended = self.context.enter().and_then(|_current| {
            // SAFETY: made in `new`, and no copy is under way.
            let done = unsafe { (self.context.cuda.cuStreamDestroy_v2)(self.stream) };
            self.context.cuda.check("end a stream", done)
        });
        if let Err(why) = ended {
            tracing::warn!("{why}");
        }
    }
}
