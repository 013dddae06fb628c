//! Buffers in host memory through which bytes go to and from devices.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::{ManuallyDrop, forget};
use std::ptr::NonNull;
use std::sync::Arc;

use mc_cuda::{Device, DeviceCopy, Stage, Towards};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::job::{self, RuntimeEnded};
use super::plan::Copies;
use crate::transport::Transport;
use crate::{DeviceError, RawBytes, RegisteredMemory, WriteBuffer};

/// Bytes of a buffer. Beginning and waiting for a copy, and handing it to a thread, take some tens of microseconds; at 25 GB/s over the bus, this
/// many bytes take 670.
pub(super) const PIECE: usize = 16 << 20;
/// Most buffers at a time: two calls that each copy, transfer and have one in between.
const BUFFERS: usize = 6;

/// The buffers of one transport. They are made when they are needed and kept until its end.
pub(super) struct Stages {
    /// Allocates them, so that its stores and devices reach them where they are.
    transport: Arc<dyn Transport>,
    idle: Mutex<Vec<Buffer>>,
    room: Arc<Semaphore>,
}

/// The memory is unpinned before it is freed, in the order of the fields.
struct Buffer {
    stage: Stage,
    /// Owns the memory, and makes no reference to it.
    _memory: RegisteredMemory,
    base: NonNull<u8>,
}

// SAFETY: the address is of memory that the value owns.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// A buffer, and the right to use it alone.
pub(super) struct Lease {
    /// Taken only when the lease is dropped.
    buffer: ManuallyDrop<Buffer>,
    stages: Arc<Stages>,
    _room: OwnedSemaphorePermit,
}

impl Stages {
    pub(super) fn new(transport: Arc<dyn Transport>) -> Self {
        let room = Arc::new(Semaphore::new(BUFFERS));
        Self { transport, idle: Mutex::default(), room }
    }

    /// Waits for a buffer, and makes one if there is none.
    pub(super) async fn lease(self: &Arc<Self>, device: Device) -> Result<Lease, DeviceError> {
        // The semaphore is never closed.
        let room = self.room.clone().acquire_owned().await;
        let room = room.map_err(DeviceError::new)?;
        let idle = self.idle.lock().pop();
        let stages = self.clone();
        let buffer = match idle {
            Some(buffer) => buffer,
            None => job::run(move || stages.make(device)).await?,
        };
        Ok(Lease { buffer: ManuallyDrop::new(buffer), stages: self.clone(), _room: room })
    }

    fn make(&self, device: Device) -> Result<Buffer, DeviceError> {
        let mut memory = self.transport.allocate(PIECE).map_err(DeviceError::new)?;
        let base = NonNull::from(memory.as_mut_slice()).cast();
        // SAFETY: the memory is dropped after the stage, or never.
        let stage = unsafe { Stage::new(device, base, PIECE) };
        let stage = stage.map_err(|why| DeviceError::at(device, &why))?;
        Ok(Buffer { stage, _memory: memory, base })
    }
}

impl Lease {
    /// Bytes of the buffer, for a transport. They are free again when its call has returned or was dropped.
    pub(super) fn part(&self, at: usize, len: usize) -> RawBytes {
        assert!(at <= PIECE && len <= PIECE - at, "{len} bytes at {at}");
        // SAFETY: inside.
        RawBytes::of_buffer(unsafe { self.buffer.base.add(at) }, len, None)
    }

    /// Sets the bytes at a place of the buffer.
    pub(super) fn put(&mut self, at: usize, bytes: WriteBuffer<'_>) {
        let to = self.part(at, bytes.len()).base();
        // SAFETY: room in the buffer, which is this lease's alone.
        unsafe { bytes.copy_to(to.as_ptr()) };
    }

    /// Brings the bytes of a piece into the buffer. This blocks, like all copies: it is work of a [`job`].
    pub(super) fn gather(&mut self, copies: &Copies) -> Result<(), DeviceError> {
        copies.of_host.iter().for_each(|(at, part)| self.put(*at, (*part).into()));
        self.copy(Towards::Host, &copies.of_devices)
    }

    /// Takes the bytes of a piece out of the buffer.
    pub(super) fn scatter(&mut self, copies: &Copies) -> Result<(), DeviceError> {
        for (at, part) in &copies.of_host {
            // SAFETY: the caller's memory, which is as long and can be written to.
            unsafe { WriteBuffer::from(self.part(*at, part.len())).copy_to(part.base().as_ptr()) };
        }
        self.copy(Towards::Devices, &copies.of_devices)
    }

    fn copy(&mut self, towards: Towards, copies: &[DeviceCopy]) -> Result<(), DeviceError> {
        let Some(DeviceCopy { device, .. }) = copies.first() else { return Ok(()) };
        // SAFETY: memory that the caller of the transport keeps while `job::run` lasts, under the rules of `RawBytes`.
        let done = unsafe { self.buffer.stage.copy(towards, copies) };
        done.map_err(|why| DeviceError::at(*device, &why))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: only here, once.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        match buffer.stage.is_lost() {
            // A device may still use it.
            true => forget(buffer),
            false => self.stages.idle.lock().push(buffer),
        }
    }
}

impl From<RuntimeEnded> for DeviceError {
    fn from(why: RuntimeEnded) -> Self {
        Self::new(why)
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stages").field("idle", &self.idle.lock().len()).finish_non_exhaustive()
    }
}
