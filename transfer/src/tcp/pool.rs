use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::link::{ConnectError, Link};
use super::{TcpOptions, plan};
use crate::wire::Hello;

/// The connections of one process, by address.
pub(super) struct Pools {
    options: TcpOptions,
    by_address: Mutex<HashMap<String, Arc<Pool>>>,
}

/// The connections to one address: at most so many, each with one call at a time.
pub(super) struct Pool {
    address: String,
    options: TcpOptions,
    slots: Arc<Semaphore>,
    /// Connections that no call has, last used last.
    idle: Mutex<Vec<Link>>,
}

/// A connection that one call has for itself. Dropped without [`Self::put_back`] it is closed.
pub(super) struct Checkout {
    pub(super) link: Link,
    /// Whether it was used before: its peer may have closed it meanwhile.
    pub(super) reused: bool,
    pool: Arc<Pool>,
    _slot: OwnedSemaphorePermit,
}

/// Whether a call may be given a connection that was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reuse {
    Allowed,
    Never,
}

impl Pools {
    pub(super) fn new(options: TcpOptions) -> Self {
        Self { options, by_address: Mutex::default() }
    }

    pub(super) fn get(&self, address: &str) -> Arc<Pool> {
        let mut pools = self.by_address.lock();
        if let Some(pool) = pools.get(address) {
            return pool.clone();
        }
        // A store that went away must not keep its sockets here for ever.
        pools.retain(|_, pool| pool.is_in_use());
        let pool = Arc::new(Pool::new(address, self.options));
        pools.insert(address.to_owned(), pool.clone());
        pool
    }
}

impl Pool {
    fn new(address: &str, options: TcpOptions) -> Self {
        Self {
            address: address.to_owned(),
            options,
            slots: Arc::new(Semaphore::new(options.connections_per_peer.max(1))),
            idle: Mutex::default(),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    fn is_in_use(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || self.idle.lock().iter().any(Link::is_fresh)
    }

    /// Connections that a batch of `total` bytes should be striped over now.
    pub(super) fn lanes(&self, total: u64) -> usize {
        plan::lanes(total, self.options.stripe_bytes, self.slots.available_permits())
    }

    /// Waits for a free slot, then takes an idle connection to the memory that `hello` means or makes a new one.
    /// Unbounded: the caller puts its deadline around it.
    pub(super) async fn check_out(
        self: &Arc<Self>,
        hello: Hello,
        reuse: Reuse,
    ) -> Result<Checkout, ConnectError> {
        let slot = self.slots.clone().acquire_owned().await;
        let slot = slot.map_err(|_| ConnectError::Failed("the pool is closed".to_owned()))?;
        let idle = (reuse == Reuse::Allowed).then(|| self.take_idle(hello)).flatten();
        let (link, reused) = match idle {
            Some(link) => (link, true),
            None => (Link::connect(&self.address, hello, self.options.connect_timeout).await?, false),
        };
        Ok(Checkout { link, reused, pool: self.clone(), _slot: slot })
    }

    /// The most recently used idle connection that still works; the ones that don't are closed.
    fn take_idle(&self, hello: Hello) -> Option<Link> {
        let mut idle = self.idle.lock();
        while let Some(link) = idle.pop() {
            if link.hello == hello && link.is_fresh() {
                return Some(link);
            }
        }
        None
    }
}

impl Checkout {
    /// Returns a connection on which every request was answered in full.
    pub(super) fn put_back(self) {
        self.pool.idle.lock().push(self.link);
    }
}
