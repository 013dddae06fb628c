#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::areas::Areas;
use super::error::RegisterError;
use super::raw_bytes::RawBytes;
use super::rdma::Rdma;
use super::rdma_devices::{NoRdma, RdmaDevices, RdmaOptions};
use super::registration::RegisteredMemory;
use crate::Transports;

/// Memory of this process that transports reach where it is: what it allocates, and what others have allocated and it registers.
///
/// Several transports can share one, and none has to exist yet. Memory is found by the address of each buffer of a call. Stores of this
/// host map what was allocated, so that a write is one copy; a write from registered memory is two, through a buffer that they map, because
/// the kernel copies out of another process's own memory at less than half of that speed. A read is one copy in any case. By RDMA, bytes
/// go straight from and to both, without a copy, except the few buffers that lie across two registrations of a
/// GiB each.
///
/// A clone is the same memory.
#[derive(Clone, Debug, Default)]
pub struct HostMemory {
    areas: Arc<Areas>,
}

impl HostMemory {
    /// Creates one without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates zeroed, page-aligned memory that all stores reach which a transport with this value calls. Up to 128 allocations of
    /// 16 KiB and more at a time are; others are as good as any memory. It is faulted in and registered with the devices of the
    /// transports that there are, which takes a second for every few GiB. Others register it once they use it.
    ///
    /// # Errors
    /// [`RegisterError::OutOfMemory`] when there is not enough.
    pub fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        RegisteredMemory::in_area(&self.areas, len)
    }

    /// Registers memory of somebody else, such as the pages of an inference engine, of any size. It is registered with the devices of the
    /// transports that there are, for what puts read, which takes a second for every few GiB. The rest is registered in the background once
    /// a call needs it; the bytes of that call are copied. With a device that refuses it, bytes are copied, too, and the log says why.
    ///
    /// # Errors
    /// [`RegisterError`] if the address is null, the length is not possible, some of it is registered already, or it is memory of a device.
    ///
    /// # Safety
    /// The memory must be mapped, readable and writable until [`Self::unregister`] has returned `Ok`. The rules of [`RawBytes`](crate::RawBytes) hold for each call on it.
    pub unsafe fn register(&self, base: *mut u8, len: usize) -> Result<(), RegisterError> {
        if let Some(first) = NonNull::new(base) {
            // SAFETY: no call gets it. Any address may be looked up.
            let mut bytes = unsafe { RawBytes::new(first, len) };
            let address = base as usize;
            RawBytes::locate([&mut bytes]).map_err(|why| RegisterError::Unlocated { address, why })?;
            if let Some(device) = bytes.device() {
                return Err(RegisterError::OfDevice { address, len, device: device.to_string() });
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.areas.register(base, len) }
    }

    /// Ends the registration of memory, which must begin at this address. No device has access to it when this has returned. Its owner may
    /// free it then if all calls on it have ended, too: those whose bytes do not go by RDMA are not noticed here.
    ///
    /// # Errors
    /// [`RegisterError::Unknown`] if none was registered there, and [`RegisterError::InUse`] while a call uses it: then it stays
    /// registered.
    pub fn unregister(&self, base: *const u8) -> Result<(), RegisterError> {
        self.areas.unregister(base as usize)
    }

    /// [`Rdma::for_process`], shared with the other transports of this memory that use the same devices in the same way: so memory is
    /// registered once for all of them.
    ///
    /// # Errors
    /// When RDMA, or a device, was named and can't be used.
    pub fn rdma(
        &self,
        transports: Transports,
        devices: &RdmaDevices,
        options: &RdmaOptions,
    ) -> Result<Result<Arc<Rdma>, NoRdma>, NoRdma> {
        // Locked until they are open, so that two transports that begin at once share them.
        let mut opened = self.areas.opened.lock();
        opened.retain(|rdma| rdma.strong_count() > 0);
        let mut shared = opened.iter().filter_map(Weak::upgrade).filter(|_| transports.rdma());
        if let Some(rdma) =
            shared.find(|rdma| rdma.is_opened_as(devices, options) && rdma.why_down().is_none())
        {
            return Ok(Ok(rdma));
        }
        let rdma = Rdma::for_process(transports, devices, options)?;
        opened.extend(rdma.as_ref().map(Arc::downgrade));
        Ok(rdma)
    }

    pub(crate) fn areas(&self) -> &Arc<Areas> {
        &self.areas
    }
}
