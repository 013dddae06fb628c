//! Progress of connections: whether bytes move over them.
#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_net::DataStream;
use tokio::time::sleep;

/// Number of checks within the stall timeout. The store has stalled after this many checks in a row that saw no byte
/// move.
pub(crate) const LOOKS: u32 = 4;

/// Count of bytes sent and received, for another task to read.
#[derive(Debug, Default)]
pub(crate) struct Moved(AtomicU64);

impl Moved {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes moved over one connection, and over all connections to its address.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    own: Arc<Moved>,
    all: Arc<Moved>,
}

impl Progress {
    /// Creates the progress of a new connection to the address whose count is `all`.
    pub(crate) fn new(all: Arc<Moved>) -> Self {
        Self { own: Arc::default(), all }
    }

    pub(crate) fn add(&self, n: usize) {
        self.own.add(n);
        self.all.add(n);
    }

    /// Bytes moved over the connection.
    pub(crate) fn bytes(&self) -> u64 {
        self.own.bytes()
    }
}

/// Looks at a connection while a call works on it, to see whether bytes move.
pub(crate) struct Watch {
    stream: Arc<DataStream>,
    progress: Progress,
    seen: u64,
    /// Bytes that the peer's kernel had not acknowledged at the last look.
    unacknowledged: usize,
}

impl Watch {
    pub(crate) fn new(stream: Arc<DataStream>, progress: Progress) -> Self {
        let seen = progress.own.bytes();
        Self { stream, progress, seen, unacknowledged: 0 }
    }

    /// One for another call on the same connection.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.stream.clone(), self.progress.clone())
    }

    /// Whether a byte has moved since the last look: to or from this process, or from the kernel's send buffer to the
    /// peer. That buffer, behind one for TLS, takes up to megabytes at once and then empties at the pace of the network.
    pub(crate) fn has_moved(&mut self) -> bool {
        let left = unacknowledged(&self.stream);
        self.progress.add(self.unacknowledged.saturating_sub(left));
        self.unacknowledged = left;
        let seen = std::mem::replace(&mut self.seen, self.progress.own.bytes());
        seen != self.seen
    }
}

/// Counts the looks at one connection during one call: how many saw a byte move, and how many did not.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    moved: u32,
    silent: u32,
    /// Silent looks since the last one that saw a byte move.
    pub(crate) in_a_row: u32,
}

impl Looks {
    pub(crate) fn moved(&mut self) {
        self.moved += 1;
        self.in_a_row = 0;
    }

    pub(crate) fn silent(&mut self) {
        self.silent += 1;
        self.in_a_row += 1;
    }

    /// Whether a call that reaches its deadline now says something about the store: silent at the end, and in most of
    /// the looks before.
    pub(crate) fn mostly_silent(&self) -> bool {
        self.in_a_row > 0 && self.silent > self.moved
    }
}

/// Returns the outcome of `work`; `None` when it takes longer than `timeout`.
///
/// The time is slept in parts, one after the other. A process that was stopped or starved meanwhile has not waited for
/// all of them, so it still gives the other end time to answer.
pub(crate) async fn within<T>(timeout: Duration, work: impl Future<Output = T>) -> Option<T> {
    let over = async {
        for _ in 0..LOOKS {
            sleep(timeout / LOOKS).await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = over => None,
    }
}

/// Returns the bytes that were sent and not acknowledged by the peer's kernel, with those that have not left this process; those of the
/// kernel are 0 where it does not tell.
fn unacknowledged(stream: &DataStream) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for as long as `stream` is borrowed. This request (`SIOCOUTQ` of a socket) writes
    // one int to `bytes`, which outlives the call.
    let done = unsafe { libc::ioctl(stream.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    let in_kernel = if done == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 };
    in_kernel + stream.unsent()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_right_before_the_deadline_does_not_make_a_stalled_store() {
        let looks = |seen: &[bool]| {
            let mut looks = Looks::default();
            seen.iter().for_each(|moved| if *moved { looks.moved() } else { looks.silent() });
            looks.mostly_silent()
        };
        assert!(looks(&[false]), "a short deadline: it said nothing at all");
        assert!(looks(&[true, false, false]));
        assert!(!looks(&[true, true, true, false]), "it moved bytes nearly all of the time");
        assert!(!looks(&[true, false]));
        assert!(!looks(&[false, false, true]), "it is moving now");
        assert!(!looks(&[]));
    }
}
