use std::thread::JoinHandle;

use crate::TransferError;

/// A transfer that runs on a thread of its own.
#[derive(Debug)]
pub struct Submitted(pub(crate) JoinHandle<Result<(), TransferError>>);

impl Submitted {
    /// Whether the transfer has ended, so that [`Self::wait`] returns at once.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for its end, which comes by its deadline.
    ///
    /// # Errors
    /// [`TransferError`]
    pub fn wait(self) -> Result<(), TransferError> {
        self.0.join().unwrap_or(Err(TransferError::Panicked))
    }
}
