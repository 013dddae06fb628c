//! Bounce buffers: areas through which the bytes of other memory are copied.
#![allow(unsafe_code)]

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::WriteBuffer;
use crate::checksum::RunningChecksum;
use crate::memory::{Area, Areas};

/// Bytes of a bounce buffer, and so the most that one request of a call carries.
pub(crate) const BOUNCE: usize = 4 << 20;
/// Maximum number of bounce buffers: 64 MiB.
const BUFFERS: usize = 16;

/// The bounce buffers of a transport, which are kept once they were needed.
pub(crate) struct BounceBuffers {
    free: Mutex<Vec<Arc<Area>>>,
    permits: Arc<Semaphore>,
}

/// A bounce buffer, in use by one request.
///
/// A buffer that is dropped without [`give_back`](Self::give_back) is not used again: a store may not have copied its bytes
/// yet, and would copy those of another write to the same range. Its memory is freed when no store maps it any more.
pub(crate) struct BounceBuffer<'a> {
    area: Arc<Area>,
    buffers: &'a BounceBuffers,
    _permit: OwnedSemaphorePermit,
}

impl Default for BounceBuffers {
    fn default() -> Self {
        Self { free: Mutex::default(), permits: Arc::new(Semaphore::new(BUFFERS)) }
    }
}

impl BounceBuffers {
    /// Takes a buffer; `None` if all are taken, or there is no memory.
    pub(crate) fn take(&self, areas: &Areas) -> Option<BounceBuffer<'_>> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        // The last one, which is most likely in the processor's cache.
        let free = self.free.lock().pop();
        let area = free.or_else(|| areas.allocate(BOUNCE).ok())?;
        Some(BounceBuffer { area, buffers: self, _permit: permit })
    }
}

impl BounceBuffer<'_> {
    pub(crate) fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Copies bytes in, and adds the copy to a checksum.
    pub(crate) fn write(&mut self, at: u64, bytes: WriteBuffer<'_>, sum: &mut RunningChecksum) {
        // SAFETY: allocated here, with a file, and the request that has the buffer is the only one to write there.
        unsafe { self.area.write(at, bytes, sum) };
    }

    /// Gives it back, when every store has answered all requests that name it.
    pub(crate) fn give_back(self) {
        self.buffers.free.lock().push(self.area.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounce_buffer_is_used_again_only_if_it_is_given_back() {
        let (areas, buffers) = (Areas::default(), BounceBuffers::default());
        buffers.take(&areas).unwrap().give_back();
        let first = buffers.take(&areas).unwrap();
        assert_eq!(first.area().number, 0);
        drop(first);
        let mut taken: Vec<_> = (0..BUFFERS).map(|_| buffers.take(&areas).unwrap()).collect();
        assert!(taken.iter().all(|buffer| buffer.area().number > 0));
        assert!(buffers.take(&areas).is_none(), "all are taken");
        taken.pop().unwrap().give_back();
        assert!(buffers.take(&areas).is_some());
    }
}
