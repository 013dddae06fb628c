use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_net::Network;
use mc_transfer::{HostMemory, Memory, RdmaDevices, RdmaOptions, ShmAccess, Transport, Transports};
use mc_types::{ByteSize, ClusterId, StoreId};
use tokio::runtime::Handle;

use crate::background::Background;
use crate::config::{Config, LONGEST};
use crate::connect::connect;
use crate::{Client, ConnectError};

/// Settings of a [`Client`], created by [`Client::builder`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    config: Config,
}

impl Client {
    /// Returns default settings, to be changed and connected with.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Sets the client addresses of the masters, comma-separated: `host`, `host:port`, `ip`, `[ipv6]:port`. The default
    /// port is 50051. A name with several DNS records stands for several masters. One reachable master is enough to
    /// find the others. Default: `127.0.0.1:50051`.
    #[must_use]
    pub fn masters(mut self, list: impl Into<String>) -> Self {
        self.config.masters = list.into();
        self
    }

    /// Sets the memory for objects recently read or written by this client. 0 switches the cache off. Local-only mode
    /// then reads only from an [embedded store](Self::embedded_store). [`Self::connect`] logs the size. Default: 256
    /// MiB.
    #[must_use]
    pub fn local_cache(mut self, size: ByteSize) -> Self {
        self.config.local_cache = size;
        self
    }

    /// Publishes the values that local-only mode kept to the pool once a leader is back, if their keys are absent
    /// there.
    ///
    /// The client retries a local put until it is published, refused for good (too large, an invalid key or parameter),
    /// evicted from the local cache, or overtaken by a later put or remove of this client. Unpublished local puts are
    /// lost when this client ends, so [`Put::LocalOnly`](crate::Put::LocalOnly) is no acknowledgement in this mode either.
    /// [`Stats`](crate::Stats) counts them: [`puts_published`](crate::Stats::puts_published),
    /// [`local_puts_refused`](crate::Stats::local_puts_refused),
    /// [`local_puts_evicted`](crate::Stats::local_puts_evicted). Default: off.
    #[must_use]
    pub fn publish_local(mut self, on: bool) -> Self {
        self.config.publish_local = on;
        self
    }

    /// Sets whether a get, exist or size that misses in local-only mode fails with `NO_LEADER`. Such a miss says nothing about the pool, which
    /// was not asked. Default: off, it is a miss.
    #[must_use]
    pub fn fail_local_misses(mut self, on: bool) -> Self {
        self.config.fail_local_misses = on;
        self
    }

    /// Sets whether a get of a key fails with `REPLICA_IS_NOT_READY` if there is no object yet, but a put of it has started and has not ended.
    /// It goes for ranges and for the opening of get sessions, too; [`presence`](Client::presence) tells such a key from others in any case.
    /// Masters of older builds don't tell. Default: off, it is a miss.
    #[must_use]
    pub fn fail_unfinished_gets(mut self, on: bool) -> Self {
        self.config.fail_unfinished_gets = on;
        self
    }

    /// Sets whether [`Self::connect`] fails with [`ConnectError::NoLeader`] if it finds no leader. Default: off, the client starts in local-only
    /// mode and goes on looking; [`Client::last_error`] says why it found none.
    #[must_use]
    pub fn require_leader(mut self, on: bool) -> Self {
        self.config.require_leader = on;
        self
    }

    /// Names a store that runs in this process, by its id and memory: puts and gets copy its bytes without a connection, if
    /// [`Self::transports`] and [`Self::shared_memory`] permit shared memory. It also answers gets while no leader is in reach.
    ///
    /// The client remembers which objects of its own puts and gets lie there (in about 64 MiB, beside the local cache).
    /// It compares each value with the checksum that its writer recorded, whatever [`Self::checksum`] says. It does not
    /// keep the memory alive: once the store has stopped, these gets miss.
    /// [`Stats::embedded_hits`](crate::Stats::embedded_hits) counts the hits. Default: none.
    #[must_use]
    pub fn embedded_store(mut self, id: StoreId, memory: &Arc<Memory>) -> Self {
        self.config.embedded = Some((id, Arc::downgrade(memory)));
        self
    }

    /// Sets the time without a leader after which the client enters local-only mode. A shorter time gives up during an
    /// election; a longer one makes calls wait longer. Default: 1 s.
    #[must_use]
    pub fn leader_timeout(mut self, timeout: Duration) -> Self {
        self.config.leader_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the time limit for connecting to a master. Default: 300 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the deadline of every metadata call, retries included. Default: 5 s.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.config.call_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the deadline of a get, metadata and transfer together. Default: 10 s.
    #[must_use]
    pub fn get_timeout(mut self, timeout: Duration) -> Self {
        self.config.get_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the tenant of every key of this client, at most 64 bytes. Default: the default tenant, whose name is empty.
    #[must_use]
    pub fn tenant(mut self, name: impl Into<String>) -> Self {
        self.config.tenant = name.into();
        self
    }

    /// Sets whether to compare every value read with the checksum that its writer recorded. Default: on. Objects whose
    /// places the leader can't vouch for are compared in any case.
    #[must_use]
    pub fn checksum(mut self, on: bool) -> Self {
        self.config.checksum = on;
        self
    }

    /// Sets the only cluster that the client may use. Default: the cluster that answers first.
    #[must_use]
    pub fn cluster(mut self, id: ClusterId) -> Self {
        self.config.cluster = Some(id);
        self
    }

    /// Sets the network that connects to masters, and whose certificates are used with stores. Default: this machine's sockets,
    /// with the certificates of [`Self::tls_dir`].
    #[must_use]
    pub fn network(mut self, network: Arc<dyn Network>) -> Self {
        self.config.network = Some(network);
        self
    }

    /// Sets the folder with this client's certificate (`tls.crt`, `tls.key`) and the authorities that it trusts (`ca.crt`). A
    /// client that finds certificates connects by TLS alone. Default: the folder in the variable `MC_TLS_DIR`, else
    /// `mc-data/tls` if it has some, else plain connections; `none` is for plain connections in any case.
    #[must_use]
    pub fn tls_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.config.tls_dir = Some(dir.into());
        self
    }

    /// Sets the file with this client's token, which is shown to masters in place of a certificate. The client needs `ca.crt` in the
    /// [folder of its certificates](Self::tls_dir), to know the masters. Default: the file in the variable `MC_TOKEN_FILE`, else
    /// `token` in that folder if it is there.
    #[must_use]
    pub fn token_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.token_file = Some(file.into());
        self
    }

    /// Sets the stores of this host to share memory with, by the users of their processes: the client reads from theirs, and
    /// they copy puts out of its own. All others are used over TCP. It has no effect on a client with a [transport](Self::transport) of its own. Default:
    /// [`ShmAccess::SameUid`].
    #[must_use]
    pub fn shared_memory(mut self, access: ShmAccess) -> Self {
        self.config.shm = access;
        self
    }

    /// Sets the transports that move bytes to and from stores. Each store is reached by the best one that both have. With
    /// [`Transports::Rdma`] a client does not connect without a device, and a store that can't be reached by RDMA counts as
    /// unreachable. With [`Transports::Auto`], the default, other transports replace RDMA; [`Client::rdma_devices`] says whether and why.
    #[must_use]
    pub fn transports(mut self, transports: Transports) -> Self {
        self.config.transports = transports;
        self
    }

    /// Sets the RDMA devices to use. Default: all that have an active port.
    /// The client opens the system's libibverbs for them, unless the [transports](Self::transports) exclude RDMA.
    #[must_use]
    pub fn rdma_devices(mut self, devices: RdmaDevices) -> Self {
        self.config.rdma_devices = devices;
        self
    }

    /// Sets how the RDMA devices are used. Default: [`RdmaOptions::default`].
    #[must_use]
    pub fn rdma_options(mut self, options: RdmaOptions) -> Self {
        self.config.rdma_options = options;
        self
    }

    /// Sets the memory of this process that bytes move from and to where it is. Clients with the same one share what was allocated and
    /// registered there. It has no effect on a client with a [transport](Self::transport) of its own. Default: each client has
    /// its own.
    #[must_use]
    pub fn host_memory(mut self, memory: &HostMemory) -> Self {
        self.config.host_memory = Some(memory.clone());
        self
    }

    /// Sets a transport of your own to move bytes to and from stores. Default: by [RDMA, shared memory and
    /// TCP](Self::transports).
    #[must_use]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.config.transport = Some(transport);
        self
    }

    /// Sets the runtime for the client's background work: the search for the leader, watches, connections to masters, and the
    /// publishing of local puts. It must have timers and I/O, be driven all the time, and outlive the client; when it ends, the
    /// client is [closed](crate::Health::Closed). The connections to stores then belong to the runtimes of the calls that make them. Set it
    /// in a process with hundreds of clients, to save their threads. Default: a thread of the client's own, which works from any
    /// runtime or none.
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.config.runtime = Some(runtime);
        self
    }

    /// Looks for the leader and returns when it is found, or without one after the leader timeout.
    ///
    /// Without one the client starts in local-only mode and keeps looking in the background, unless
    /// [a leader is required](Self::require_leader): [`Client::last_error`] says why, and [`Client::connected`] waits for a leader.
    ///
    /// # Errors
    /// [`ConnectError`] when the settings are wrong, or the masters that answer cannot be used.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let background = self.background()?;
        background.clone().run("connect", 1, connect(self.config, background)).await
    }

    /// Returns the settings themselves.
    pub(crate) fn config(self) -> Config {
        self.config
    }

    pub(crate) fn background(&self) -> Result<Background, ConnectError> {
        let started = Background::start(self.config.runtime.clone());
        started.map_err(|error| ConnectError::Thread { why: error.to_string() })
    }
}
