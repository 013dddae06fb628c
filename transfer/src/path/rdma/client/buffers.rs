//! The client's memory that a store's card reads and writes for one request after the other.

use super::end::ClientEnd;
use crate::blocking_drop::drop_blocking;
use crate::checksum::RunningChecksum;
use crate::memory::{NoRdma, Reached, Staging};
use crate::{ReadBuffer, WriteBuffer};

/// Memory of one request after the other, and the end that its bytes go through: staging memory, and memory of the caller.
///
/// [`Self::settled`] gives the end back once the store has answered for good, and so does not touch the memory any more.
/// Without it, the drop destroys the queue pair first. Where that fails, the staging memory is never used again, the caller's is
/// not taken back (see [`crate::LentMemory`]), and [`Self::abandon`] says so.
pub(crate) struct Buffers {
    /// `None` once it was given back.
    end: Option<ClientEnd>,
    staging: Staging,
    /// Memory of the caller that requests name.
    reached: Vec<Reached>,
    device: usize,
}

impl Buffers {
    pub(crate) fn new(end: ClientEnd, staging: Staging, reached: Vec<Reached>) -> Self {
        let device = end.device_number();
        Self { end: Some(end), staging, reached, device }
    }

    /// Number of the device.
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// See [`Staging::parts`].
    pub(crate) fn parts(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, u64, u32, u64)> {
        self.staging.parts(self.device, at, len)
    }

    /// Copies bytes into the staging memory at `at`, and adds the copy to a checksum.
    pub(crate) fn put(&mut self, at: u64, bytes: WriteBuffer<'_>, sum: &mut RunningChecksum) {
        self.staging.put(at, bytes, sum);
    }

    /// Copies bytes out of the staging memory from `at` on.
    pub(crate) fn get(&self, at: u64, into: &mut ReadBuffer<'_>) {
        self.staging.get(at, into);
    }

    /// Whether the device reaches all of the memory.
    ///
    /// # Errors
    /// When some is not registered there.
    pub(crate) fn check(&self) -> Result<(), NoRdma> {
        let is_reached = |reached: &Reached| reached.place(self.device).is_some();
        if self.staging.is_registered(self.device) && self.reached.iter().all(is_reached) {
            return Ok(());
        }
        let device = self.end.as_ref().map_or("?", ClientEnd::device_name);
        Err(NoRdma(format!("RDMA device {device} could not register memory of this process")))
    }

    /// Returns once the store has sent the message `number`: the bytes that it wrote are then visible here.
    pub(crate) async fn notified(&mut self, number: u32) -> Result<(), NoRdma> {
        match &mut self.end {
            Some(end) => end.notified(number).await,
            None => Err(NoRdma("the end was given back".to_owned())),
        }
    }

    /// Gives the blocks back, and returns the end. The store must not touch them any more.
    pub(crate) fn settled(mut self) -> Option<ClientEnd> {
        self.end.take()
    }

    /// Ends what the store does after a request that did not end well.
    ///
    /// # Errors
    /// When the device does not release the memory.
    pub(crate) async fn abandon(mut self) -> Result<(), NoRdma> {
        if let Some(pair) = self.end.as_ref().map(|end| end.pair().clone()) {
            // Destroying may take long. If the caller stops waiting, the drop destroys the pair instead.
            let _ = tokio::task::spawn_blocking(move || pair.destroy()).await;
        }
        self.end_access()
    }

    /// Destroys the queue pair, if that is not done, and gives the memory up.
    fn end_access(&mut self) -> Result<(), NoRdma> {
        let Some(end) = self.end.take() else { return Ok(()) };
        let ended = end.pair().destroy().map_err(|error| NoRdma(error.to_string()));
        drop_blocking(end);
        if let Err(why) = &ended {
            tracing::error!("{why}: the memory of a transfer is lost until this process ends");
            if self.reached.iter().any(Reached::is_raw) {
                tracing::error!(
                    "the device may go on to write to memory that is the caller's again: this process ends"
                );
                std::process::abort();
            }
            self.staging.leak();
            self.reached.drain(..).for_each(std::mem::forget);
        }
        self.staging.retire();
        self.reached.iter().for_each(Reached::retire);
        ended
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // Here, although it blocks: the caller may take its memory back right after this. The call has ended, so the
        // error has no receiver.
        let _ = self.end_access();
    }
}
