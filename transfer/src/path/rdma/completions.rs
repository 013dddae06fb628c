//! Waits for completions of RDMA requests.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_verbs::{Completion, CompletionQueue, Device};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Time for which a queue is polled before the thread waits for a wake-up, which costs about as much.
const POLL: Duration = Duration::from_micros(15);

/// A completion queue, registered with the runtime.
pub(crate) struct Completions {
    queue: AsyncFd<Arc<CompletionQueue>>,
    taken: Vec<Completion>,
    /// Whether the last wait was so short that polling would have been enough.
    poll: bool,
}

impl Completions {
    /// Creates a queue for at most `entries` completions that were not taken.
    pub(crate) fn new(device: &Arc<Device>, entries: u32) -> Result<Self, String> {
        let queue = CompletionQueue::new(device, entries).map_err(|error| error.to_string())?;
        // SAFETY: the queue, which the result keeps, has the same open descriptor until it is dropped.
        let queue = unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) };
        let queue = queue.map_err(|error| format!("cannot wait for completions: {error}"))?;
        Ok(Self { queue, taken: Vec::new(), poll: false })
    }

    pub(crate) fn queue(&self) -> &Arc<CompletionQueue> {
        self.queue.get_ref()
    }

    /// Returns the next completions, at least one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Result<std::vec::Drain<'_, Completion>, String> {
        let began = Instant::now();
        while !self.take()? {
            if self.poll && began.elapsed() < POLL {
                std::hint::spin_loop();
                continue;
            }
            self.queue().arm().map_err(|error| error.to_string())?;
            // A completion that came before the queue was armed sends no wake-up.
            if self.take()? {
                break;
            }
            let ready = self.queue.readable().await;
            let mut ready = ready.map_err(|error| format!("cannot wait for completions: {error}"))?;
            ready.get_inner().clear();
            ready.clear_ready();
        }
        self.poll = began.elapsed() < POLL;
        Ok(self.taken.drain(..))
    }

    fn take(&mut self) -> Result<bool, String> {
        self.queue.get_ref().take(&mut self.taken).map_err(|error| error.to_string())?;
        Ok(!self.taken.is_empty())
    }
}
