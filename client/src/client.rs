use std::sync::Arc;
use std::time::Duration;

use mc_transfer::{NoRdma, PeerReport, Rdma, RegisterError, RegisteredMemory, Transport as _};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::background::Background;
use crate::config::LONGEST;
use crate::core::Core;
use crate::mode::{ClientMode, Health, Mode};
use crate::{Code, Error, Stats};

/// A client of one cluster and one tenant.
///
/// It is cheap to clone and safe to share between tasks, threads and runtimes. Its background work runs on a thread of its own,
/// which ends when the last clone is dropped; its calls can be awaited on any executor. See [`Builder::runtime`](crate::Builder::runtime).
///
/// Every call ends by its deadline, even if every master and store is down. Dropping a call's future abandons the call: the client
/// frees the room of puts that it had started, and other calls are not affected. A burst of single calls is sent in few messages.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use mc_client::Client;
///
/// let client = Client::builder().masters("a:50051,b:50051,c:50051").local_cache("4gb".parse()?).connect().await?;
/// client.put("k", b"value").await?;
/// assert_eq!(client.get("k").await?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
    shared: Arc<Shared>,
}

/// State that all handles of a client share, whatever their deadlines.
struct Shared {
    background: Background,
    /// The devices, or why there are none.
    rdma: Result<Arc<Rdma>, NoRdma>,
    closed: CancellationToken,
    /// Closes the client when the last clone is dropped.
    _life: DropGuard,
}

impl Client {
    pub(crate) fn new(
        core: Core,
        background: Background,
        rdma: Result<Arc<Rdma>, NoRdma>,
        closed: CancellationToken,
        life: DropGuard,
    ) -> Self {
        let shared = Arc::new(Shared { background, rdma, closed, _life: life });
        Self { core: Arc::new(core), shared }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Runs a call of that many items in a span, and in the context of the client's runtime.
    pub(crate) fn run<F: Future>(
        &self,
        operation: &'static str,
        items: usize,
        call: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        self.shared.background.run(operation, items, call)
    }

    /// Runs a call to its end, blocking this thread: see [`Background::wait`].
    pub(crate) fn wait<F: Future>(&self, call: F) -> F::Output {
        self.shared.background.wait(call)
    }

    /// Returns the token that [`close`](Self::close) and the drop of the last clone cancel.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.shared.closed
    }

    /// Returns once a leader is known, or `false` when `timeout` has passed without one.
    pub async fn connected(&self, timeout: Duration) -> bool {
        let mut mode = self.core().leader.mode.subscribe();
        let found = mode.wait_for(|mode| matches!(mode, ClientMode::Leader(_)));
        let found = self.run("connected", 1, async { tokio::time::timeout(timeout, found).await });
        matches!(found.await, Ok(Ok(_)))
    }

    /// Returns a handle of this client whose gets have this deadline, metadata and transfer together, in place of
    /// [`Builder::get_timeout`](crate::Builder::get_timeout). It is cheap, so each call can have its own:
    /// `client.with_get_timeout(left).get("k")`. What
    /// the handle opens, such as a [`GetSession`](crate::GetSession), has it, too.
    #[must_use]
    pub fn with_get_timeout(&self, timeout: Duration) -> Self {
        let core = Core { get_timeout: timeout.min(LONGEST), ..(*self.core).clone() };
        Self { core: Arc::new(core), shared: self.shared.clone() }
    }

    /// Registers memory with the transports, for zero-copy calls.
    ///
    /// Pass parts of it to [`batch_get_into`](Self::batch_get_into) and [`batch_put_from`](Self::batch_put_from), which
    /// work as well with any other memory. Register memory of another owner with [`HostMemory::register`](crate::HostMemory::register). Memory of
    /// [`allocate`](Self::allocate) saves a copy.
    #[must_use]
    pub fn register(&self, buffer: Vec<u8>) -> RegisteredMemory {
        RegisteredMemory::from_vec(buffer)
    }

    /// Allocates registered memory, page aligned and zeroed.
    ///
    /// Stores take the bytes of puts out of it by themselves, those of the same host by a copy and others by RDMA; other memory is
    /// copied once more. With [`batch_get_into_owned`](Self::batch_get_into_owned), the bytes of gets come straight into it by RDMA.
    /// That goes for up to 128 allocations at a time, of 16 KiB and more: further ones are as good as other memory. Each takes a
    /// descriptor, is faulted in and pinned, which takes about a second for every few GiB, and is shared by a process that is forked.
    ///
    /// # Errors
    /// When the memory cannot be allocated.
    pub fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        self.core().transport.allocate(len)
    }

    /// Returns whether this client can work.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.core().leader.mode.get() {
            ClientMode::Closed => Health::Closed,
            ClientMode::LocalOnly | ClientMode::Refused(_) => Health::NoLeader,
            ClientMode::Searching | ClientMode::Leader(_) => Health::Healthy,
        }
    }

    /// Says why no leader is in reach: the last failure of each master that was asked. `None` while a leader is known, or if every
    /// master answers and none knows a leader.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        let masters = &self.core().leader.masters;
        if let ClientMode::Leader(_) = self.core().leader.mode.get() {
            return None;
        }
        masters.failure().map(|why| Error::definite("find the leader", Code::NoLeader, "the masters", why))
    }

    /// Returns whether a leader is in reach.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.core().leader.mode.get() {
            ClientMode::Searching | ClientMode::Leader(_) => Mode::Connected,
            ClientMode::LocalOnly | ClientMode::Refused(_) | ClientMode::Closed => Mode::LocalOnly,
        }
    }

    /// Returns the counters of this client, with those of its clones.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.core();
        core.counters.stats(core.local.cache.bytes())
    }

    /// Says by which transport bytes go between this client and each store that it has called, and why not by a better
    /// one; sorted by address.
    #[must_use]
    pub fn transports(&self) -> Vec<PeerReport> {
        let mut peers = self.core().transport.peers();
        peers.sort_by(|one, other| one.address.cmp(&other.address));
        peers
    }

    /// Returns the names of the RDMA devices that this client can use at present. With
    /// [`Transports::Auto`](crate::Transports::Auto) it goes on without any:
    /// a program whose user asked for RDMA can tell them why.
    ///
    /// # Errors
    /// Why there is none: the [settings](crate::Builder::transports) exclude RDMA, or this machine has no library or no device for it.
    pub fn rdma_devices(&self) -> Result<Vec<String>, NoRdma> {
        let rdma = self.shared.rdma.as_ref().map_err(NoRdma::clone)?;
        rdma.why_down().map_or_else(|| Ok(rdma.names().map(str::to_owned).collect()), Err)
    }

    /// Ends the background tasks and fails every pending and later call of this client and its clones. Puts that such calls
    /// give up are still revoked, until the last handle is dropped.
    pub fn close(&self) {
        self.core().leader.mode.close();
        self.shared.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GetInto, PutOptions};

    fn is_send<T: Send>(_: &T) {}

    #[test]
    fn calls_can_be_spawned() {
        fn check(client: &Client, items: &mut [GetInto<'_>]) {
            is_send(client);
            is_send(&client.put("k", b"v"));
            is_send(&client.get("k"));
            is_send(&client.batch_get(&["k"]));
            is_send(&client.batch_put(&[("k", "v")], &PutOptions::default()));
            is_send(&client.batch_get_into(items));
            is_send(&client.remove("k", true));
        }
        let _ = check;
    }
}
