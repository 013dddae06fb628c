//! Handling of SIGINT, SIGTERM and SIGHUP. They are caught, so that dropping their owners cleans up children and files.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receiver of the signals that end this process. It catches them from its creation on.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signals: [Signal; 3],
}

/// Error of a command that a signal ended.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

impl Interrupts {
    pub(crate) fn catch() -> io::Result<Self> {
        let of = |kind| signal(kind);
        Ok(Self {
            signals: [of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?],
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }

    /// Runs `work` until it is done or a signal arrives; a signal drops it at once.
    pub(crate) async fn until<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Interrupted> {
        tokio::select! {
            done = work => Ok(done),
            () = self.next() => Err(Interrupted),
        }
    }
}
