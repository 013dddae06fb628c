//! Copies through pinned memory.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::fmt;
use std::ptr;
use std::slice;

use crate::driver::{Context, CudaError, Current, Device};

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
const PORTABLE: c_uint = 1;
/// `CU_STREAM_DEFAULT`: copies wait for what the caller has given the default stream before, as plain copies do.
const AFTER_DEFAULT_STREAM: c_uint = 0;

/// Two pinned buffers, through which bytes go between the memory of a device and the host. While the device copies to or from one, the
/// caller works with the other.
pub struct Stage {
    /// Each with a stream of its own.
    buffers: [Buffer; 2],
    piece: usize,
    device: Device,
    /// Whether a copy may still be under way, because the driver could not wait for it. Then the buffers are left to
    /// the driver, which frees them with its context.
    is_lost: Cell<bool>,
    context: Context,
}

/// A pinned buffer, and the stream of its copies. Null where it was not made.
struct Buffer {
    memory: *mut u8,
    stream: *mut c_void,
}

// SAFETY: only reached through a unique reference, and any thread may wait for a stream.
unsafe impl Send for Buffer {}

impl Stage {
    /// Allocates buffers of `piece` bytes each.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(device: Device, piece: usize) -> Result<Self, CudaError> {
        let context = device.context()?;
        let none = || Buffer { memory: ptr::null_mut(), stream: ptr::null_mut() };
        let piece = piece.max(1);
        let mut made = Self { buffers: [none(), none()], piece, device, is_lost: Cell::new(false), context };
        let cuda = made.context.cuda;
        let current = made.context.enter()?;
        for Buffer { memory, stream } in &mut made.buffers {
            // SAFETY: room for the answer. This thread has the context.
            let done = unsafe { (cuda.cuMemHostAlloc)((&raw mut *memory).cast(), piece, PORTABLE) };
            cuda.check("pin memory", done)?;
            // SAFETY: the memory that was just allocated.
            unsafe { memory.write_bytes(0, piece) };
            // SAFETY: as above.
            let done = unsafe { (cuda.cuStreamCreate)(&raw mut *stream, AFTER_DEFAULT_STREAM) };
            cuda.check("make a stream", done)?;
        }
        drop(current);
        Ok(made)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Reads memory of the device, in order and in pieces: `take` gets each, while the next one is copied.
    ///
    /// # Safety
    /// The range must lie in memory of the device that stays allocated until this returns, and nothing may write to it meanwhile.
    ///
    /// # Errors
    /// [`CudaError`], or the first error of `take`. In any case no copy is under way any more.
    pub unsafe fn read<E: From<CudaError>>(
        &mut self,
        from: u64,
        len: usize,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (copies, cuda) = (Copies::begin(self)?, self.context.cuda);
        let piece = |nth: usize| self.piece.min(len - nth * self.piece);
        let count = len.div_ceil(self.piece);
        let start = |nth: usize| {
            let (buffer, from) = (&self.buffers[nth % 2], from + (nth * self.piece) as u64);
            // SAFETY: the caller's memory, and a buffer of that size, which nothing uses until its stream has been waited for.
            let done =
                unsafe { (cuda.cuMemcpyDtoHAsync_v2)(buffer.memory.cast(), from, piece(nth), buffer.stream) };
            cuda.check("copy from a device", done)
        };
        if count > 0 {
            start(0)?;
        }
        for nth in 0..count {
            if nth + 1 < count {
                // Into the buffer that `take` had before.
                start(nth + 1)?;
            }
            copies.wait(nth % 2)?;
            // SAFETY: filled by the copy that has ended. The next copy goes into the other buffer.
            take(unsafe { slice::from_raw_parts(self.buffers[nth % 2].memory, piece(nth)) })?;
        }
        Ok(())
    }

    /// Writes memory of the device, in order and in pieces: `fill` fills each, while the one before is copied.
    ///
    /// # Safety
    /// The range must lie in memory of the device that stays allocated until this returns, and nothing may use it meanwhile.
    ///
    /// # Errors
    /// [`CudaError`], or the first error of `fill`. In any case no copy is under way any more.
    pub unsafe fn write<E: From<CudaError>>(
        &mut self,
        to: u64,
        len: usize,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (copies, cuda) = (Copies::begin(self)?, self.context.cuda);
        for nth in 0..len.div_ceil(self.piece) {
            let (buffer, at) = (&self.buffers[nth % 2], nth * self.piece);
            let piece = self.piece.min(len - at);
            // The copy of the piece before the last one, which came from this buffer.
            copies.wait(nth % 2)?;
            // SAFETY: pinned memory of that size, which no copy uses now; it was set to zero when it was made.
            fill(unsafe { slice::from_raw_parts_mut(buffer.memory, piece) })?;
            // SAFETY: the caller's memory, and a buffer that nothing changes until its stream has been waited for.
            let done = unsafe {
                (cuda.cuMemcpyHtoDAsync_v2)(to + at as u64, buffer.memory.cast(), piece, buffer.stream)
            };
            cuda.check("copy to a device", done)?;
        }
        copies.wait(0)?;
        copies.wait(1)?;
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_lost.get() {
            return;
        }
        let freed = self.context.enter().and_then(|_current| {
            let cuda = self.context.cuda;
            for Buffer { memory, stream } in &self.buffers {
                if !stream.is_null() {
                    // SAFETY: made in `new`, and no copy is under way.
                    cuda.check("end a stream", unsafe { (cuda.cuStreamDestroy_v2)(*stream) })?;
                }
                if !memory.is_null() {
                    // SAFETY: as above.
                    cuda.check("free pinned memory", unsafe { (cuda.cuMemFreeHost)(memory.cast()) })?;
                }
            }
            Ok(())
        });
        if let Err(why) = freed {
            tracing::warn!("{why}");
        }
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage")
            .field("device", &self.device)
            .field("piece", &self.piece)
            .finish_non_exhaustive()
    }
}

/// Copies of one call. When it is dropped, also by an error or a panic of the caller, they have ended.
struct Copies<'a> {
    stage: &'a Stage,
    /// Popped after the streams were waited for.
    _current: Current<'a>,
}

impl<'a> Copies<'a> {
    fn begin(stage: &'a Stage) -> Result<Self, CudaError> {
        if stage.is_lost.get() {
            return Err(CudaError::new("copy", "an earlier copy did not end"));
        }
        Ok(Self { stage, _current: stage.context.enter()? })
    }

    /// Waits for the copies of a buffer.
    fn wait(&self, buffer: usize) -> Result<(), CudaError> {
        let cuda = self.stage.context.cuda;
        // SAFETY: a live stream.
        let done = unsafe { (cuda.cuStreamSynchronize)(self.stage.buffers[buffer].stream) };
        cuda.check("wait for a copy", done)
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        let both = [self.wait(0), self.wait(1)];
        if let Some(why) = both.into_iter().find_map(Result::err) {
            self.stage.is_lost.set(true);
            tracing::error!("{why}: the memory for copies is not used any more");
        }
    }
}
