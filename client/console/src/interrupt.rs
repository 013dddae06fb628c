//! Handling of SIGINT, SIGTERM and SIGHUP. They are caught, so that dropping their owners cleans up children and files.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::note;

/// Receiver of the signals that end this process. It catches them from its creation on.
#[derive(Debug)]
pub struct Interrupts {
    signals: [Signal; 3],
}

/// Error of a command that a signal ended.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupts {
    /// Catches the signals from now on.
    pub fn catch() -> io::Result<Self> {
        let of = |kind| signal(kind);
        Ok(Self {
            signals: [of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?],
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }

    /// Runs `work` until it is done or a signal arrives; a signal drops it at once.
    pub async fn until<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Interrupted> {
        tokio::select! {
            done = work => Ok(done),
            () = self.next() => Err(Interrupted),
        }
    }

    /// Runs `work`, which puts objects and removes them again, on a pool that others use. A signal sets `over` instead of
    /// dropping the work, which then begins no more calls and removes what it has put.
    ///
    /// The calls that it is in are not dropped, so that no put stays open and none is committed after the removal. A second
    /// signal drops all at once.
    pub async fn wind_down<T>(
        &mut self,
        work: impl Future<Output = T>,
        over: &AtomicBool,
    ) -> Result<T, Interrupted> {
        let mut work = pin!(work);
        tokio::select! {
            done = &mut work => return Ok(done),
            () = self.next() => {}
        }
        over.store(true, Ordering::Relaxed);
        note(
            "interrupted: waiting for the calls in flight and removing the objects; interrupt again to leave them",
        );
        // The progress of the work does not matter after an interrupt.
        self.until(work).await?;
        Err(Interrupted)
    }
}
