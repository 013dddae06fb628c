#![allow(unsafe_code)]

use std::ptr::NonNull;

use mc_cuda::{Cuda, Device};

use super::error::DeviceError;

/// Memory that is named by its address, for callers that can't borrow it: another thread may read it or write to it during a call, and
/// parts of one call may overlap.
///
/// # Rules
///
/// - The memory is the caller's. It stays mapped until the call has returned or its future is dropped; of a future that is leaked
///   rather than dropped, for ever. A transport touches it at no other time.
/// - Bytes that change while they are read, or are written by two sides at once, are an arbitrary mixture of both and nothing worse:
///   a transport takes no decision by their values and keeps no reference to them between two steps of a call. The kernel and
///   the C library copy them. Only a step that adds bytes to a checksum, mostly up to 128 KiB of them, reads them through a slice of its own; strictly, the
///   language leaves that step undefined if another thread writes there at that moment. It has no branch and, but for a table
///   of 256 entries, no address that depends on the bytes.
/// - A value that changed during its put has a checksum that does not match, or is one mixture with its checksum. A get finds that
///   out unless checksums are off. A destination that changed during its get may make it miss.
/// - Bytes in memory of a GPU go through buffers in host memory. If its driver can't say whether a copy has ended, which happens when the GPU
///   fails, the copy may still be under way when the call returns.
/// - If a device of RDMA that was writing there fails and can't be stopped, which none is known to do, this process ends: nothing
///   else keeps the first rule.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes {
    base: NonNull<u8>,
    len: usize,
    /// The device in whose memory the bytes lie, if that was [looked up](Self::locate).
    device: Option<Device>,
}

// SAFETY: an address and a length. `new` demands that every thread may use the memory.
unsafe impl Send for RawBytes {}
// SAFETY: as above.
unsafe impl Sync for RawBytes {}

impl RawBytes {
    /// Names `len` bytes at `base`.
    ///
    /// # Safety
    /// From the first call that gets the value until the last one has ended as the rules above say:
    /// - The bytes are mapped and initialized, readable from every thread, and writable if they are a destination. In memory of a
    ///   device of CUDA, which only calls take that [look devices up](Self::locate), they are allocated and initialized.
    /// - They are part of one allocation or mapping, and `len` is at most [`isize::MAX`].
    /// - If they are in memory of a device, the other buffers of the same operation stay as they do, also after the future of the call was
    ///   leaked: a thread copies them.
    /// - No Rust reference to them is used: neither a `&mut [u8]`, nor a `&[u8]` to a destination or to what another thread
    ///   writes.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, device: None }
    }

    /// Looks up which of these bytes lie in memory of devices. If this process has not loaded the CUDA driver, no
    /// address is checked. Otherwise the driver is asked about each address, which takes less time than a copy of its
    /// bytes.
    ///
    /// # Errors
    /// When the driver does not say where an address lies.
    pub fn locate<'r>(all: impl IntoIterator<Item = &'r mut Self>) -> Result<(), DeviceError> {
        let Some(cuda) = Cuda::of_this_process().map_err(DeviceError::of_driver)? else { return Ok(()) };
        all.into_iter().filter(|bytes| !bytes.is_empty()).try_for_each(|bytes| {
            bytes.device = cuda.device_of(bytes.base.as_ptr() as u64).map_err(DeviceError::of_driver)?;
            Ok(())
        })
    }

    /// Waits for the work that a stream of the device has got in whose memory the bytes lie, if that was [looked up](Self::locate).
    ///
    /// # Safety
    /// The stream must exist, or be a number that stands for a default one.
    ///
    /// # Errors
    /// When the driver can't wait for it.
    pub unsafe fn wait_for(&self, stream: usize) -> Result<(), DeviceError> {
        let Some(device) = self.device else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { device.wait_for(stream) }.map_err(|why| DeviceError::at(device, &why))
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Number of the GPU in whose memory the bytes lie, if that was [looked up](Self::locate).
    #[must_use]
    pub fn gpu(&self) -> Option<i32> {
        self.device.map(Device::ordinal)
    }

    /// Address of the first byte.
    pub(crate) const fn base(self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn device(self) -> Option<Device> {
        self.device
    }

    /// Bytes of a buffer, whose owner keeps them while this is used.
    pub(crate) const fn of_buffer(base: NonNull<u8>, len: usize, device: Option<Device>) -> Self {
        Self { base, len, device }
    }

    /// Cuts it in two.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "cannot split {} bytes at {at}", self.len);
        // SAFETY: inside, or its end.
        let base = unsafe { self.base.add(at) };
        (Self { len: at, ..self }, Self { base, len: self.len - at, ..self })
    }
}
