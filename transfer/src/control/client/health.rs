//! Tracks whether the store at an address moves bytes.

use std::sync::{Arc, OnceLock};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::options::TcpOptions;
use super::progress::{LOOKS, Looks, Moved, Watch};

/// Health of the connections to one address. Once the address is given up, every call that has or waits for one of them
/// fails.
pub(crate) struct Health {
    pub(crate) address: String,
    pub(crate) options: TcpOptions,
    /// Bytes moved over all connections.
    pub(crate) moved: Arc<Moved>,
    pub(crate) given_up: CancellationToken,
    /// Reason why the address was given up.
    why: OnceLock<String>,
}

impl Health {
    pub(crate) fn new(address: &str, options: TcpOptions) -> Arc<Self> {
        let (address, moved) = (address.to_owned(), Arc::default());
        Arc::new(Self { address, options, moved, given_up: CancellationToken::new(), why: OnceLock::new() })
    }

    /// Looks regularly whether bytes move, and returns when they don't or the deadline has passed.
    ///
    /// It counts looks rather than time, so that a process that was stopped or starved does not blame the store for its
    /// own absence.
    pub(crate) async fn look(&self, mut watch: Watch, deadline: Instant) -> Failure {
        let every = self.options.look_every();
        let mut looks = Looks::default();
        // Bytes that the address had moved before the first silent look.
        let mut before = self.moved.bytes();
        loop {
            let look_at = Instant::now() + every;
            sleep_until(look_at.min(deadline)).await;
            if watch.has_moved() {
                looks.moved();
                before = self.moved.bytes();
            } else if look_at <= deadline {
                looks.silent();
            }
            let why = || format!("no byte moved for {:?}", every * looks.in_a_row);
            if looks.in_a_row >= LOOKS {
                if self.moved.bytes() != before {
                    return Failure::Broken(format!(
                        "{} on this connection, while others to the store moved some",
                        why()
                    ));
                }
                self.give_up(why());
                return self.stalled();
            }
            if look_at >= deadline {
                // A deadline shorter than the stall timeout must not hide that a store is silent.
                return if looks.mostly_silent() { Failure::Stalled(why()) } else { Failure::Deadline };
            }
        }
    }

    /// Fails every call that has or waits for a connection, and leaves the address to a new pool.
    pub(crate) fn give_up(&self, why: String) {
        // Only the first reason is kept.
        let _ = self.why.set(why);
        self.given_up.cancel();
    }

    pub(crate) fn stalled(&self) -> Failure {
        Failure::Stalled(self.why().to_owned())
    }

    /// Returns the reason why the address was given up; empty if it was not.
    pub(crate) fn why(&self) -> &str {
        self.why.get().map_or("", String::as_str)
    }
}
