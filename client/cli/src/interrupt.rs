//! Ctrl-C and SIGTERM. Caught, so that child processes and temporary files are cleaned up by dropping what owns them.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end this process, caught from when this is made.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signals: [Signal; 3],
}

/// The command was told to end.
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

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }

    /// Runs `work` until it is done or told to end; then it is dropped where it stands.
    pub(crate) async fn until<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Interrupted> {
        tokio::select! {
            done = work => Ok(done),
            () = self.next() => Err(Interrupted),
        }
    }
}
